//! The two words of a record's header.
#![no_main]

use weft_wire::record::{lines, LINE};
use weft_wire::{Head, HeadWords, Kind, MAX_ARGS, MAX_PAYLOAD};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((words, _)) = data.split_first_chunk::<16>() else { return };
    let word = |at: usize| u64::from_le_bytes(words[at..at + 8].try_into().expect("eight bytes"));
    let words = [word(0), word(8)];
    let checked = HeadWords::check(words);
    assert_eq!(checked.ok().map(HeadWords::head), Head::unpack(words).ok());
    if let Ok(head) = checked {
        assert!(head.args() <= MAX_ARGS && head.len() <= MAX_PAYLOAD);
        assert_eq!(head.head().pack(), words);
        assert_eq!(head.lines(), lines(head.args(), head.len()));
        assert!((head.payload_at() + head.len()).div_ceil(LINE) <= head.lines() as usize);
    }
    let is_short = |h: &HeadWords| h.lines() == 1 && !h.is(Kind::Pad) && !h.is(Kind::Switch);
    assert_eq!(HeadWords::of_one_line(words).map(HeadWords::head), checked.ok().filter(is_short).map(HeadWords::head));
});
