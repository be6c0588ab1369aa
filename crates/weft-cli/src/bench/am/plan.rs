//! What is measured in C and in Rust, and in which order: figures that are compared are taken one after the other.

use crate::bench::results::{Key, Metric, Way};
use crate::bench::table::bytes;
use serde::{Deserialize, Serialize};

/// For messages up to this size, many make one sample.
const SMALL_MOST: usize = 8192;

/// A group of figures that the user can select.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Group {
    /// Two processes of one host.
    Local,
    /// Two processes of two hosts. Needs root.
    Hosts,
}

/// How much is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    Full,
    Quick,
}

/// The language of the two processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// C, by `am.h` and the library libweft.
    C,
    /// Rust, by the crate `weft`.
    Rust,
}

impl By {
    pub const BOTH: [By; 2] = [By::C, By::Rust];

    /// The name in rows.
    pub fn system(self) -> &'static str {
        match self {
            By::C => "libweft",
            By::Rust => "weft",
        }
    }

    /// The name for display.
    pub fn language(self) -> &'static str {
        match self {
            By::C => "C",
            By::Rust => "Rust",
        }
    }
}

/// The three forms of Active Messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Form {
    /// Arguments only.
    Short,
    /// With a payload, which the handler gets in a buffer of the library's.
    Medium,
    /// With contents that are placed in the receiver's segment.
    Long,
}

impl Form {
    /// The name in the program in C.
    pub fn name(self) -> &'static str {
        self.way().name()
    }

    fn way(self) -> Way {
        match self {
            Form::Short => Way::Short,
            Form::Medium => Way::Medium,
            Form::Long => Way::Long,
        }
    }
}

/// A message: its form and size. The size of a short one is that of its arguments, of which there are none or four.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Message {
    pub form: Form,
    pub size: usize,
}

impl Message {
    const fn new(form: Form, size: usize) -> Message {
        Message { form, size }
    }

    /// In words.
    pub fn title(self) -> String {
        match self.form {
            Form::Short => format!("short, {} arguments", self.size / 4),
            form => format!("{}, {}", form.name(), bytes(self.size)),
        }
    }
}

const SHORT: Message = Message::new(Form::Short, 0);
const SHORT_4: Message = Message::new(Form::Short, 16);
const MEDIUM_64: Message = Message::new(Form::Medium, 64);
const MEDIUM_8K: Message = Message::new(Form::Medium, 8192);
const MEDIUM_64K: Message = Message::new(Form::Medium, 65536);
const LONG_64K: Message = Message::new(Form::Long, 65536);
const LONG_1M: Message = Message::new(Form::Long, 1 << 20);

/// A figure that is measured with two processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// A request and a reply of the same form.
    RoundTrip(Message),
    /// Requests in one direction, with 32 under way.
    Rate(Message),
    /// The same, measured in bytes.
    Stream(Message),
}

impl What {
    /// The message that is sent, and comes back if there is a reply.
    pub fn message(self) -> Message {
        match self {
            What::RoundTrip(message) | What::Rate(message) | What::Stream(message) => message,
        }
    }

    /// In words.
    pub fn title(self) -> String {
        format!("{}: {}", self.kind(), self.message().title())
    }

    /// The kind of the figure.
    pub fn kind(self) -> &'static str {
        match self {
            What::RoundTrip(_) => "round trip",
            What::Rate(_) => "one way, messages",
            What::Stream(_) => "one way, bytes",
        }
    }

    /// The contribution of one message to a rate.
    pub fn units(self) -> f64 {
        match self {
            What::Stream(message) => message.size as f64,
            _ => 1.0,
        }
    }

    /// Messages between two readings of the clock: few, because on a loaded machine each may wait for a time slice.
    pub fn batch(self) -> u32 {
        match self.message().size {
            size if size <= SMALL_MOST => 16,
            _ => 4,
        }
    }

    /// The key of its rows.
    pub fn key(self, by: By) -> Key {
        let metric = match self {
            What::RoundTrip(_) => Metric::Rtt,
            What::Rate(_) => Metric::Rate,
            What::Stream(_) => Metric::Bandwidth,
        };
        let Message { form, size } = self.message();
        Key::plain(metric, size, by.system()).by(form.way())
    }
}

/// A thing to run in each round.
pub type Probe = (What, By);

/// Everything that is measured, in order.
pub fn all(extent: Extent) -> Vec<What> {
    let (trips, rates, streams) = match extent {
        Extent::Full => (
            &[SHORT, SHORT_4, MEDIUM_64, MEDIUM_8K, MEDIUM_64K, LONG_64K, LONG_1M][..],
            &[SHORT, SHORT_4, MEDIUM_64][..],
            &[MEDIUM_64K, LONG_64K, LONG_1M][..],
        ),
        Extent::Quick => {
            (&[SHORT, SHORT_4, MEDIUM_64, MEDIUM_8K, LONG_64K][..], &[SHORT_4][..], &[MEDIUM_64K, LONG_1M][..])
        }
    };
    let of = |messages: &[Message], what: fn(Message) -> What| messages.iter().copied().map(what).collect::<Vec<_>>();
    [of(trips, What::RoundTrip), of(rates, What::Rate), of(streams, What::Stream)].concat()
}

/// Each of these, in C and in Rust.
pub fn probes(all: &[What]) -> Vec<Probe> {
    all.iter().flat_map(|&what| By::BOTH.map(|by| (what, by))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_in_c_stands_next_to_the_one_in_rust() {
        for extent in [Extent::Full, Extent::Quick] {
            let probes = probes(&all(extent));
            assert!(probes.chunks(2).all(|pair| matches!(pair, [(a, By::C), (b, By::Rust)] if a == b)), "{probes:?}");
        }
    }

    #[test]
    fn no_two_figures_have_the_same_rows() {
        let keys: Vec<Key> = probes(&all(Extent::Full)).into_iter().map(|(what, by)| what.key(by)).collect();
        assert!(keys.iter().enumerate().all(|(at, key)| !keys[..at].contains(key)), "{keys:?}");
    }
}
