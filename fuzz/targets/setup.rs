//! Messages of the set-up socket, and the arguments and payloads of `Open` records.
#![no_main]

use weft_wire::proof::Side;
use weft_wire::setup::{Message, Open, OPEN_ARGS};
use weft_wire::Key;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(message) = Message::from_bytes(data) {
        let bytes = message.to_bytes();
        let again = Message::from_bytes(&bytes).expect("what was written reads back");
        assert_eq!(again.to_bytes(), bytes);
        if let (Message::Hello(said, _), Message::Hello(heard, _)) = (message, again) {
            let [proof, same] = [said, heard].map(|hello| hello.proof(Key(1), Side::Caller));
            assert!(proof.matches(same), "a proof is of what the other side heard");
        }
    }
    // The arguments, and behind them the payload.
    let (args, payload) = data.split_at(data.len().min(OPEN_ARGS * 4));
    let args: Vec<u32> = args.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    if let Some(open) = Open::from_record(&args, payload) {
        assert_eq!(open.to_args()[..], args);
        assert_eq!(open.source_epoch.map(|epoch| epoch.0.to_le_bytes()), payload.try_into().ok());
    }
});
