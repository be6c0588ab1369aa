//! Remote memory: an operation and its arguments, and sequences of them at an owner.
#![no_main]

use weft_wire::memory::Word;
use weft_wire::MAX_ARGS;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&op, rest)) = data.split_first() else { return };
    let args = rest.chunks_exact(4).take(MAX_ARGS).map(|arg| u32::from_le_bytes(arg.try_into().expect("four bytes")));
    let args: Vec<u32> = args.collect();
    if let Some(word) = Word::unpack(op, &args) {
        let packed = word.pack();
        assert_eq!((packed.op, packed.args()), (op, &args[..]));
    }
    weft_memory::testing::attack(data);
});
