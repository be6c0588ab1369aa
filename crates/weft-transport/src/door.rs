//! The door: answers packets that belong to none of a network interface's channels. It keeps no state for strangers,
//! and no answer is larger than the packet it answers.
//!
//! ```text
//! caller                                  answerer
//!   Call: Hello(epochs, nonce) ->
//!                                      <- Answer: Cookie(nonce, cookie), or Refuse(nonce, reason)
//!   Call: Hello(epochs, nonce, cookie) ->
//!                                      <- Data: Accept(nonce, epochs), ids of both sides from here on
//! ```

use crate::channel::Life;
use crate::cookie::Baker;
use crate::time::Time;
use std::collections::BTreeSet;
use weft_wire::frame::{Frame, Hello, Terms, Writer, FRAME_HEADER};
use weft_wire::packet::{ChannelId, Header, Integrity, Packet, PacketKind, HEADER};
use weft_wire::{Epoch, Reason};

/// Bytes of the largest answer.
pub const ANSWER_MOST: usize = HEADER + FRAME_HEADER + 20;

/// A caller that proved that it receives what is sent to its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Its epoch, as it claims.
    pub epoch: Epoch,
    /// The id it wants to be addressed by.
    pub id: ChannelId,
    /// The answer repeats it.
    pub nonce: u64,
    /// What it grants and asks for.
    pub terms: Terms,
    /// The time stamp of its call.
    pub sent_at: u32,
    /// When the call arrived.
    pub arrived: Time,
}

/// What becomes of a packet at the door.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Send this back to where it came from.
    Reply(Reply),
    /// Make a channel for this caller, unless there is one for this very call ([`Channel::is_of`]), or one that called
    /// it at the same time ([`Channel::give_way`]).
    ///
    /// [`Channel::is_of`]: crate::Channel::is_of
    /// [`Channel::give_way`]: crate::Channel::give_way
    Admit(Caller),
    /// Send no answer.
    Drop,
}

/// An answer's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    bytes: [u8; ANSWER_MOST],
    len: usize,
    invites: bool,
}

impl Reply {
    fn new(header: Header, frame: &Frame<'_>) -> Reply {
        let mut bytes = [0; ANSWER_MOST];
        let mut writer = Writer::new(&mut bytes);
        assert!(writer.push(frame), "room for the largest answer");
        let packet = writer.finish();
        header.seal(packet);
        let len = packet.len();
        Reply { bytes, len, invites: false }
    }

    /// Whether this is the cookie that answers every first call. All other answers refuse something.
    pub fn invites(&self) -> bool {
        self.invites
    }

    /// The packet.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Answers strangers for one life of a network interface.
///
/// ```
/// use weft_transport::{Answer, Door, Time};
/// use weft_wire::Epoch;
///
/// let door = Door::new(Epoch(1), [2, 3]); // two secret numbers
/// let answer = door.answer(Time::from_micros(1), b"an address", b"no packet of weft");
/// assert!(matches!(answer, Answer::Drop)); // who knocks so is told nothing
/// ```
#[derive(Debug)]
pub struct Door {
    epoch: Epoch,
    /// Epochs of programs served through this door; their callers are admitted too.
    programs: BTreeSet<Epoch>,
    /// More programs may be added soon.
    waits: bool,
    baker: Baker,
}

impl Door {
    /// The door of this life; `secret` is 128 random bits that nobody else knows.
    pub fn new(epoch: Epoch, secret: [u64; 2]) -> Door {
        Door { epoch, programs: BTreeSet::new(), waits: false, baker: Baker::new(secret) }
    }

    /// Admits callers that ask for the program of this epoch. They learn the epoch of the network interface from its answer.
    pub fn serve(&mut self, program: Epoch) {
        self.programs.insert(program);
    }

    /// Stops admitting callers for this program.
    pub fn dismiss(&mut self, program: Epoch) {
        self.programs.remove(&program);
    }

    /// Sets whether programs of unknown epochs may be added soon. While they may, a caller that names an unknown epoch
    /// gets no answer, and calls again.
    pub fn wait_for_programs(&mut self, waits: bool) {
        self.waits = waits;
    }

    /// Answers a packet that belongs to no known channel. `address` is its source.
    pub fn answer(&self, now: Time, address: &[u8], bytes: &[u8]) -> Answer {
        // An authenticator cannot be checked here. For an unknown channel only the header counts.
        let Some(packet) = Packet::decode_as(bytes, Integrity::Header).ok().filter(|p| p.authenticator.is_none())
        else {
            return Answer::Drop;
        };
        let reply = match (packet.header.kind, packet.only_frame()) {
            (PacketKind::Call, Some(Frame::Hello(hello))) => match self.answer_call(now, address, &packet, &hello) {
                Answer::Reply(reply) => reply,
                admitted_or_dropped => return admitted_or_dropped,
            },
            (PacketKind::Data, _) => self.reset(&packet.header),
            _ => return Answer::Drop,
        };
        match reply.len <= bytes.len() {
            true => Answer::Reply(reply),
            false => Answer::Drop,
        }
    }

    fn answer_call(&self, now: Time, address: &[u8], packet: &Packet<'_>, hello: &Hello) -> Answer {
        let id = packet.header.from;
        if id == ChannelId::NOBODY {
            return Answer::Drop;
        }
        let header = Header::new(PacketKind::Answer, id, ChannelId::NOBODY);
        if hello.callee != self.epoch && !self.programs.contains(&hello.callee) {
            if self.waits {
                return Answer::Drop;
            }
            return Answer::Reply(Reply::new(
                header,
                &Frame::Refuse { nonce: hello.nonce, reason: Reason::WrongEpoch },
            ));
        }
        if !self.baker.is_good(now, address, id, hello) {
            let cookie = self.baker.bake(now, address, id, hello);
            let reply = Reply::new(header, &Frame::Cookie { nonce: hello.nonce, cookie });
            return Answer::Reply(Reply { invites: hello.cookie.is_none(), ..reply });
        }
        Answer::Admit(Caller {
            epoch: hello.caller,
            id,
            nonce: hello.nonce,
            terms: hello.terms,
            sent_at: packet.header.sent_at,
            arrived: now,
        })
    }

    /// Refuses an admitted caller, for example for lack of room.
    pub fn refuse(&self, caller: &Caller, reason: Reason) -> Reply {
        let header = Header::new(PacketKind::Answer, caller.id, ChannelId::NOBODY);
        Reply::new(header, &Frame::Refuse { nonce: caller.nonce, reason })
    }

    /// Reports that there is no such channel. Only somebody who saw the packet, with the ids of both sides, could forge this.
    fn reset(&self, header: &Header) -> Reply {
        let back = Header { number: header.number, ..Header::new(PacketKind::Reset, header.from, header.to) };
        Reply::new(back, &Frame::Reset { epoch: self.epoch })
    }

    /// A `Life` of this network interface, addressed by `id`.
    pub fn life(&self, id: ChannelId) -> Life {
        Life { epoch: self.epoch, id }
    }
}
