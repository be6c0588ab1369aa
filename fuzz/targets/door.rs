//! Strangers at the door: it sends no more than it receives, and admits only a peer with the cookie.
#![no_main]

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use weft_fuzz::{sealed, Input};
use weft_transport::{Answer, Door, Time};
use weft_wire::frame::{Frame, Hello, Writer};
use weft_wire::packet::{reseal, ChannelId, Header, Packet, PacketKind, HEADER};
use weft_wire::Epoch;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let Some(how) = input.byte() else { return };
    let door = Door::new(Epoch(0x1112_1314_1516_1718), secret_of(data));
    let now = Time::from_micros(u64::from(how) * 1_000_000);
    let packet = match how & 1 {
        // Everything that a call may contain.
        0 => sealed(Header::new(PacketKind::Call, ChannelId::NOBODY, ChannelId(u32::from(how))), input.0),
        _ => {
            let mut packet = input.0.to_vec();
            if packet.len() >= HEADER {
                reseal(&mut packet);
            }
            packet
        }
    };
    let Answer::Reply(reply) = answer(&door, now, &packet) else { return };
    let reply = Packet::decode(reply.bytes()).expect("a packet");
    let Some(Frame::Cookie { cookie, .. }) = reply.only_frame() else { return };
    let call = Packet::decode(&packet).expect("what was answered");
    let Some(Frame::Hello(hello)) = call.only_frame() else { panic!("a cookie for what is no call") };
    let mut again = [0; 200];
    let mut writer = Writer::new(&mut again);
    assert!(writer.push(&Frame::Hello(Hello { cookie: Some(cookie), ..hello })));
    let again = writer.finish();
    call.header.seal(again);
    let Answer::Admit(caller) = door.answer(now, &[1], again) else { panic!("the cookie is not good") };
    assert_eq!((caller.epoch, caller.id), (hello.caller, call.header.from));
    assert!(!matches!(door.answer(now, &[2], again), Answer::Admit(_)), "admitted from another address");
    door.refuse(&caller, weft_wire::Reason::NoRoom);
});

/// Another secret for each input. The fuzzer reads the operands of comparisons, and so learns the cookie that the door expects. An input
/// with that cookie then meets a door with another secret.
fn secret_of(data: &[u8]) -> [u64; 2] {
    [0u8, 1].map(|half| {
        let mut hash = DefaultHasher::new();
        hash.write(&[half]);
        hash.write(data);
        hash.finish()
    })
}

fn answer(door: &Door, now: Time, packet: &[u8]) -> Answer {
    let answer = door.answer(now, &[1], packet);
    match &answer {
        Answer::Reply(reply) => assert!(reply.bytes().len() <= packet.len()),
        Answer::Admit(_) => panic!("a guessed cookie"),
        Answer::Drop => {}
    }
    answer
}
