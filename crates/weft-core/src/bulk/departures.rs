//! The transfers that wait to be sent to a destination, and the turns of destinations.

use super::Piece;
use crate::message::SendError;
use crate::state::State;
use std::collections::VecDeque;
use weft_wire::path::Tx;

/// Bytes that are sent to a destination before others have their turn.
pub(super) const TURN: usize = 1 << 20;

/// The minimum number of bytes that a piece counts for: a message takes a line, however few bytes it carries.
const LEAST: usize = 64;

/// The rest of a destination's turn.
#[derive(Debug)]
pub struct Turn {
    left: usize,
}

impl Default for Turn {
    fn default() -> Turn {
        Turn { left: TURN }
    }
}

/// Destinations that used up their turn and have more to send.
#[derive(Debug, Default)]
pub struct Turns {
    waiting: Vec<u32>,
}

impl Turns {
    /// A destination has [used up its turn](Step::TurnIsOver). It has another one when the client is told to
    /// [go on](crate::Client::go_on).
    pub fn come_again<T: Tx>(&mut self, state: &mut State<T>, destination: u32) {
        self.waiting.push(destination);
        state.come_again();
    }

    /// Takes the destinations that have another turn now. For each of them the client calls [`Departures::begin_turn`].
    pub fn take(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.waiting)
    }
}

/// How far [`Departures::send`] got.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "what has left, or never will, is no longer among the departures"]
pub enum Step<J> {
    /// The last piece of a transfer has left. There may be more to send.
    Left(J),
    /// A transfer cannot be sent any further. There may be more to send.
    Never(J, SendError),
    /// There is nothing to send, or no room, or the turn is over and the client knows. The client is told of room and
    /// of its next turn.
    Stopped,
    /// The turn is over, and there is more to send: see [`Turns::come_again`].
    TurnIsOver,
}

/// A transfer that has not left completely.
#[derive(Debug)]
struct Departure<J> {
    of: J,
    len: usize,
    next: Piece,
}

/// The transfers to one destination that have not left completely, in the order in which they were posted. All pieces
/// of a transfer leave before the first one of the next.
#[derive(Debug)]
pub struct Departures<J> {
    waiting: VecDeque<Departure<J>>,
    /// The last send found no room: a can-send event follows.
    is_full: bool,
    /// The destination is one of those that [wait for their turn](Turns).
    awaits_turn: bool,
}

impl<J> Default for Departures<J> {
    fn default() -> Departures<J> {
        Departures { waiting: VecDeque::new(), is_full: false, awaits_turn: false }
    }
}

impl<J> Departures<J> {
    /// Queues a transfer of `len` bytes behind the others. Sends nothing yet.
    pub fn post(&mut self, of: J, len: usize) {
        self.waiting.push_back(Departure { of, len, next: Piece::numbered(0, len) });
    }

    /// Queues a transfer before the first one that `is_later` selects. None of the selected may have begun. Sends nothing yet.
    pub fn post_before(&mut self, of: J, len: usize, is_later: impl Fn(&J) -> bool) {
        let at = self.waiting.iter().position(|other| is_later(&other.of)).unwrap_or(self.waiting.len());
        self.waiting.insert(at, Departure { of, len, next: Piece::numbered(0, len) });
    }

    /// Whether the first transfer has at least `bytes` bytes and none has left.
    #[inline(always)]
    pub fn begins_with(&self, bytes: usize) -> bool {
        self.waiting.front().is_some_and(|first| first.len >= bytes && first.next.at == 0)
    }

    /// Sends pieces by `send` until a transfer has left as a whole, or until it stops.
    pub fn send(&mut self, turn: &mut Turn, mut send: impl FnMut(&J, Piece) -> Result<(), SendError>) -> Step<J> {
        if self.is_full || self.awaits_turn {
            return Step::Stopped;
        }
        while let Some(first) = self.waiting.front_mut() {
            if turn.left == 0 {
                self.awaits_turn = true;
                return Step::TurnIsOver;
            }
            let piece = first.next;
            let sent = send(&first.of, piece);
            if let Err(SendError::Full | SendError::TimedOut) = sent {
                self.is_full = true;
                break;
            }
            turn.left = turn.left.saturating_sub(piece.len.max(LEAST));
            first.next = piece.following(first.len);
            if piece.is_last || sent.is_err() {
                let Some(Departure { of, .. }) = self.waiting.pop_front() else { break };
                return match sent {
                    Ok(()) => Step::Left(of),
                    Err(error) => Step::Never(of, error),
                };
            }
        }
        Step::Stopped
    }

    /// Notes that a message to the destination found no room, so that pieces are not tried until there is room.
    #[inline(always)]
    pub fn set_full(&mut self) {
        self.is_full = true;
    }

    /// Notes that there may be room again, because a can-send event arrived.
    pub fn on_room(&mut self) {
        self.is_full = false;
    }

    /// The destination has its turn again.
    pub fn begin_turn(&mut self) {
        self.awaits_turn = false;
    }

    /// Removes the first transfer if `is_it` selects it: nothing more of it is sent. Only of the first transfer pieces
    /// can have left.
    pub fn withdraw_first(&mut self, is_it: impl FnOnce(&J) -> bool) -> Option<J> {
        let is_it = self.waiting.front().is_some_and(|first| is_it(&first.of));
        if is_it {
            self.waiting.pop_front().map(|first| first.of)
        } else {
            None
        }
    }

    /// Removes all transfers that `is_one` selects, in order. The others go on where they were.
    pub fn withdraw(&mut self, is_one: impl Fn(&J) -> bool) -> Vec<J> {
        let (withdrawn, kept): (VecDeque<_>, _) =
            std::mem::take(&mut self.waiting).into_iter().partition(|departure| is_one(&departure.of));
        self.waiting = kept;
        withdrawn.into_iter().map(|departure| departure.of).collect()
    }

    /// Whether the last send found no room.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Whether nothing waits.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many transfers wait.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The transfers that have not left completely, in order.
    pub fn iter(&self) -> impl Iterator<Item = &J> {
        self.waiting.iter().map(|departure| &departure.of)
    }
}
