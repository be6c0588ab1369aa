//! The checksum equals that of the other implementation and that of the standard, for every length and alignment.

use proptest::prelude::*;
use weft_crc::{crc32c, crc32c_by_folds, crc32c_everywhere, crc32c_in_lanes};

/// The state after one more byte, bit by bit, as the standard defines it.
fn next_state(state: u32, byte: &u8) -> u32 {
    let step = |state: u32, _| state >> 1 ^ if state & 1 != 0 { 0x82f6_3b78 } else { 0 };
    (0..8).fold(state ^ u32::from(*byte), step)
}

fn by_definition(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, next_state)
}

/// The checksums by every way that this processor has, not only by the one that is used.
fn by_all_ways(bytes: &[u8]) -> Vec<u32> {
    let here = [crc32c_in_lanes(bytes), crc32c_by_folds(bytes)];
    [crc32c(bytes), crc32c_everywhere(bytes)].into_iter().chain(here.into_iter().flatten()).collect()
}

#[test]
fn vectors_of_the_standard() {
    let ascending: Vec<u8> = (0..32).collect();
    let descending: Vec<u8> = (0..32).rev().collect();
    // RFC 3720, appendix B.4.
    let vectors: [(&[u8], u32); 6] = [
        (&[0; 32], 0x8a91_36aa),
        (&[0xff; 32], 0x62a8_ab43),
        (&ascending, 0x46dd_794e),
        (&descending, 0x113f_db5c),
        (b"123456789", 0xe306_9283),
        (b"", 0),
    ];
    for (bytes, expected) in vectors {
        assert_eq!(crc32c(bytes), expected, "{bytes:x?}");
        assert_eq!(by_definition(bytes), expected, "{bytes:x?}");
    }
}

#[test]
fn every_length_and_alignment_up_to_four_blocks() {
    let bytes: Vec<u8> = (0..1100u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for len in 0..=1030 {
        for from in [0, 1, 7, 31, 63] {
            let part = &bytes[from..from + len];
            let expected = by_definition(part);
            assert!(by_all_ways(part).iter().all(|sum| *sum == expected), "{len} bytes from {from}");
        }
    }
}

#[test]
fn every_length_of_a_packet() {
    let bytes: Vec<u8> = (0..10_007u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    for from in 0..7 {
        let mut state = u32::MAX;
        for len in 0..=10_000 {
            let ways = by_all_ways(&bytes[from..from + len]);
            assert!(ways.iter().all(|sum| *sum == !state), "{len} bytes from {from}: {ways:x?}, not {:x}", !state);
            state = next_state(state, &bytes[from + len]);
        }
    }
}

proptest! {
    #[test]
    fn all_contents(bytes in proptest::collection::vec(any::<u8>(), 0..9000), from in 0usize..64) {
        let part = &bytes[from.min(bytes.len())..];
        let expected = by_definition(part);
        prop_assert!(by_all_ways(part).iter().all(|sum| *sum == expected));
    }

    #[test]
    fn all_long_contents(bytes in proptest::collection::vec(any::<u8>(), 9000..70_000)) {
        let expected = by_definition(&bytes);
        prop_assert!(by_all_ways(&bytes).iter().all(|sum| *sum == expected));
    }
}

#[test]
fn a_changed_bit_changes_the_checksum() {
    let mut bytes = vec![7; 64 << 10];
    let before = crc32c(&bytes);
    for bit in (0..bytes.len() * 8).step_by(997) {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(crc32c(&bytes), before, "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    assert_eq!(crc32c(&bytes), before);
}

/// Shows in a run which way it tested.
#[test]
#[cfg(target_arch = "x86_64")]
fn the_wide_way_is_taken_where_there_is_one() {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").expect("Linux has it");
    let has = |flag: &str| cpus.split_whitespace().any(|word| word == flag);
    let should_be = has("vpclmulqdq") && has("avx2") && !has("avx512vl");
    for (way, runs) in [("in lanes", crc32c_in_lanes(&[]).is_some()), ("by folds", crc32c_by_folds(&[]).is_some())] {
        println!("{way}: {}", if runs { "tested" } else { "LEFT OUT: this processor or compiler does not have it" });
    }
    if should_be && !weft_crc::is_wide() {
        eprintln!("LEFT OUT: folding with 256 bits: this compiler is older than Rust 1.89");
    }
    assert!(should_be || !weft_crc::is_wide());
}
