//! The values of `weft wire`: shares, times, rates and sizes, once for both directions or once for each.

use std::str::FromStr;
use std::time::Duration;

/// A value from A to B, and one from B to A.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pair<T>(pub [T; 2]);

/// Nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Nanos(pub u64);

/// A share of frames, from 0 to 1.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug, Default)]
pub struct Share(f64);

/// Bits per second; 0 means no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rate(pub u64);

/// The size of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    Bytes(u64),
    Frames(usize),
}

/// A number of frames, or of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Count(pub u32);

/// Frames lost in bursts, by Gilbert and Elliott's model.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Bursts {
    /// How often one begins.
    pub begin: Share,
    /// How often one ends: 1 divided by its mean length.
    pub end: Share,
    /// The share lost in a burst.
    pub loss: Share,
}

/// A share of frames that later ones overtake.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Reorder {
    pub share: Share,
    /// By at most this many.
    pub window: u32,
}

/// A share of frames that are sent twice.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Duplicate {
    pub share: Share,
    /// The copy is at most this much later.
    pub late: Nanos,
}

/// The error text for a value.
pub type Wrong = String;

const TIME_MOST: Duration = Duration::from_secs(3600);
const RATE_MOST: f64 = 1e12;
const ROOM_MOST: f64 = 1e12;

/// By default, at most this many frames overtake a held one.
const WINDOW: u32 = 64;
const WINDOW_MOST: u32 = 4096;

impl Share {
    /// Whether a random 64-bit number falls into this share.
    #[inline]
    pub fn has(self, drawn: u64) -> bool {
        const UNIT: f64 = 1.0 / (1u64 << 53) as f64;
        ((drawn >> 11) as f64) * UNIT < self.0
    }
}

impl Default for Reorder {
    fn default() -> Reorder {
        Reorder { share: Share::default(), window: WINDOW }
    }
}

impl<T: FromStr<Err = Wrong> + Copy> FromStr for Pair<T> {
    type Err = Wrong;

    fn from_str(text: &str) -> Result<Pair<T>, Wrong> {
        match text.split_once('/') {
            Some((there, back)) => Ok(Pair([there.parse()?, back.parse()?])),
            None => Ok(Pair([text.parse()?; 2])),
        }
    }
}

impl FromStr for Share {
    type Err = Wrong;

    fn from_str(text: &str) -> Result<Share, Wrong> {
        let (number, whole) = match text.trim().strip_suffix('%') {
            Some(number) => (number, 100.0),
            None => (text, 1.0),
        };
        match number.trim().parse::<f64>() {
            Ok(number) if (0.0..=whole).contains(&number) => Ok(Share(number / whole)),
            _ => Err(format!("`{text}` is not a share: give 0% to 100%, or 0 to 1")),
        }
    }
}

impl FromStr for Nanos {
    type Err = Wrong;

    fn from_str(text: &str) -> Result<Nanos, Wrong> {
        let seconds = match text.trim() {
            "0" => Some(0.0),
            _ => scaled(text, &[("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)]),
        };
        let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        match time.filter(|&time| time <= TIME_MOST) {
            Some(time) => Ok(Nanos(time.as_nanos() as u64)),
            None => Err(format!("`{text}` is not a time up to an hour: give 200us, 15ms, 1.5s")),
        }
    }
}

impl FromStr for Rate {
    type Err = Wrong;

    fn from_str(text: &str) -> Result<Rate, Wrong> {
        let bits = scaled(text, &[("Gbit", 1e9), ("Mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)]);
        match bits {
            _ if text.trim() == "none" => Ok(Rate(0)),
            Some(bits) if (1e3..=RATE_MOST).contains(&bits) => Ok(Rate(bits as u64)),
            _ => Err(format!("`{text}` is not a rate: give 100kbit, 10Mbit, 1Gbit, or none")),
        }
    }
}

impl FromStr for Room {
    type Err = Wrong;

    fn from_str(text: &str) -> Result<Room, Wrong> {
        let bytes = scaled(text, &[("MiB", 1_048_576.0), ("KiB", 1024.0), ("", 1.0)]);
        match (scaled(text, &[("p", 1.0)]), bytes) {
            (Some(frames), _) if (1.0..=ROOM_MOST).contains(&frames) => Ok(Room::Frames(frames as usize)),
            (None, Some(bytes)) if (1.0..=ROOM_MOST).contains(&bytes) => Ok(Room::Bytes(bytes as u64)),
            _ => Err(format!("`{text}` is not a queue size: give bytes, as 100000 or 64KiB, or frames, as 25p")),
        }
    }
}

impl FromStr for Count {
    type Err = Wrong;

    fn from_str(text: &str) -> Result<Count, Wrong> {
        match text.trim().parse() {
            Ok(count @ 1..) => Ok(Count(count)),
            _ => Err(format!("`{text}` is not a number from 1")),
        }
    }
}

impl FromStr for Bursts {
    type Err = Wrong;

    fn from_str(text: &str) -> Result<Bursts, Wrong> {
        let mut parts = text.split(',');
        let begin = parts.next().unwrap_or_default().parse()?;
        let length = parts.next().and_then(|length| length.trim().parse::<f64>().ok());
        let loss = parts.next().unwrap_or("100%").parse()?;
        match (length, parts.next()) {
            (Some(length), None) if (1.0..=1e6).contains(&length) => {
                Ok(Bursts { begin, end: Share(1.0 / length), loss })
            }
            _ => Err(format!("`{text}` does not describe bursts: give 0.1%,20 or 0.1%,20,50%")),
        }
    }
}

impl FromStr for Reorder {
    type Err = Wrong;

    fn from_str(text: &str) -> Result<Reorder, Wrong> {
        let (share, window) = text.split_once(',').map_or((text, None), |(share, window)| (share, Some(window)));
        let window = window.map_or(Ok(Count(WINDOW)), str::parse)?;
        match window {
            Count(window @ ..=WINDOW_MOST) => Ok(Reorder { share: share.parse()?, window }),
            Count(window) => Err(format!("a window of {window} frames is too large: give {WINDOW_MOST} at most")),
        }
    }
}

impl FromStr for Duplicate {
    type Err = Wrong;

    fn from_str(text: &str) -> Result<Duplicate, Wrong> {
        let (share, late) = text.split_once(',').unwrap_or((text, "0"));
        Ok(Duplicate { share: share.parse()?, late: late.parse()? })
    }
}

/// A number times the value of its unit. If one unit ends like another, the longer one must come first.
fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let text = text.trim();
    let (number, unit) = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)))?;
    let number: f64 = number.trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_and_errors_say_what_to_give() {
        assert_eq!("30%".parse(), Ok(Share(0.3)));
        assert_eq!("0.3".parse(), Ok(Share(0.3)));
        assert_eq!("200us".parse(), Ok(Nanos(200_000)));
        assert_eq!("1.5 ms".parse(), Ok(Nanos(1_500_000)));
        assert_eq!("10Mbit".parse(), Ok(Rate(10_000_000)));
        assert_eq!("none".parse(), Ok(Rate(0)));
        assert_eq!("25p".parse(), Ok(Room::Frames(25)));
        assert_eq!("64KiB".parse(), Ok(Room::Bytes(65_536)));
        assert_eq!("5%/0".parse(), Ok(Pair([Share(0.05), Share(0.0)])));
        assert_eq!("1%,16".parse(), Ok(Reorder { share: Share(0.01), window: 16 }));
        assert_eq!("1%".parse(), Ok(Reorder { share: Share(0.01), window: WINDOW }));
        assert_eq!("1%,60s".parse(), Ok(Duplicate { share: Share(0.01), late: Nanos(60_000_000_000) }));
        let bursts = Bursts { begin: Share(0.001), end: Share(0.05), loss: Share(0.5) };
        assert_eq!("0.1%,20,50%".parse(), Ok(bursts));
        assert_eq!("0.1%,20".parse(), Ok(Bursts { loss: Share(1.0), ..bursts }));

        let said = |said: Option<Wrong>, what: &str| assert!(said.is_some_and(|said| said.contains(what)), "{what}");
        for share in ["30", "-1%", "101%", "", "x", "NaN"] {
            said(share.parse::<Share>().err(), "0% to 100%");
        }
        for time in ["200", "1h", "-1s", "3601s", "infs"] {
            said(time.parse::<Nanos>().err(), "200us");
        }
        for rate in ["1000", "0bit", "1e13bit"] {
            said(rate.parse::<Rate>().err(), "10Mbit");
        }
        for room in ["0", "0p", "x"] {
            said(room.parse::<Room>().err(), "64KiB");
        }
        said("1%,0".parse::<Reorder>().err(), "from 1");
        said("1%,5000".parse::<Reorder>().err(), "too large");
        said("0.1%".parse::<Bursts>().err(), "0.1%,20");
        said("0.1%,20,50%,1".parse::<Bursts>().err(), "0.1%,20");
        said("5%/x".parse::<Pair<Share>>().err(), "is not a share");
    }

    #[test]
    fn a_share_is_drawn_as_often_as_it_says() {
        let share: Share = "30%".parse().expect("a share");
        assert!(share.has(0) && !share.has(u64::MAX));
        assert!(!Share::default().has(0), "an empty share has nothing");
        assert!("100%".parse::<Share>().expect("a share").has(u64::MAX), "the whole share has everything");
        let drawn = (0..10_000u64).filter(|&number| share.has(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))).count();
        assert!((2_900..3_100).contains(&drawn), "{drawn}");
    }
}
