//! What is measured in C and in Rust, and in which order: what is compared with each other stands together.

use crate::bench::results::{Key, Metric, Way};
use crate::bench::table::bytes;
use serde::{Deserialize, Serialize};

/// Messages up to this size make samples of many.
const SMALL_MOST: usize = 8192;

/// A group of figures that can be asked for by itself.
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

/// In which language the two processes are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// C, by `am.h` and the library libweft.
    C,
    /// Rust, by the crate `weft`.
    Rust,
}

impl By {
    pub const BOTH: [By; 2] = [By::C, By::Rust];

    /// As rows name it.
    pub fn system(self) -> &'static str {
        match self {
            By::C => "libweft",
            By::Rust => "weft",
        }
    }

    /// As people say it.
    pub fn language(self) -> &'static str {
        match self {
            By::C => "C",
            By::Rust => "Rust",
        }
    }
}

/// The three forms of messages that Active Messages have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Form {
    /// Arguments only.
    Short,
    /// With a payload, which the handler finds in a buffer of the library's.
    Medium,
    /// With contents that are placed in the receiver's segment.
    Long,
}

impl Form {
    /// As the program in C has it.
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

/// A message: a form, and bytes. Of short ones these are the arguments', of which there are none or four.
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
    /// A request and a reply like it.
    RoundTrip(Message),
    /// Requests one way, of which 32 are under way.
    Rate(Message),
    /// The same, in bytes.
    Stream(Message),
}

impl What {
    /// The message that goes, and comes back if one does.
    pub fn message(self) -> Message {
        match self {
            What::RoundTrip(message) | What::Rate(message) | What::Stream(message) => message,
        }
    }

    /// In words.
    pub fn title(self) -> String {
        format!("{}: {}", self.kind(), self.message().title())
    }

    /// Which kind of figure it is.
    pub fn kind(self) -> &'static str {
        match self {
            What::RoundTrip(_) => "round trip",
            What::Rate(_) => "one way, messages",
            What::Stream(_) => "one way, bytes",
        }
    }

    /// What one message counts for in a rate.
    pub fn units(self) -> f64 {
        match self {
            What::Stream(message) => message.size as f64,
            _ => 1.0,
        }
    }

    /// Messages between two looks at the clock: few, because on a loaded machine each may wait for a time slice.
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

/// One thing to run, in each round.
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
