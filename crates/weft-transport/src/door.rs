//! The door: what a network interface says to packets that belong to none of its channels. It keeps no state for strangers,
//! and no answer is larger than what it answers.
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

/// A caller that was seen to receive what is sent to its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Its life, as it says.
    pub epoch: Epoch,
    /// What it wants to be addressed by.
    pub id: ChannelId,
    /// The answer repeats it.
    pub nonce: u64,
    /// What it grants and asks.
    pub terms: Terms,
    /// The time stamp of its call.
    pub sent_at: u32,
    /// When that came.
    pub arrived: Time,
}

/// What becomes of a packet at the door.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Send this back to where it came from.
    Reply(Reply),
    /// A caller to make a channel for, unless there is one for this very call ([`Channel::is_of`]), or one with which we
    /// called it at the same time ([`Channel::give_way`]).
    ///
    /// [`Channel::is_of`]: crate::Channel::is_of
    /// [`Channel::give_way`]: crate::Channel::give_way
    Admit(Caller),
    /// Nothing.
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

    /// Whether it is what each first call is answered with. All else is said of what nobody here wants.
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
    /// Epochs of programs behind it, whose callers are let in as well.
    programs: BTreeSet<Epoch>,
    /// More of them may come soon.
    waits: bool,
    baker: Baker,
}

impl Door {
    /// The door of this life; `secret` is 128 random bits that nobody else knows.
    pub fn new(epoch: Epoch, secret: [u64; 2]) -> Door {
        Door { epoch, programs: BTreeSet::new(), waits: false, baker: Baker::new(secret) }
    }

    /// Lets callers in who ask for a program of this epoch. They learn the epoch of the network interface from its answer.
    pub fn serve(&mut self, program: Epoch) {
        self.programs.insert(program);
    }

    /// Lets them in no more.
    pub fn dismiss(&mut self, program: Epoch) {
        self.programs.remove(&program);
    }

    /// Programs may come soon whose epochs are not known yet. While that is so, callers who mean another epoch are told nothing, and call again.
    pub fn wait_for_programs(&mut self, waits: bool) {
        self.waits = waits;
    }

    /// Answers a packet of no channel that is known here. `address` is where it came from.
    pub fn answer(&self, now: Time, address: &[u8], bytes: &[u8]) -> Answer {
        // Nobody here can check an authenticator. Of a channel that is not known, nothing but a header counts.
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

    /// Refuses an admitted caller, for want of room perhaps.
    pub fn refuse(&self, caller: &Caller, reason: Reason) -> Reply {
        let header = Header::new(PacketKind::Answer, caller.id, ChannelId::NOBODY);
        Reply::new(header, &Frame::Refuse { nonce: caller.nonce, reason })
    }

    /// Says that there is no such channel. Only who saw the packet, with the ids of both sides, can say it in our place.
    fn reset(&self, header: &Header) -> Reply {
        let back = Header { number: header.number, ..Header::new(PacketKind::Reset, header.from, header.to) };
        Reply::new(back, &Frame::Reset { epoch: self.epoch })
    }

    /// A `Life` of this network interface, addressed by `id`.
    pub fn life(&self, id: ChannelId) -> Life {
        Life { epoch: self.epoch, id }
    }
}
