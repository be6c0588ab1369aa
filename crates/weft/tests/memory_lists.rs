//! Operations on lists of buffers and of parts of a region through the public calls: each has one end, whatever happens to its
//! parts.

mod support;

use std::time::Instant;
use support::{contents, turn, Address, Dice, BOUND};
use weft::memory::{
    Completion, Memory, Outcome, Part, PostError, ReadList, RegionKey, Rights, Settings, Source, Target, Window,
    WriteList, LIST_MOST,
};
use weft::{Bundle, Certainty, Endpoint, Key, Node, Reason};

const KEY: RegionKey = RegionKey(7);
const BYTES: usize = 1 << 20;

/// Two bundles of one thread, of which the second owns a region of 1 MiB under [`KEY`].
struct Pair {
    bundles: [Bundle; 2],
    here: [Endpoint; 2],
    window: Window,
}

impl Pair {
    fn new(settings: Settings) -> Pair {
        let node = Node::new().expect("node");
        let mut bundles = [(); 2].map(|()| Bundle::new(&node).expect("bundle"));
        let mut endpoint = |n: usize| bundles[n].memory_endpoint(Key(9), settings).expect("endpoint");
        let here = [endpoint(0), endpoint(1)];
        let there = Address::of(&bundles[1], here[1]);
        bundles[0].map(here[0], 0, there.name, there.key).expect("map");
        let window = bundles[1].memory(here[1]).expect("ours").allocate(BYTES, KEY, Rights::ALL).expect("memory").1;
        Pair { bundles, here, window }
    }

    fn calls(&mut self, of: usize) -> Memory<'_> {
        self.bundles[of].memory(self.here[of]).expect("an endpoint for remote memory")
    }

    fn end(&mut self) -> Completion {
        let since = Instant::now();
        loop {
            if let Some(end) = self.calls(0).next_completion() {
                return end;
            }
            assert!(since.elapsed() < BOUND, "no completion");
            self.bundles.iter_mut().for_each(|bundle| _ = bundle.poll());
        }
    }

    fn all(&self) -> Vec<u8> {
        let mut all = vec![0; BYTES];
        assert!(self.window.read(0, &mut all));
        all
    }
}

/// Cuts a number of bytes into some pieces at random.
fn pieces(dice: &mut Dice, mut len: usize) -> Vec<usize> {
    let mut pieces = Vec::new();
    while len > 0 {
        let most = [1, 8, 100, 40_000][dice.below(4) as usize].min(len);
        pieces.push(if pieces.len() + 1 == LIST_MOST { len } else { dice.below(most as u64 + 1) as usize });
        len -= pieces.last().copied().unwrap_or(0);
    }
    pieces
}

#[test]
fn lists_are_written_and_read_as_one() {
    let _turn = turn("lists");
    let mut dice = Dice::fresh("lists");
    let mut pair = Pair::new(Settings::default());
    let mut expected = vec![0; BYTES];
    for round in 0..60 {
        let len = [0, 1, 24, 5000, 100_000, 300_000][dice.below(6) as usize];
        let bytes = contents(round, 0, len).1;
        let (mut at, mut parts) = (dice.below(100), Vec::new());
        for len in pieces(&mut dice, len) {
            parts.push(Part { at, len: len as u64 });
            at += len as u64 + dice.below(50);
        }
        let first = dice.below(parts.len() as u64 + 1) as usize;
        parts.rotate_left(first);
        let (mut rest, mut buffers) = (&bytes[..], Vec::new());
        for len in pieces(&mut dice, len) {
            buffers.push(rest[..len].to_vec());
            rest = &rest[len..];
        }
        let sources = buffers.iter().cloned().map(Source::from).collect();
        let list = WriteList::to(KEY, &parts).with_notice(round.into());
        pair.calls(0).try_write_list(0, list, sources, 5).expect("posted");
        let end = pair.end();
        assert_eq!((end.context, end.outcome), (5, Outcome::Done));
        assert!(end.buffers.expect("a list's").sources == buffers, "the buffers come back");
        assert_eq!(pair.calls(1).next_notice().map(|notice| notice.value), Some(round.into()));
        assert_eq!(pair.calls(1).next_notice(), None, "one notice for all of it");
        let mut rest = &bytes[..];
        for part in &parts {
            let (now, then) = rest.split_at(part.len as usize);
            expected[part.at as usize..][..now.len()].copy_from_slice(now);
            rest = then;
        }
        assert!(pair.all() == expected, "round {round}");
        let targets = buffers.iter().map(|buffer| Target::from(vec![0; buffer.len()])).collect();
        pair.calls(0).try_read_list(0, ReadList::from(KEY, &parts), targets, 6).expect("posted");
        let end = pair.end();
        assert_eq!((end.context, end.outcome), (6, Outcome::Done));
        assert!(end.buffers.expect("a list's").targets == buffers, "what is read is what was written");
        assert_eq!(pair.calls(0).pending(0), 0);
        assert!(pair.calls(0).next_completion().is_none(), "one end each");
    }
}

#[test]
fn a_list_of_which_one_part_is_refused_fails_as_a_whole_and_gives_no_notice() {
    let _turn = turn("refused lists");
    let mut pair = Pair::new(Settings::default());
    let outside = Part { at: BYTES as u64 - 1, len: 8 };
    let inside = |at| Part { at, len: 8 };
    let sources = |byte| (0..3).map(|_| Source::from(vec![byte; 8])).collect::<Vec<_>>();
    let failed = |certainty| Outcome::Failed { reason: Reason::OutsideRegion, certainty };
    // If the first part is refused, nothing was stored, or that is unknown. If the second or the last is refused, the first was
    // stored.
    for place in 0..3 {
        let mut parts = [inside(0), inside(100), inside(200)];
        parts[place] = outside;
        let list = WriteList::to(KEY, &parts).with_notice(1);
        pair.calls(0).try_write_list(0, list, sources(place as u8 + 1), 0).expect("posted");
        assert_eq!(pair.end().outcome, failed(Certainty::Unknown), "{place}");
        let targets = (0..3).map(|_| Target::from(vec![0; 8])).collect();
        pair.calls(0).try_read_list(0, ReadList::from(KEY, &parts), targets, 0).expect("posted");
        assert!(matches!(pair.end().outcome, Outcome::Failed { reason: Reason::OutsideRegion, .. }), "{place}");
    }
    let parts = [inside(0), inside(8), inside(16)];
    let list = WriteList::to(RegionKey(8), &parts).with_notice(2);
    pair.calls(0).try_write_list(0, list, sources(9), 0).expect("posted");
    let expected = Outcome::Failed { reason: Reason::NoRegion, certainty: Certainty::NotDelivered };
    assert_eq!(pair.end().outcome, expected);
    assert_eq!(pair.calls(1).next_notice(), None, "nothing was whole");
    let all = pair.all();
    assert!(all[200..208] == [0; 8] || all[200..208] == [1; 8] || all[200..208] == [2; 8]);
    assert!(pair.calls(0).next_completion().is_none() && pair.calls(0).pending(0) == 0);
    // Later operations are not affected.
    pair.calls(0).try_write_list(0, WriteList::to(KEY, &[inside(0); 3]), sources(7), 0).expect("posted");
    assert_eq!(pair.end().outcome, Outcome::Done);
}

#[test]
fn a_list_tells_once_when_all_of_its_buffers_are_free() {
    let _turn = turn("free lists");
    let mut pair = Pair::new(Settings::default());
    let parts = [Part { at: 0, len: 50_000 }, Part { at: 60_000, len: 50_000 }];
    let list = WriteList::to(KEY, &parts).telling_when_free();
    let sources = vec![Source::from(vec![1; 30_000]), Source::from(vec![2; 70_000])];
    pair.calls(0).try_write_list(0, list, sources, 3).expect("posted");
    let free = pair.end();
    assert_eq!((free.context, free.outcome), (3, Outcome::Free));
    assert_eq!(free.buffers.expect("a list's").sources, [vec![1; 30_000], vec![2; 70_000]]);
    let done = pair.end();
    assert_eq!((done.context, done.outcome), (3, Outcome::Done));
    assert!(done.buffers.expect("a list's").sources.is_empty());
}

#[test]
fn invalid_lists_fail_at_once_and_give_their_buffers_back() {
    let _turn = turn("lists that cannot be");
    let mut pair = Pair::new(Settings { operations_most: 3, ..Settings::default() });
    let part = Part { at: 0, len: 1 };
    let source = || Source::from(vec![1]);
    let too_many = vec![part; LIST_MOST + 1];
    for (parts, buffers) in [(&too_many[..], LIST_MOST + 1), (&[part][..], 2), (&[part; 2][..], 1)] {
        let sources = (0..buffers).map(|_| source()).collect();
        let refused = pair.calls(0).try_write_list(0, WriteList::to(KEY, parts), sources, 0).unwrap_err();
        assert_eq!((refused.0, refused.1.len()), (PostError::NoSuchList, buffers));
    }
    let refused = pair.calls(0).try_write_list(1, WriteList::to(KEY, &[part]), vec![source()], 0).unwrap_err();
    assert_eq!(refused.0, PostError::NotMapped(1));
    let parts = [part, part, part, part];
    let targets = || (0..4).map(|_| Target::from(vec![0])).collect::<Vec<_>>();
    let refused = pair.calls(0).try_read_list(0, ReadList::from(KEY, &parts), targets(), 0).unwrap_err();
    assert_eq!((refused.0, refused.1), (PostError::Full, targets()), "each piece counts");
    let sources = (0..3).map(|_| source()).collect();
    pair.calls(0).try_write_list(0, WriteList::to(KEY, &parts[..3]), sources, 0).expect("room for three");
    assert_eq!(pair.end().outcome, Outcome::Done);
}
