//! Packets and their frames, as they are and with the checksum corrected. Encoding a decoded frame gives the same bytes.
#![no_main]

use weft_wire::frame::Writer;
use weft_wire::packet::{receiver_of, reseal, Packet, HEADER};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    look(data);
    if data.len() >= HEADER {
        let mut packet = data.to_vec();
        reseal(&mut packet);
        look(&packet);
    }
});

fn look(bytes: &[u8]) {
    let Ok(packet) = Packet::decode(bytes) else { return };
    assert_eq!(receiver_of(bytes), Some(packet.header.to));
    let mut copy = vec![0; bytes.len()];
    let mut writer = Writer::new(&mut copy);
    let mut is_whole = packet.authenticator.is_none();
    for frame in packet.frames() {
        match frame {
            Ok(frame) => assert!(writer.push(&frame)),
            Err(_) => is_whole = false,
        }
    }
    let copy = writer.finish();
    if is_whole {
        packet.header.seal(copy);
        let again = Packet::decode(copy).expect("what was written reads back");
        assert_eq!((again.header, copy[HEADER..] == bytes[HEADER..]), (packet.header, true));
    }
}
