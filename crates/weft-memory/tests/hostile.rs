//! A hostile peer that sends arbitrary messages to an owner of regions. The fuzzer does the same for longer: `fuzz/targets/memory.rs`.

use proptest::prelude::*;
use weft_memory::testing::attack;

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_peer_says_it_reaches_no_byte_that_it_may_not_reach(input in proptest::collection::vec(any::<u8>(), 0..600)) {
        attack(&input);
    }
}
