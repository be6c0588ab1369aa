//! The words of tagged messages: an operation and its arguments.
#![no_main]

use weft_wire::tagged::Word;
use weft_wire::MAX_ARGS;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&op, args)) = data.split_first() else { return };
    let args = args.chunks_exact(4).take(MAX_ARGS).map(|arg| u32::from_le_bytes(arg.try_into().expect("four bytes")));
    let args: Vec<u32> = args.collect();
    if let Some(word) = Word::unpack(op, &args) {
        let packed = word.pack();
        assert_eq!((packed.op, packed.args()), (op, &args[..]));
    }
});
