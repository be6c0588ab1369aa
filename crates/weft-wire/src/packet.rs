//! The packets between network interfaces of different hosts, and the header that every packet begins with.
//!
//! A packet is a header, then, if a flag says so, an authenticator, then frames ([`crate::frame`]). All fields are little-endian.
//! `docs/design/wire.md` has the tables.
//!
//! ```text
//!  0 checksum u32 | 4 version u8 | 5 kind u8 | 6 flags u16 | 8 to u32 | 12 from u32 | 16 number u32 | 20 behind u16
//! 22 held u16 | 24 sent_at u32 | 28 reflected u32 | 32 acked u32 | 36 key u16, or covered u16 | 38 lay u16
//! ```

use crate::frame::{self, Frame, Frames};
use crate::name::array;

/// Bytes of the header.
pub const HEADER: usize = 40;

/// Bytes of an authenticator, where the header says that there is one.
pub const AUTHENTICATOR: usize = 16;

/// The most packets whose fate may be open at one time, in each direction. Older ones are forgotten.
pub const SPAN: u16 = 1024;

/// The number of a channel's first packet, in each direction. It is a little below the point where the low 32 bits wrap around, so that
/// every long-lived channel exercises the wrap.
pub const FIRST_NUMBER: u64 = (1 << 33) - 10_000;

/// Bytes of a packet that every link carries: 576 less the headers of IPv4 and UDP.
pub const PACKET_LEAST: usize = 576 - 28;

/// The version of the packets, and of the frames in them.
pub const PACKET_VERSION: u8 = crate::VERSION as u8;

/// Says that a packet reflects a time stamp.
const REFLECTS: u16 = 1;
/// Says that `acked` holds.
const ACKS: u16 = 2;
/// Says that an authenticator follows the header.
const AUTHENTICATED: u16 = 4;

/// Says that the packet is to be acknowledged at once.
const HURRIES: u16 = 8;

/// Says that the checksum covers only the first `covered` bytes. That number is in the place of `key`.
const PARTLY: u16 = 16;

/// The first bytes of each record that every checksum covers: its header, its arguments, and the beginning of its payload.
pub const RECORD_COVERED: usize = 256;

/// What the checksums of a channel's packets cover. Both sides agree on it at set-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Integrity {
    /// Everything.
    #[default]
    Full,
    /// Everything but payloads: of each record the first 256 bytes, with its header and arguments. Damage behind them is found by UDP's
    /// checksum and the link, or not at all.
    Header,
}

impl Integrity {
    /// The integrity that settings call `full` or `header`. `None` for another word.
    pub fn from_word(word: &str) -> Option<Integrity> {
        match word {
            "full" => Some(Integrity::Full),
            "header" => Some(Integrity::Header),
            _ => None,
        }
    }
}

/// The address of one side of a channel: 32 random bits, never zero, chosen by that side.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ChannelId(pub u32);

impl ChannelId {
    /// Stands for a side that has no id yet.
    pub const NOBODY: ChannelId = ChannelId(0);
}

/// What a packet is for. The number is the wire code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PacketKind {
    /// Asks a network interface for a channel.
    Call = 1,
    /// Answers a call; the answerer keeps no state for it.
    Answer = 2,
    /// Belongs to a channel.
    Data = 3,
    /// Answers a packet of an unknown channel.
    Reset = 4,
}

/// A time stamp that goes back to its sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reflected {
    /// The time stamp, in microseconds of its owner's clock.
    pub sent_at: u32,
    /// For how long it was held, in microseconds. The largest value also stands for longer times.
    pub held: u16,
    /// How much of `held` its packet lay at the host before a process looked, in microseconds, with the same limit.
    pub lay: u16,
}

/// The header of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What the packet is for.
    pub kind: PacketKind,
    /// The receiver's id.
    pub to: ChannelId,
    /// The sender's id. With `to` it stands for the two lives that the channel was set up between.
    pub from: ChannelId,
    /// The low half of the packet's number. No two packets of a channel and direction have the same number.
    pub number: u32,
    /// The distance, in packet numbers, back to the oldest packet whose fate the sender waits for; less than [`SPAN`].
    pub behind: u16,
    /// When it was sent, in microseconds of the sender's clock.
    pub sent_at: u32,
    /// The time stamp of a packet of the receiver.
    pub reflected: Option<Reflected>,
    /// Every packet of the receiver below this number came, or its sender no longer waits for it.
    pub acked: Option<u32>,
    /// The sender waits for the acknowledgement, so it must not be delayed.
    pub hurries: bool,
    /// The key that the authenticator was made with; zero for none.
    pub key: u16,
}

/// A packet whose header was checked.
///
/// ```
/// use weft_wire::frame::{Frame, StreamId, Writer};
/// use weft_wire::packet::{ChannelId, Header, Packet, PacketKind};
///
/// let mut memory = [0; 200];
/// let mut writer = Writer::new(&mut memory);
/// assert!(writer.push(&Frame::Records { stream: StreamId(1), offset: 64, bytes: b"12345678" }));
/// let bytes = writer.finish();
/// Header { number: 7, ..Header::new(PacketKind::Data, ChannelId(1), ChannelId(2)) }.seal(bytes);
///
/// let packet = Packet::decode(bytes).expect("what was just written");
/// assert_eq!((packet.header.number, packet.frames().count()), (7, 1));
/// bytes[50] ^= 1;
/// assert!(Packet::decode(bytes).is_err()); // the checksum
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// Its header.
    pub header: Header,
    /// Its authenticator, unchecked. This version reserves the room and has no way to check one.
    pub authenticator: Option<&'a [u8; AUTHENTICATOR]>,
    frames: &'a [u8],
    /// Bytes that the checksum covers; zero for all.
    covered: u16,
}

/// Why bytes are no packet.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// Shorter than a header and what it announces.
    #[error("packet of {0} bytes, a header has {HEADER}")]
    Truncated(usize),
    /// Another version.
    #[error("packet of version {0}, this weft speaks {PACKET_VERSION}")]
    Version(u8),
    /// It was damaged on the way, or is no packet of weft.
    #[error("packet with a wrong checksum")]
    Checksum,
    /// A kind that this version does not know.
    #[error("packet of unknown kind {0}")]
    Kind(u8),
    /// Flags that must be zero are not.
    #[error("packet with reserved bits set")]
    Reserved,
    /// `behind` is too large.
    #[error("packet that waits for one {0} behind it, at most {SPAN} are followed")]
    Behind(u16),
}

crate::debug_says_display!(PacketError);

impl Header {
    /// A header of this kind with everything else zero.
    pub const fn new(kind: PacketKind, to: ChannelId, from: ChannelId) -> Header {
        Header {
            kind,
            to,
            from,
            number: 0,
            behind: 0,
            sent_at: 0,
            reflected: None,
            acked: None,
            hurries: false,
            key: 0,
        }
    }

    /// Writes the header into a packet whose frames are in place, with a checksum over all of it.
    ///
    /// # Panics
    /// If the packet is shorter than a header.
    #[inline]
    pub fn seal(&self, packet: &mut [u8]) {
        self.write(packet);
        reseal(packet);
    }

    /// As [`Header::seal`], if the checksum `last` of the packet's last bytes is known; `shift` is for as many bytes.
    ///
    /// # Panics
    /// If the packet is shorter than a header and these bytes.
    #[inline]
    pub fn seal_summed(&self, packet: &mut [u8], last: u32, shift: &Shift) {
        self.write(packet);
        let first = packet.len() - shift.bytes;
        let checksum = shift.over(checksum_of(&packet[4..first])) ^ last;
        packet[..4].copy_from_slice(&checksum.to_le_bytes());
    }

    /// As [`Header::seal`], with a checksum as [`reseal_partly`] makes it.
    ///
    /// # Panics
    /// If the packet is shorter than a header, or as [`reseal_partly`] does.
    pub fn seal_partly(&self, packet: &mut [u8], covered: usize) {
        self.write(packet);
        reseal_partly(packet, covered);
    }

    /// Writes all but the checksum: call [`reseal`] or [`reseal_partly`] next.
    ///
    /// # Panics
    /// If the packet is shorter than a header.
    #[inline(always)]
    pub fn write(&self, packet: &mut [u8]) {
        let reflected = self.reflected.unwrap_or(Reflected { sent_at: 0, held: 0, lay: 0 });
        let reflects = if self.reflected.is_some() { REFLECTS } else { 0 };
        let acks = if self.acked.is_some() { ACKS } else { 0 };
        let hurries = if self.hurries { HURRIES } else { 0 };
        packet[4] = PACKET_VERSION;
        packet[5] = self.kind as u8;
        packet[6..8].copy_from_slice(&(reflects | acks | hurries).to_le_bytes());
        packet[8..12].copy_from_slice(&self.to.0.to_le_bytes());
        packet[12..16].copy_from_slice(&self.from.0.to_le_bytes());
        packet[16..20].copy_from_slice(&self.number.to_le_bytes());
        packet[20..22].copy_from_slice(&self.behind.to_le_bytes());
        packet[22..24].copy_from_slice(&reflected.held.to_le_bytes());
        packet[24..28].copy_from_slice(&self.sent_at.to_le_bytes());
        packet[28..32].copy_from_slice(&reflected.sent_at.to_le_bytes());
        packet[32..36].copy_from_slice(&self.acked.unwrap_or(0).to_le_bytes());
        packet[36..38].copy_from_slice(&self.key.to_le_bytes());
        packet[38..40].copy_from_slice(&reflected.lay.to_le_bytes());
    }
}

impl<'a> Packet<'a> {
    /// Reads a packet whose checksum covers all of it. Total: any bytes give a packet with a header within its limits, or an error.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Result<Packet<'a>, PacketError> {
        Packet::decode_as(bytes, Integrity::Full)
    }

    /// Reads a packet of a channel with this integrity. With [`Integrity::Header`], the checksum of a packet with data may leave out the
    /// last bytes of its last record: see [`Packet::covered`].
    ///
    /// ```
    /// use weft_wire::frame::{Frame, StreamId, Writer};
    /// use weft_wire::packet::{ChannelId, Header, Integrity, Packet, PacketKind};
    ///
    /// let mut packet = [0; 300];
    /// let mut writer = Writer::new(&mut packet);
    /// assert!(writer.push(&Frame::Records { stream: StreamId(1), offset: 64, bytes: &[7; 248] }));
    /// Header::new(PacketKind::Data, ChannelId(1), ChannelId(2)).seal_partly(writer.finish(), 100);
    /// packet[299] ^= 1; // nobody notices
    /// assert_eq!(Packet::decode_as(&packet, Integrity::Header).map(|packet| packet.covered()), Ok(100));
    /// assert!(Packet::decode(&packet).is_err()); // without the agreement such a packet is refused
    /// packet[99] ^= 1;
    /// assert!(Packet::decode_as(&packet, Integrity::Header).is_err());
    /// ```
    #[inline]
    pub fn decode_as(bytes: &'a [u8], integrity: Integrity) -> Result<Packet<'a>, PacketError> {
        let Some((b, rest)) = bytes.split_first_chunk::<HEADER>() else {
            return Err(PacketError::Truncated(bytes.len()));
        };
        if b[4] != PACKET_VERSION {
            return Err(PacketError::Version(b[4]));
        }
        let flags = u16_at(b, 6);
        let (sum, covered, key) = match flags & PARTLY {
            0 => (checksum_of(&bytes[4..]), 0, u16_at(b, 36)),
            _ => {
                sum_of_part(b, bytes, integrity).map(|(sum, covered)| (sum, covered, 0)).ok_or(PacketError::Checksum)?
            }
        };
        if u32_at(b, 0) != sum {
            return Err(PacketError::Checksum);
        }
        let kind = kind_of(b[5]).ok_or(PacketError::Kind(b[5]))?;
        let behind = u16_at(b, 20);
        if flags & !(REFLECTS | ACKS | AUTHENTICATED | HURRIES | PARTLY) != 0 {
            return Err(PacketError::Reserved);
        }
        if behind >= SPAN {
            return Err(PacketError::Behind(behind));
        }
        let reflected = Reflected { sent_at: u32_at(b, 28), held: u16_at(b, 22), lay: u16_at(b, 38) };
        let (authenticator, frames) = match flags & AUTHENTICATED {
            0 => (None, rest),
            _ => rest.split_first_chunk().map(|(a, f)| (Some(a), f)).ok_or(PacketError::Truncated(bytes.len()))?,
        };
        let header = Header {
            kind,
            to: ChannelId(u32_at(b, 8)),
            from: ChannelId(u32_at(b, 12)),
            number: u32_at(b, 16),
            behind,
            sent_at: u32_at(b, 24),
            reflected: (flags & REFLECTS != 0).then_some(reflected),
            acked: (flags & ACKS != 0).then_some(u32_at(b, 32)),
            hurries: flags & HURRIES != 0,
            key,
        };
        Ok(Packet { header, authenticator, frames, covered })
    }

    /// How many of its bytes the checksum covers.
    #[inline]
    pub fn covered(&self) -> usize {
        match self.covered {
            0 => HEADER + self.authenticator.map_or(0, |_| AUTHENTICATOR) + self.frames.len(),
            covered => covered.into(),
        }
    }

    /// The frames, in order. They end with the first malformed one.
    #[inline]
    pub fn frames(&self) -> Frames<'a> {
        Frames::new(self.frames)
    }

    /// The frame of a packet that has only one.
    pub fn only_frame(&self) -> Option<Frame<'a>> {
        let mut frames = self.frames();
        let first = frames.next()?.ok()?;
        frames.next().is_none().then_some(first)
    }
}

/// The receiver's id in bytes that may be a packet, unchecked: to find the packet's channel.
#[inline]
pub fn receiver_of(bytes: &[u8]) -> Option<ChannelId> {
    Some(ChannelId(u32::from_le_bytes(*bytes.get(8..12)?.first_chunk()?)))
}

/// The beginning of a packet, unchecked. A router or host that cannot deliver a packet sends its beginning back (RFC 792, RFC 4443).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quote {
    /// What the packet was for.
    pub kind: PacketKind,
    /// Its receiver's id.
    pub to: ChannelId,
    /// Its sender's id.
    pub from: ChannelId,
    /// The low half of its number.
    pub number: u32,
}

/// Bytes of a packet that a [`Quote`] is read from.
pub const QUOTE: usize = 20;

impl Quote {
    /// Reads the beginning of a packet, if it is one.
    ///
    /// ```
    /// use weft_wire::packet::{ChannelId, Header, PacketKind, Quote, HEADER, QUOTE};
    ///
    /// let mut packet = [0; HEADER];
    /// Header { number: 7, ..Header::new(PacketKind::Data, ChannelId(1), ChannelId(2)) }.seal(&mut packet);
    /// let quote = Quote::read(&packet[..QUOTE]).expect("the beginning of a packet");
    /// assert_eq!((quote.to, quote.from, quote.number), (ChannelId(1), ChannelId(2), 7));
    /// assert_eq!(Quote::read(&packet[..QUOTE - 1]), None); // too short
    /// ```
    pub fn read(bytes: &[u8]) -> Option<Quote> {
        let b: &[u8; QUOTE] = bytes.first_chunk()?;
        let word = |at: usize| u32::from_le_bytes(array(&b[at..at + 4]));
        let kind = kind_of(b[5]).filter(|_| b[4] == PACKET_VERSION)?;
        Some(Quote { kind, to: ChannelId(word(8)), from: ChannelId(word(12)), number: word(16) })
    }
}

/// CRC32C (RFC 3720, section 12.1).
#[inline]
pub fn checksum_of(bytes: &[u8]) -> u32 {
    weft_crc::crc32c(bytes)
}

/// Shifts a checksum over a number of bytes that follow. The checksum of two pieces is that of the first, shifted over the second,
/// exclusive-or that of the second.
#[derive(Clone, PartialEq, Eq)]
pub struct Shift {
    bytes: usize,
    /// The shifted value of each byte of the checksum. One table per byte is enough, because shifting is linear.
    tables: [[u32; 256]; 4],
}

impl Shift {
    /// A shift over this many bytes.
    pub fn new(bytes: usize) -> Shift {
        let zeros = vec![0; bytes];
        let mut tables = [[0; 256]; 4];
        for bit in 0..32 {
            // The state behind the zeros, without the inversion at the beginning and the end.
            let mut digest = crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, 1 << bit);
            digest.update(&zeros);
            let shifted = !(digest.finalize() as u32);
            let (table, low) = (&mut tables[bit / 8], 1 << (bit % 8));
            for value in 0..low {
                table[low | value] = table[value] ^ shifted;
            }
        }
        Shift { bytes, tables }
    }

    /// Shifts a checksum.
    #[inline]
    pub fn over(&self, checksum: u32) -> u32 {
        let bytes = checksum.to_le_bytes();
        self.tables.iter().zip(bytes).fold(0, |sum, (table, byte)| sum ^ table[usize::from(byte)])
    }
}

impl std::fmt::Debug for Shift {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shift({})", self.bytes)
    }
}

/// Computes and writes the checksum of a packet.
///
/// # Panics
/// If the packet is shorter than a header.
#[inline]
pub fn reseal(packet: &mut [u8]) {
    let checksum = checksum_of(&packet[4..]);
    packet[..4].copy_from_slice(&checksum.to_le_bytes());
}

/// The checksum over the part of a packet that its header says, and the bytes of that part. `None` if the header cannot say so, or it was
/// not agreed.
#[inline(never)]
fn sum_of_part(b: &[u8; HEADER], bytes: &[u8], integrity: Integrity) -> Option<(u32, u16)> {
    let end = end_of_partly_covered(bytes).filter(|_| integrity == Integrity::Header)?;
    let covered = u16_at(b, 36);
    let part = bytes.get(4..usize::from(covered)).filter(|_| end == bytes.len())?;
    Some((checksum_of(part), covered))
}

/// Where the packet at the beginning of these bytes ends, if it says that its checksum covers only a part of it. Nothing else is checked.
pub fn end_of_partly_covered(bytes: &[u8]) -> Option<usize> {
    let (b, frames) = bytes.split_first_chunk::<HEADER>()?;
    // Packets that set channels up are always covered to their end, and an authenticator's key would be in the place of `covered`.
    let may_be = b[5] == PacketKind::Data as u8 && u16_at(b, 6) & (AUTHENTICATED | PARTLY) == PARTLY;
    let covered = usize::from(u16_at(b, 36)).checked_sub(HEADER).filter(|_| may_be)?;
    frame::end_behind(frames, covered).map(|end| HEADER + end)
}

/// Writes a checksum over the first `covered` bytes only, if the packet has more, and says so in the header, which then has no room for a
/// key.
///
/// # Panics
/// If `covered` is less than a header or more than 65,535, and the packet is longer.
#[inline(never)]
pub fn reseal_partly(packet: &mut [u8], covered: usize) {
    if covered >= packet.len() {
        return reseal(packet);
    }
    assert!(covered >= HEADER, "a header is covered");
    packet[6] |= PARTLY as u8;
    let written = u16::try_from(covered).expect("no packet of UDP is longer");
    packet[36..38].copy_from_slice(&written.to_le_bytes());
    let checksum = checksum_of(&packet[4..covered]);
    packet[..4].copy_from_slice(&checksum.to_le_bytes());
}

#[inline(always)]
fn u32_at(b: &[u8; HEADER], at: usize) -> u32 {
    u32::from_le_bytes(array(&b[at..at + 4]))
}

#[inline(always)]
fn u16_at(b: &[u8; HEADER], at: usize) -> u16 {
    u16::from_le_bytes(array(&b[at..at + 2]))
}

#[inline(always)]
fn kind_of(code: u8) -> Option<PacketKind> {
    Some(match code {
        1 => PacketKind::Call,
        2 => PacketKind::Answer,
        3 => PacketKind::Data,
        4 => PacketKind::Reset,
        _ => return None,
    })
}
