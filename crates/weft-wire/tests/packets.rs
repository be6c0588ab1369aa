//! Packets and frames: golden bytes, which `docs/design/wire.md` quotes, and decoders of any bytes.

use proptest::prelude::*;
use weft_wire::frame::{
    records_header, stream_bytes, BITMAP_MOST, FRAME_HEADER, HELLO_FRAME, RECORDS_HEADER, RECORD_MOST,
};
use weft_wire::frame::{
    Accept, Cookie, Frame, FrameError, Frames, Hello, Pause, PauseReason, Piece, Rest, Side, StreamId, Terms, Writer,
};
use weft_wire::packet::{
    checksum_of, end_of_partly_covered, receiver_of, reseal, ChannelId, Header, Integrity, Packet, PacketError,
    PacketKind, Reflected, Shift,
};
use weft_wire::packet::{AUTHENTICATOR, HEADER, PACKET_LEAST, PACKET_VERSION, RECORD_COVERED, SPAN};
use weft_wire::{Epoch, Reason, MAX_ARGS, MAX_PAYLOAD};

const TERMS: Terms = Terms { features: 0, window: 0x0004_0000, ack_delay: 1000, packet_most: 9000 };
const CALLER: Epoch = Epoch(0x0102_0304_0506_0708);
const CALLEE: Epoch = Epoch(0x1112_1314_1516_1718);
const NONCE: u64 = 0x2122_2324_2526_2728;
const COOKIE: Cookie = Cookie { generation: 7, value: 0x3132_3334_3536_3738 };
const STREAM: StreamId = StreamId(5);
const PAUSE: Pause = Pause { stream: STREAM, from: 0xfff0_0014, round: 4 };

fn header(kind: PacketKind) -> Header {
    let reflected = Some(Reflected { sent_at: 0x0001_2345, held: 250, lay: 120 });
    let header = Header::new(kind, ChannelId(0xa1a2_a3a4), ChannelId(0xb1b2_b3b4));
    Header { number: 0xffff_d8f1, behind: 3, sent_at: 0x0001_86a0, reflected, acked: Some(0xffff_d8f4), ..header }
}

fn hello(cookie: Option<Cookie>) -> Frame<'static> {
    Frame::Hello(Hello { caller: CALLER, callee: CALLEE, nonce: NONCE, cookie, terms: TERMS })
}

/// Every frame, with its golden bytes.
fn golden_frames() -> Vec<(Frame<'static>, &'static str)> {
    let zeros = "00".repeat(36);
    let hello_bytes = |detail: &str, cookie: &str| -> &'static str {
        let text = format!(
            "05{detail}5400 0807060504030201 1817161514131211 2827262524232221 {cookie} 00000000 00000400 e803 2823 {zeros}"
        );
        Box::leak(text.into_boxed_str())
    };
    let accept = Accept { nonce: NONCE, caller: CALLER, callee: CALLEE, terms: TERMS };
    vec![
        (Frame::Records { stream: STREAM, offset: 0xfff0_0000, bytes: b"weft" }, "01000c00 05000000 0000f0ff 77656674"),
        (Frame::Acks { bitmap: &[0b0000_0110, 0b1] }, "02000200 0601"),
        (
            Frame::Taken { stream: STREAM, taken: 0xfff0_0014, limit: 0xfff4_0014 },
            "03000c00 05000000 1400f0ff 1400f4ff",
        ),
        (
            Frame::Nack { stream: STREAM, taken: 20, touched: 40, reason: Reason::NoSuchEndpoint },
            "04020c00 05000000 14000000 28000000",
        ),
        (hello(None), hello_bytes("00", "0000000000000000 00000000")),
        (hello(Some(COOKIE)), hello_bytes("01", "3837363534333231 07000000")),
        (Frame::Cookie { nonce: NONCE, cookie: COOKIE }, "06001400 2827262524232221 3837363534333231 07000000"),
        (
            Frame::Accept(accept),
            "07002400 2827262524232221 0807060504030201 1817161514131211 00000000 00000400 e803 2823",
        ),
        (Frame::Refuse { nonce: NONCE, reason: Reason::WrongEpoch }, "080c0800 2827262524232221"),
        (Frame::Reset { epoch: CALLEE }, "09000800 1817161514131211"),
        (Frame::Ping, "0a000000"),
        (
            Frame::Unreliable(Piece { stream: STREAM, number: 6, at: 1400, total: 1404, bytes: b"weft" }),
            "0b001400 05000000 06000000 78050000 7c050000 77656674",
        ),
        (Frame::Rest(Rest { stream: STREAM, sent: 0xfff0_0014, taken: 40 }), "0c000c00 05000000 1400f0ff 28000000"),
        (Frame::Rested { stream: STREAM }, "0d000400 05000000"),
        (Frame::Stay(Rest { stream: STREAM, sent: 0xfff0_0014, taken: 40 }), "0e000c00 05000000 1400f0ff 28000000"),
        (Frame::End { reason: Reason::PeerLost }, "0f050000"),
        (
            Frame::Pause { pause: Pause { round: 3, ..PAUSE }, reason: PauseReason::QueueFull },
            "10020c00 05000000 1400f0ff 03000000",
        ),
        (Frame::Resume(PAUSE), "11000c00 05000000 1400f0ff 04000000"),
        (Frame::Share { bytes: 0x1234_5678 }, "12000400 78563412"),
        (Frame::Padding { bytes: 5 }, "0000000000"),
    ]
}

const GOLDEN_PACKET: &str = "\
    6f978854 03 03 0300 a4a3a2a1 b4b3b2b1 f1d8ffff 0300 fa00 a0860100 45230100 f4d8ffff 0000 7800 \
    01000c00 05000000 0000f0ff 77656674 0a000000";

/// A packet whose checksum covers its first 52 bytes.
const GOLDEN_PARTLY_COVERED: &str = "\
    0f84ddd8 03 03 1300 a4a3a2a1 b4b3b2b1 f1d8ffff 0300 fa00 a0860100 45230100 f4d8ffff 3400 7800 \
    01000c00 05000000 0000f0ff 77656674";

/// `GOLDEN_PACKET` in version 1.
const GOLDEN_PACKET_V1: &str = "\
    6e5af16d 01 03 0300 a4a3a2a1 b4b3b2b1 f1d8ffff 0300 fa00 a0860100 45230100 f4d8ffff 0000 7800 \
    01000c00 05000000 0000f0ff 77656674 0a000000";

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex")).collect()
}

fn packet_with(header: Header, frames: &[Frame<'_>]) -> Vec<u8> {
    let mut packet = vec![0xee; 9000];
    let mut writer = Writer::new(&mut packet);
    for frame in frames {
        assert!(writer.push(frame), "room");
    }
    let len = HEADER + 9000 - HEADER - writer.room();
    header.seal(writer.finish());
    packet.truncate(len);
    packet
}

fn golden_packet() -> Vec<u8> {
    let records = Frame::Records { stream: STREAM, offset: 0xfff0_0000, bytes: b"weft" };
    packet_with(header(PacketKind::Data), &[records, Frame::Ping])
}

#[test]
fn a_packet_is_the_golden_bytes_and_reads_back() {
    let packet = golden_packet();
    assert_eq!(packet, bytes_of(GOLDEN_PACKET), "{packet:02x?}");
    let read = Packet::decode(&packet).expect("own packet");
    assert_eq!((read.header, read.authenticator), (header(PacketKind::Data), None));
    assert_eq!(read.frames().count(), 2);
    assert_eq!(read.only_frame(), None);
    assert_eq!(receiver_of(&packet), Some(read.header.to));
}

/// `GOLDEN_PACKET` in version 2.
const GOLDEN_PACKET_V2: &str = "\
    974ac2ca 02 03 0300 a4a3a2a1 b4b3b2b1 f1d8ffff 0300 fa00 a0860100 45230100 f4d8ffff 0000 7800 \
    01000c00 05000000 0000f0ff 77656674 0a000000";

#[test]
fn packets_of_the_versions_before_are_refused() {
    for (packet, version) in [(GOLDEN_PACKET_V1, 1), (GOLDEN_PACKET_V2, 2)] {
        assert_eq!(Packet::decode(&bytes_of(packet)).map(|_| ()), Err(PacketError::Version(version)));
    }
}

#[test]
fn a_streams_number_is_its_side_its_place_and_its_life() {
    assert_eq!(STREAM, StreamId::new(Side::Answerer, 2, 0));
    for (side, place, life) in [(Side::Caller, 0, 0), (Side::Answerer, 8191, 1), (Side::Caller, 77, (1 << 18) - 1)] {
        let id = StreamId::new(side, place, life);
        assert_eq!((id.side(), id.place(), id.life()), (side, place as usize, life));
        let next = id.next_life();
        assert_eq!((next.side(), next.place(), next.life()), (side, place as usize, (life + 1) % (1 << 18)));
        assert!(next.is_after(id) && !id.is_after(next) && !id.is_after(id));
    }
}

#[test]
fn each_frame_is_its_golden_bytes_and_reads_back() {
    for (frame, golden) in golden_frames() {
        let packet = packet_with(header(PacketKind::Data), &[frame]);
        assert_eq!(packet[HEADER..], bytes_of(golden), "{frame:?}");
        assert_eq!(Packet::decode(&packet).expect("own packet").only_frame(), Some(frame));
    }
}

#[test]
fn the_document_quotes_the_golden_bytes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/design/wire.md");
    let document = std::fs::read_to_string(path).expect("docs/design/wire.md").replace(char::is_whitespace, "");
    let golden = golden_frames();
    for hex in golden.iter().map(|(_, hex)| *hex).chain([GOLDEN_PACKET, GOLDEN_PARTLY_COVERED]) {
        // The document has words in place of long runs of zeros.
        let hex = hex.replace(char::is_whitespace, "");
        let quoted = hex.strip_suffix(&"00".repeat(36)).unwrap_or(&hex);
        assert!(document.contains(quoted), "docs/design/wire.md lacks {quoted}");
    }
}

#[test]
fn a_records_header_is_what_the_writer_writes() {
    let mut packet = [0; 100];
    let mut writer = Writer::new(&mut packet);
    assert!(writer.push_records(STREAM, 0xfff0_0000, [b"we", b"ft"]));
    assert_eq!(writer.finish()[HEADER..HEADER + RECORDS_HEADER], records_header(STREAM, 0xfff0_0000, 4));
}

#[test]
fn no_answer_is_larger_than_a_hello() {
    let length = |frame| packet_with(header(PacketKind::Answer), &[frame]).len();
    let hello = length(hello(None));
    assert_eq!(hello, HEADER + HELLO_FRAME);
    assert!(hello <= PACKET_LEAST);
    for (frame, _) in golden_frames() {
        if matches!(frame, Frame::Cookie { .. } | Frame::Refuse { .. } | Frame::Reset { .. } | Frame::Accept(_)) {
            assert!(length(frame) <= hello);
        }
    }
}

#[test]
fn a_packet_cut_anywhere_is_an_error() {
    let packet = golden_packet();
    for cut in 0..packet.len() {
        let expected = if cut < HEADER { PacketError::Truncated(cut) } else { PacketError::Checksum };
        assert_eq!(Packet::decode(&packet[..cut]), Err(expected));
    }
}

#[test]
fn every_changed_bit_is_noticed() {
    let packet = golden_packet();
    for bit in 0..packet.len() * 8 {
        let mut changed = packet.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let expected = match bit / 8 {
            4 => PacketError::Version(changed[4]),
            _ => PacketError::Checksum,
        };
        assert_eq!(Packet::decode(&changed), Err(expected));
    }
}

/// The golden packet without its ping, whose checksum covers nothing of the record's bytes.
fn golden_partly_covered() -> Vec<u8> {
    let records = Frame::Records { stream: STREAM, offset: 0xfff0_0000, bytes: b"weft" };
    let mut packet = packet_with(header(PacketKind::Data), &[records]);
    header(PacketKind::Data).seal_partly(&mut packet, HEADER + RECORDS_HEADER);
    packet
}

#[test]
fn a_packet_that_is_covered_in_part_is_the_golden_bytes_and_reads_back() {
    let packet = golden_partly_covered();
    assert_eq!(packet, bytes_of(GOLDEN_PARTLY_COVERED), "{packet:02x?}");
    let read = Packet::decode_as(&packet, Integrity::Header).expect("own packet");
    assert_eq!((read.header, read.covered()), (header(PacketKind::Data), HEADER + RECORDS_HEADER));
    assert!(matches!(read.only_frame(), Some(Frame::Records { bytes: b"weft", .. })));
    let whole = golden_packet();
    let read = Packet::decode_as(&whole, Integrity::Header).expect("a whole one is one as well");
    assert_eq!(read.covered(), whole.len());
}

#[test]
fn of_what_is_covered_every_changed_bit_is_noticed_and_of_the_rest_none_but_by_who_has_not_agreed() {
    let packet = golden_partly_covered();
    assert_eq!(Packet::decode(&packet), Err(PacketError::Checksum));
    for bit in 0..packet.len() * 8 {
        let mut changed = packet.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let read = Packet::decode_as(&changed, Integrity::Header);
        assert_eq!(read.is_ok(), bit / 8 >= HEADER + RECORDS_HEADER, "bit {bit}: {read:?}");
        assert!(Packet::decode(&changed).is_err(), "bit {bit}");
    }
    for cut in 0..packet.len() {
        assert!(Packet::decode_as(&packet[..cut], Integrity::Header).is_err(), "cut at {cut}");
    }
    for behind in [&[0][..], &[10, 0, 0, 0], &[1; 40]] {
        let longer = [&packet, behind].concat();
        assert_eq!(Packet::decode_as(&longer, Integrity::Header), Err(PacketError::Checksum), "nothing may follow");
        assert_eq!(end_of_partly_covered(&longer), Some(packet.len()), "it says how long it is");
    }
}

#[test]
fn packets_without_data_headers_and_packets_with_a_key_must_be_covered_to_their_end() {
    let decode = |packet: &[u8]| Packet::decode_as(packet, Integrity::Header).map(|packet| packet.covered());
    let seal = |packet: &mut [u8], covered: usize| {
        let sum = checksum_of(packet.get(4..covered).unwrap_or_default());
        packet[..4].copy_from_slice(&sum.to_le_bytes());
    };
    for kind in [PacketKind::Call, PacketKind::Answer, PacketKind::Reset] {
        let mut packet = packet_with(header(kind), &[hello(None)]);
        header(kind).seal_partly(&mut packet, HEADER + 4);
        assert_eq!(decode(&packet), Err(PacketError::Checksum));
    }
    for covered in [0, 4, HEADER - 1, HEADER, HEADER + RECORDS_HEADER - 1, HEADER + RECORDS_HEADER + 4, 0xffff] {
        let mut packet = golden_partly_covered();
        packet[36..38].copy_from_slice(&(covered as u16).to_le_bytes());
        seal(&mut packet, covered);
        assert_eq!(decode(&packet), Err(PacketError::Checksum), "{covered} bytes");
    }
    let mut packet = golden_partly_covered();
    packet.extend([0; AUTHENTICATOR]);
    packet[6] |= 4;
    seal(&mut packet, HEADER + RECORDS_HEADER);
    assert_eq!(decode(&packet), Err(PacketError::Checksum));
    // Frames without records are covered to their end.
    let mut packet = packet_with(header(PacketKind::Data), &[hello(None)]);
    header(PacketKind::Data).seal_partly(&mut packet, HEADER + 60);
    assert_eq!(decode(&packet), Err(PacketError::Checksum));
    // A packet that is covered to its end is sealed as any other.
    let (mut whole, expected) = (golden_packet(), golden_packet());
    header(PacketKind::Data).seal_partly(&mut whole, expected.len());
    assert_eq!(whole, expected);
    assert!(RECORD_COVERED >= stream_bytes(MAX_ARGS, 0), "a record's header and arguments");
}

#[test]
fn what_no_weft_writes_in_a_header_is_an_error_each() {
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut packet = golden_packet();
        change(&mut packet);
        reseal(&mut packet);
        Packet::decode(&packet).map(|_| ()).expect_err("not a packet")
    };
    assert_eq!(changed(&|p| p[4] = 1), PacketError::Version(1));
    assert_eq!(changed(&|p| p[5] = 0), PacketError::Kind(0));
    assert_eq!(changed(&|p| p[5] = 5), PacketError::Kind(5));
    assert_eq!(changed(&|p| p[6] |= 32), PacketError::Reserved);
    assert_eq!(changed(&|p| p[7] |= 0x80), PacketError::Reserved);
    assert_eq!(changed(&|p| p[20..22].copy_from_slice(&SPAN.to_le_bytes())), PacketError::Behind(SPAN));
    // Announces an authenticator for which there is no room.
    assert_eq!(
        changed(&|p| {
            p.truncate(HEADER + AUTHENTICATOR - 1);
            p[6] |= 4;
        }),
        PacketError::Truncated(HEADER + AUTHENTICATOR - 1)
    );
}

#[test]
fn an_authenticator_is_kept_apart_from_the_frames() {
    let mut packet = packet_with(header(PacketKind::Data), &[]);
    packet.extend([9; AUTHENTICATOR]);
    packet.extend([10, 0, 0, 0]);
    packet[6] |= 4;
    reseal(&mut packet);
    let read = Packet::decode(&packet).expect("a packet");
    assert_eq!(read.authenticator, Some(&[9; AUTHENTICATOR]));
    assert_eq!(read.only_frame(), Some(Frame::Ping));
}

#[test]
fn a_frame_of_the_wrong_size_or_type_is_an_error() {
    let only = |bytes: &[u8]| Frames::new(bytes).next().expect("not empty").expect_err("not a frame");
    assert_eq!(only(&[1]), FrameError::Truncated);
    assert_eq!(only(&[10, 0, 1, 0]), FrameError::Truncated);
    assert_eq!(only(&[19, 0, 0, 0]), FrameError::Type(19));
    assert_eq!(only(&[18, 0, 3, 0, 1, 1, 1]), FrameError::Length { kind: 18, bytes: 3 });
    assert_eq!(only(&[11, 0, 0, 0]), FrameError::Length { kind: 11, bytes: 0 });
    let piece = |at: u8, total: [u8; 3]| {
        let [low, middle, high] = total;
        [11, 0, 18, 0, 1, 0, 0, 0, 0, 0, 0, 0, at, 0, 0, 0, low, middle, high, 0, 7, 7]
    };
    assert!(Frames::new(&piece(6, [8, 0, 0])).next().expect("one").is_ok());
    assert_eq!(only(&piece(7, [8, 0, 0])), FrameError::Reach);
    let [low, middle, high, _] = (RECORD_MOST as u32 + 1).to_le_bytes();
    assert_eq!(only(&piece(6, [low, middle, high])), FrameError::Reach);
    assert_eq!(only(&[10, 0, 1, 0, 0]), FrameError::Length { kind: 10, bytes: 1 });
    assert_eq!(only(&[1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0]), FrameError::Length { kind: 1, bytes: 8 });
    assert_eq!(only(&[2, 0, 0, 0]), FrameError::Length { kind: 2, bytes: 0 });
    assert_eq!(only(&[10, 1, 0, 0]), FrameError::Reserved);
    let pause = |reason| [16, reason, 12, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
    assert_eq!([0, 4].map(|reason| only(&pause(reason))), [0, 4].map(FrameError::Reason));
    assert_eq!(only(&[8, 99, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0]), FrameError::Reason(99));
    let mut long = vec![2, 0, BITMAP_MOST as u8 + 1, 0];
    long.extend([1; BITMAP_MOST + 1]);
    assert_eq!(only(&long), FrameError::Length { kind: 2, bytes: BITMAP_MOST as u16 + 1 });
    // The first error ends a packet's frames.
    let mut frames = Frames::new(&[19, 0, 0, 0, 10, 0, 0, 0]);
    assert_eq!((frames.next(), frames.next()), (Some(Err(FrameError::Type(19))), None));
}

#[test]
fn padding_is_zeros_to_the_end_of_the_packet_and_nothing_else() {
    for zeros in 1..10 {
        let mut bytes = vec![10, 0, 0, 0];
        bytes.resize(4 + zeros, 0);
        let frames: Vec<_> = Frames::new(&bytes).collect();
        assert_eq!(frames, [Ok(Frame::Ping), Ok(Frame::Padding { bytes: zeros })]);
        for at in 5..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] = 1;
            let frames: Vec<_> = Frames::new(&bytes).collect();
            assert_eq!(frames, [Ok(Frame::Ping), Err(FrameError::Reserved)]);
        }
    }
    let mut packet = [0xee; 60];
    let mut writer = Writer::new(&mut packet);
    assert!(writer.push(&Frame::Ping) && !writer.push(&Frame::Padding { bytes: 17 }));
    writer.fill();
    assert_eq!((writer.room(), &writer.finish()[HEADER + FRAME_HEADER..]), (0, &[0; 16][..]));
}

#[test]
fn a_writer_without_room_changes_nothing() {
    let mut packet = vec![0; HEADER + FRAME_HEADER + 8];
    let mut writer = Writer::new(&mut packet);
    assert!(!writer.push(&Frame::Acks { bitmap: &[1; 9] }));
    assert!(writer.is_empty() && writer.push(&Frame::Acks { bitmap: &[1; 8] }));
    assert_eq!((writer.room(), writer.push(&Frame::Ping)), (0, false));
}

#[test]
fn the_largest_record_has_all_arguments_and_all_payload() {
    assert_eq!(RECORD_MOST, 16 + 64 + 65_536);
    assert_eq!(stream_bytes(MAX_ARGS, MAX_PAYLOAD), RECORD_MOST);
}

fn any_header() -> impl Strategy<Value = Header> {
    let kinds =
        prop_oneof![Just(PacketKind::Call), Just(PacketKind::Answer), Just(PacketKind::Data), Just(PacketKind::Reset)];
    let ids = (any::<u32>(), any::<u32>());
    let reflected = proptest::option::of((any::<u32>(), any::<u16>(), any::<u16>()));
    let acked = proptest::option::of(any::<u32>());
    (kinds, ids, any::<u32>(), 0..SPAN, any::<u32>(), reflected, acked, any::<bool>(), any::<u16>()).prop_map(
        |(kind, (to, from), number, behind, sent_at, reflected, acked, hurries, key)| Header {
            kind,
            to: ChannelId(to),
            from: ChannelId(from),
            number,
            behind,
            sent_at,
            reflected: reflected.map(|(sent_at, held, lay)| Reflected { sent_at, held, lay }),
            acked,
            hurries,
            key,
        },
    )
}

fn no_files(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(no_files(2000))]

    #[test]
    fn any_header_reads_back(header in any_header()) {
        let packet = packet_with(header, &[Frame::Ping]);
        prop_assert_eq!(Packet::decode(&packet).map(|p| p.header), Ok(header));
    }

    #[test]
    fn a_checksum_of_two_pieces_is_that_of_the_whole(
        header in any_header(),
        ahead in proptest::collection::vec(any::<u8>(), 0..40),
        last in proptest::collection::vec(any::<u8>(), 0..3000),
    ) {
        let mut whole = [&[0; HEADER][..], &ahead, &last].concat();
        let mut summed = whole.clone();
        header.seal(&mut whole);
        header.seal_summed(&mut summed, checksum_of(&last), &Shift::new(last.len()));
        prop_assert_eq!(whole, summed);
    }

    #[test]
    fn any_bytes_are_a_packet_or_an_error(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        is_sealed: bool,
        is_partly: bool,
    ) {
        if is_sealed && bytes.len() >= HEADER {
            bytes[4] = PACKET_VERSION;
            bytes[5] = 1 + bytes[5] % 4;
            bytes[6] &= 7;
            bytes[7] = 0;
            bytes[21] &= 3;
            reseal(&mut bytes);
            let is_short = bytes[6] & 4 != 0 && bytes.len() < HEADER + AUTHENTICATOR;
            prop_assert_eq!(Packet::decode(&bytes).is_err(), is_short);
        }
        if is_partly && bytes.len() >= HEADER {
            if let Some([kind, detail, low, high]) = bytes.get(HEADER..).and_then(|frames| frames.first_chunk()) {
                let length = bytes.len() - HEADER - FRAME_HEADER;
                let frame = [[1, 11][usize::from(*kind % 2)], 0, length as u8, 0];
                if [detail, low, high].iter().any(|b| **b % 8 != 0) {
                    bytes[HEADER..HEADER + FRAME_HEADER].copy_from_slice(&frame);
                }
            }
            let covered = usize::from(bytes[36]).clamp(4, bytes.len());
            (bytes[4], bytes[5], bytes[6]) = (PACKET_VERSION, PacketKind::Data as u8, bytes[6] & 11 | 16);
            (bytes[7], bytes[21]) = (0, bytes[21] & 3);
            bytes[36..38].copy_from_slice(&(covered as u16).to_le_bytes());
            let sum = checksum_of(&bytes[4..covered]);
            bytes[..4].copy_from_slice(&sum.to_le_bytes());
            let is_one = end_of_partly_covered(&bytes) == Some(bytes.len());
            prop_assert_eq!(Packet::decode_as(&bytes, Integrity::Header).is_ok(), is_one);
        }
        if let Ok(packet) = Packet::decode_as(&bytes, Integrity::Header) {
            let frames: Vec<_> = packet.frames().collect();
            prop_assert!(frames.iter().rev().skip(1).all(Result::is_ok));
        }
    }

    #[test]
    fn any_frames_read_back_or_are_an_error(
        kind in 1u8..12,
        detail in prop_oneof![4 => Just(0u8), 1 => any::<u8>()],
        body in proptest::collection::vec(any::<u8>(), 0..160),
        rest in proptest::collection::vec(any::<u8>(), 0..20),
        fits: bool,
    ) {
        let size = [0, 12, 2, 12, 12, 84, 20, 36, 8, 8, 0, 0][usize::from(kind)];
        let mut body = body;
        if fits {
            body.resize(size, 0);
        }
        let mut bytes = vec![kind, detail, body.len() as u8, 0];
        bytes.extend(&body);
        let alone = bytes.clone();
        bytes.extend(rest);
        if let Some(Ok(frame)) = Frames::new(&bytes).next() {
            let packet = packet_with(header(PacketKind::Data), &[frame]);
            prop_assert_eq!(&packet[HEADER..], &alone[..]);
        }
        for cut in 1..alone.len() {
            let first = Frames::new(&alone[..cut]).next();
            prop_assert_eq!(first, Some(Err(FrameError::Truncated)));
        }
    }
}
