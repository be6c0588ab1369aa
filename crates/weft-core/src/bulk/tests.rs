//! Transfers from their departure to their end, with a receiver in the test's memory.

use super::departures::TURN;
use super::{Announced, Demand, Departures, Failure, Piece, Placement, Step, Sum, Turn, PIECE};
use crate::message::SendError;
use proptest::prelude::*;
use weft_wire::{Certainty, Reason};

/// What goes wrong between the two sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// The second piece is lost.
    Lost,
    /// It arrives twice.
    Repeated,
    /// It arrives after the third one.
    Late,
}

/// The contents of a transfer, which differ from byte to byte and from transfer to transfer.
fn contents(transfer: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251 + at / PIECE * 7 + transfer * 13) as u8).collect()
}

/// Posts transfers of these lengths and sends them to a receiver. `rooms` says how many pieces find room at a time.
/// Returns the first error found.
fn check(lens: &[usize], rooms: &[usize], fault: Fault) -> Result<(), String> {
    let mut departures = Departures::default();
    lens.iter().enumerate().for_each(|(transfer, &len)| departures.post(transfer, len));
    let mut arriving: Vec<(usize, Piece)> = Vec::new();
    let (mut left, mut rooms) = (Vec::new(), rooms.iter().copied().chain(std::iter::repeat(usize::MAX)));
    while !departures.is_empty() {
        let (mut turn, mut room, before) = (Turn::default(), rooms.next().unwrap_or(1), arriving.len());
        departures.begin_turn();
        departures.on_room();
        loop {
            let step = departures.send(&mut turn, |&transfer, piece| {
                room = room.checked_sub(1).ok_or(SendError::Full)?;
                arriving.push((transfer, piece));
                Ok(())
            });
            match step {
                Step::Left(transfer) => left.push(transfer),
                Step::Never(transfer, error) => return Err(format!("{transfer} ends with {error}")),
                Step::Stopped | Step::TurnIsOver => break,
            }
        }
        let bytes: usize = arriving[before..].iter().map(|(_, piece)| piece.len).sum();
        if bytes >= TURN + PIECE {
            return Err(format!("{bytes} bytes in one turn"));
        }
    }
    if left != (0..lens.len()).collect::<Vec<_>>() {
        return Err(format!("left in the order {left:?}"));
    }
    match fault {
        Fault::None => {}
        Fault::Lost => _ = arriving.remove(1),
        Fault::Repeated => arriving.insert(1, arriving[1]),
        Fault::Late => arriving.swap(1, 2),
    }
    receive(lens, &arriving)
}

/// Places what arrives. The pieces of a transfer carry its number and nothing else, like the messages of clients.
fn receive(lens: &[usize], arriving: &[(usize, Piece)]) -> Result<(), String> {
    let sent: Vec<_> = lens.iter().enumerate().map(|(transfer, &len)| contents(transfer, len)).collect();
    let mut placements: Vec<_> = lens.iter().map(|&len| (Placement::new(5, len as u64), vec![0; len + 10])).collect();
    for &(transfer, piece) in arriving.iter().filter(|(_, piece)| piece.len > 0) {
        let (placement, there) = &mut placements[transfer];
        let at = placement.next(piece.len).map_err(|reason| format!("a piece of {transfer}: {reason}"))? as usize;
        there[at..at + piece.len].copy_from_slice(&sent[transfer][piece.range()]);
    }
    for (transfer, ((placement, there), sent)) in placements.iter().zip(&sent).enumerate() {
        let (before, rest) = there.split_at(5);
        let (placed, behind) = rest.split_at(sent.len());
        if !placement.is_whole() || placed != sent || before != [0; 5] || behind != [0; 5] {
            return Err(format!("{transfer} is not as it was sent"));
        }
    }
    Ok(())
}

#[test]
fn the_checker_finds_pieces_that_are_lost_repeated_or_late() {
    let lens = [4 * PIECE + 1, 7];
    assert_eq!(check(&lens, &[], Fault::None), Ok(()));
    for fault in [Fault::Lost, Fault::Repeated, Fault::Late] {
        assert!(check(&lens, &[], fault).is_err(), "{fault:?}");
    }
}

#[test]
fn a_transfer_is_cut_into_whole_pieces_and_a_rest() {
    let lens = |of| Piece::all(of).map(|piece| (piece.at, piece.len, piece.is_last)).collect::<Vec<_>>();
    assert_eq!(lens(0), [(0, 0, true)], "one piece without bytes");
    assert_eq!(lens(PIECE), [(0, PIECE, true)]);
    assert_eq!(lens(2 * PIECE + 1), [(0, PIECE, false), (PIECE, PIECE, false), (2 * PIECE, 1, true)]);
    let piece = Piece::numbered(2, 2 * PIECE + 1);
    assert_eq!(Piece::all(2 * PIECE + 1).nth(2), Some(piece));
    assert_eq!(Piece::numbered(u32::MAX, PIECE).len, 0, "behind the end is nothing");
}

#[test]
fn a_turn_ends_after_a_mebibyte_and_another_one_goes_on() {
    let mut departures = Departures::default();
    departures.post((), TURN + 1);
    let mut turn = Turn::default();
    assert_eq!(departures.send(&mut turn, |(), _| Ok(())), Step::TurnIsOver);
    assert_eq!(departures.send(&mut Turn::default(), |(), _| Ok(())), Step::Stopped, "until it has another turn");
    departures.begin_turn();
    assert_eq!(departures.send(&mut turn, |(), _| Ok(())), Step::TurnIsOver, "this one is used up");
    departures.begin_turn();
    let rest = |(): &(), piece: Piece| if piece.len == 1 { Ok(()) } else { Err(SendError::TooLarge) };
    assert_eq!(departures.send(&mut Turn::default(), rest), Step::Left(()));
    assert_eq!(departures.send(&mut Turn::default(), |(), _| Ok(())), Step::Stopped);
}

#[test]
fn a_transfer_that_cannot_be_sent_gives_way_to_the_next() {
    let mut departures = Departures::default();
    (0..4).for_each(|transfer| departures.post(transfer, 2 * PIECE));
    let mut turn = Turn::default();
    let step = departures.send(&mut turn, |_, piece| if piece.at == 0 { Ok(()) } else { Err(SendError::NotMapped(3)) });
    assert_eq!(step, Step::Never(0, SendError::NotMapped(3)));
    assert_eq!(departures.withdraw_first(|&first| first == 2), None, "it is not the first");
    assert_eq!(departures.withdraw(|&transfer| transfer == 2), [2]);
    assert_eq!(departures.send(&mut turn, |_, _| Err(SendError::Full)), Step::Stopped);
    assert!(departures.is_full());
    assert_eq!(departures.send(&mut turn, |_, _| Ok(())), Step::Stopped, "until there is room");
    departures.on_room();
    assert_eq!(departures.send(&mut turn, |_, _| Ok(())), Step::Left(1));
    assert_eq!(departures.withdraw_first(|&first| first == 3), Some(3));
    assert!(departures.is_empty());
}

#[test]
fn a_piece_without_bytes_or_beyond_the_end_is_none() {
    let mut placement = Placement::new(u64::MAX - 3, 3);
    assert_eq!(placement.next(0), Err(Reason::Violation));
    assert_eq!(placement.next(4), Err(Reason::Violation));
    assert_eq!((placement.next(2), placement.next(1)), (Ok(u64::MAX - 3), Ok(u64::MAX - 1)));
    assert!(placement.is_whole());
    assert_eq!(placement.next(1), Err(Reason::Violation));
}

fn demand(number: u32, bytes: u64) -> Demand {
    Demand { number, into: number + 100, bytes }
}

#[test]
fn announced_contents_are_fetched_once() {
    let mut announced = Announced::new(1);
    assert_eq!(announced.add(7, "contents", 8), None);
    assert_eq!(announced.answer(demand(7, 9)), Err(Reason::Violation), "more than there is");
    assert!(announced.contains(7));
    assert_eq!(announced.answer(demand(7, 8)), Ok(Some(("contents", 8))));
    assert_eq!(announced.answer(demand(7, 8)), Ok(None), "it may be announced again");
    assert_eq!(announced.answer(demand(7, 8)), Err(Reason::Violation), "wanted twice");
    assert_eq!(announced.answer(demand(8, 0)), Err(Reason::Violation), "too many that are not here");
    assert_eq!(announced.add(7, "more", 4), Some(demand(7, 8)));
    assert_eq!(announced.answer(demand(8, 0)), Ok(None), "there is a place again");
}

#[test]
fn announced_contents_can_be_withdrawn() {
    let mut announced = Announced::new(0);
    for number in [3, 1, 2] {
        assert_eq!(announced.add(number, number * 10, 1), None);
    }
    assert_eq!(announced.withdraw(|&contents| contents != 20), [(1, 10), (3, 30)]);
    assert_eq!(announced.iter().collect::<Vec<_>>(), [&20]);
    assert_eq!(announced.answer(demand(1, 1)), Err(Reason::Violation));
    assert_eq!(announced.withdraw(|_| true), [(2, 20)]);
    assert!(announced.is_empty());
}

/// How a part ends: `None` if it is placed.
fn ends() -> impl Strategy<Value = Option<Failure>> {
    let reasons = prop_oneof![Just(Reason::Revoked), Just(Reason::PeerLost)];
    let certainties = prop_oneof![Just(Certainty::NotDelivered), Just(Certainty::Unknown)];
    let failure = (reasons, certainties).prop_map(|(reason, certainty)| Failure { reason, certainty });
    prop_oneof![2 => Just(None), 1 => failure.prop_map(Some)]
}

proptest! {
    #[test]
    fn transfers_of_any_length_arrive_as_they_were_sent(
        lens in proptest::collection::vec(prop_oneof![0..100usize, 0..5 * PIECE, 0..TURN + PIECE], 0..4),
        rooms in proptest::collection::vec(0..70usize, 0..20),
    ) {
        prop_assert_eq!(check(&lens, &rooms, Fault::None), Ok(()));
    }

    #[test]
    fn pieces_stay_within_their_room(at: u64, len: u64, pieces in proptest::collection::vec(any::<usize>(), 0..40)) {
        let len = len.min(u64::MAX - at);
        let mut placement = Placement::new(at, len);
        let mut next = at;
        for piece in pieces.into_iter().map(|piece| piece % (len as usize / 8).max(9)) {
            match placement.next(piece) {
                Ok(to) => {
                    prop_assert_eq!(to, next);
                    next += piece as u64;
                    prop_assert!(piece > 0 && next <= at + len);
                }
                Err(reason) => {
                    prop_assert_eq!(reason, Reason::Violation);
                    prop_assert!(piece == 0 || piece as u64 > at + len - next);
                }
            }
            prop_assert_eq!(placement.is_whole(), next == at + len);
        }
    }

    #[test]
    fn parts_sum_up_to_one_outcome(ends in proptest::collection::vec(ends(), 1..10), window in 1..5usize, of_all: bool) {
        let (mut sum, mut sent) = if of_all { (Sum::of(ends.len() as u32), ends.len()) } else { (Sum::default(), 0) };
        for (ended, end) in ends.iter().enumerate() {
            while !sum.has_failed() && sent < ends.len().min(ended + window) {
                sent += 1;
                sum.on_sent(sent == ends.len());
            }
            if ended == sent {
                break;
            }
            prop_assert!(sum.is_under_way());
            prop_assert_eq!(sum.outcome(), None);
            sum.on_end(end.map_or(Ok(()), Err));
        }
        let sent = &ends[..sent];
        let is_unknown = sent.iter().any(|end| end.is_none_or(|failure| failure.certainty == Certainty::Unknown));
        let certainty = if is_unknown { Certainty::Unknown } else { Certainty::NotDelivered };
        let first = sent.iter().flatten().next();
        let expected = first.map_or(Ok(()), |first| Err(Failure { reason: first.reason, certainty }));
        prop_assert_eq!(sum.outcome(), Some(expected));
    }
}
