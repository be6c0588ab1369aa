//! Log lines that programs cause. There is at most one in a second of each kind, because programs can cause as many as they like.

use std::time::Duration;
use tracing::{debug, info};
use weft_transport::Time;

/// Time between two lines of a kind.
const APART: Duration = Duration::from_secs(1);

/// What a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A program attached.
    Attached,
    /// It is gone.
    Detached,
    /// A user that may not attach tried to.
    ForeignUser,
    /// A program was refused.
    Refused,
    /// An attached program broke the protocol.
    Cut,
    /// The kernel had no descriptor or no memory left for a program.
    Shortage,
}

impl Kind {
    const ALL: [Kind; 6] =
        [Kind::Attached, Kind::Detached, Kind::ForeignUser, Kind::Refused, Kind::Cut, Kind::Shortage];

    fn in_words(self) -> &'static str {
        match self {
            Kind::Attached => "attached",
            Kind::Detached => "detached",
            Kind::ForeignUser => "refused a program of a user that may not attach",
            Kind::Refused => "refused",
            Kind::Cut => "cut off",
            Kind::Shortage => "a shortage",
        }
    }

    /// Whether its lines only help to find a fault.
    fn is_detail(self) -> bool {
        matches!(self, Kind::Attached | Kind::Detached | Kind::ForeignUser)
    }
}

/// When each kind was logged last, and how many lines were left out since.
#[derive(Debug, Default)]
pub struct Logs([Count; Kind::ALL.len()]);

#[derive(Debug, Default)]
struct Count {
    logged_at: Option<Time>,
    left_out: u64,
}

impl Count {
    fn is_due(&self, now: Time) -> bool {
        self.logged_at.is_none_or(|at| now.since(at) >= APART)
    }
}

impl Logs {
    /// Whether a line of this kind may be logged now. Otherwise it is counted.
    pub fn may(&mut self, kind: Kind, now: Time) -> bool {
        let count = &mut self.0[kind as usize];
        let is_due = count.is_due(now);
        if is_due {
            count.logged_at = Some(now);
        } else {
            count.left_out = count.left_out.saturating_add(1);
        }
        is_due
    }

    /// Logs how many lines were left out, once their second is over.
    pub fn tell_left_out(&mut self, now: Time) {
        for (kind, left_out) in self.take_left_out(now) {
            if kind.is_detail() {
                debug!("{left_out} more lines were not logged: {}", kind.in_words());
            } else {
                info!("{left_out} more lines were not logged: {}", kind.in_words());
            }
        }
    }

    fn take_left_out(&mut self, now: Time) -> impl Iterator<Item = (Kind, u64)> + '_ {
        let due =
            Kind::ALL.into_iter().zip(&mut self.0).filter(move |(_, count)| count.left_out > 0 && count.is_due(now));
        due.map(move |(kind, count)| {
            count.logged_at = Some(now);
            (kind, std::mem::take(&mut count.left_out))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_second_is_logged_of_each_kind_and_the_others_are_counted() {
        let (mut logs, at) = (Logs::default(), |millis: u64| Time::from_nanos(millis * 1_000_000));
        let logged = (0..2_500u64).filter(|millis| logs.may(Kind::Refused, at(*millis))).count();
        assert_eq!(logged, 3);
        assert!(logs.may(Kind::Cut, at(2_500)), "each kind has its own second");
        assert_eq!(logs.take_left_out(at(2_900)).count(), 0, "its second is not over");
        assert_eq!(logs.take_left_out(at(3_000)).collect::<Vec<_>>(), [(Kind::Refused, 2_497)]);
        assert_eq!(logs.take_left_out(at(5_000)).count(), 0, "they are told once");
        assert!(logs.may(Kind::Refused, at(5_000)));
    }
}
