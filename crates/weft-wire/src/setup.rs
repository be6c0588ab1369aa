//! The messages of the set-up socket: fixed sizes, one message per packet.
//!
//! Each side proves that it knows the endpoint's key before the other gives it anything, and neither sends the key: once the owner of
//! the socket's name is dead, any process may take that name. The caller's proof is in its first message, the answerer's in each
//! message that does not refuse.
//!
//! ```text
//! caller                         answerer
//!   Hello(version, caller's name and bundle, endpoint, address of its nonce, a random number), proof ->
//!                                <- Challenge(the caller's nonce, address of the answerer's), proof, if both are of one user
//!   Proof(the answerer's nonce) ->
//!                                <- Accept(ring geometry, bell, class), proof + descriptors [ring caller->answerer, bell page, waker]
//!                                or Join(bundle), proof, if the two bundles have a session already; the socket is closed
//!                                or Refuse(reason), and the socket is closed
//!   Ready(ring geometry, bell) + descriptors [ring answerer->caller, bell page, waker] ->
//! ```
//!
//! Both proofs cover the whole hello, and its random number makes them valid for this call only. `proof.rs` says which attacks they
//! withstand. They do not withstand a process in the middle that passes everything on. That needs the answerer's name to be taken in
//! the caller's network namespace, while the answerer lives in another.
//!
//! Two processes are of one *trusted class* if they have one user and the kernel lets each read the other's memory: then neither can be
//! protected from the other. The nonces show that. Between other processes there is no waker among the descriptors, and each has a bell
//! page of its own; a sleeping side is woken by a `Wake` on the socket.
//!
//! The waker is an eventfd. The other side writes to it when it rings the bell and the waker's owner sleeps.

use crate::name::{array, Name, NameError, NAME_BYTES};
use crate::proof::{KeyProof, Side};
use crate::{BundleId, EndpointId, Epoch, Key, Reason, Uid, VERSION};

/// Bytes of every set-up message.
pub const MESSAGE_BYTES: usize = 128;

const MAGIC: [u8; 4] = *b"weft";

/// The shape of one direction's ring, as its owner made it. Checked against the memory before use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Lines of the hot lane.
    pub hot_lines: u32,
    /// Lines of the arena.
    pub arena_lines: u32,
}

/// A secret in a process's memory. Another process that knows it has read that memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nonce(pub u128);

impl Nonce {
    /// Sent by a process that could not read the other's nonce.
    pub const UNSEEN: Nonce = Nonce(0);
}

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct Hello {
    /// The endpoint that calls; replies go there.
    pub source: Name,
    /// The endpoint that is called.
    pub destination: Name,
    /// The caller's bundle.
    pub bundle: BundleId,
    /// The caller has no session with the bundle that it was told to join.
    pub is_alone: bool,
    /// The address of the caller's nonce in its memory.
    pub nonce_at: u64,
    /// A random number for this call.
    pub draw: u64,
}

/// A set-up message.
#[derive(Clone, Copy, Debug)]
pub enum Message {
    /// First message of the caller, with the proof that it knows the key of the endpoint that is called.
    Hello(Hello, KeyProof),
    /// Shows that the answerer can read the caller's memory, and asks the caller to show the reverse.
    Challenge {
        /// The caller's nonce, or [`Nonce::UNSEEN`].
        seen: Nonce,
        /// The address of the answerer's nonce in its memory.
        nonce_at: u64,
        /// Proves that the answerer knows the key.
        proof: KeyProof,
    },
    /// The caller's answer to a challenge.
    Proof {
        /// The answerer's nonce, or [`Nonce::UNSEEN`].
        seen: Nonce,
    },
    /// The answerer's ring, with three descriptors, or with two if the two are not of one trusted class.
    Accept {
        /// Its shape.
        ring: Geometry,
        /// The bell that the caller rings for it.
        bell: u32,
        /// The answerer's bundle.
        bundle: BundleId,
        /// Whether the two are of one trusted class, as the answerer sees it.
        is_trusted: bool,
        /// Proves that the answerer knows the key.
        proof: KeyProof,
    },
    /// The caller's ring, with as many descriptors as came with [`Message::Accept`].
    Ready {
        /// Its shape.
        ring: Geometry,
        /// The bell that the answerer rings for it.
        bell: u32,
    },
    /// There is a session with this bundle already: use that.
    Join {
        /// The answerer's bundle.
        bundle: BundleId,
        /// Proves that the answerer knows the key.
        proof: KeyProof,
    },
    /// The call is refused.
    Refuse {
        /// The reason.
        reason: Reason,
    },
    /// Wakes the receiver: its bell was rung. On the socket of a session between processes that are not of one trusted class.
    Wake,
}

/// Why bytes are no set-up message.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// Not 128 bytes, or not of weft.
    #[error("not a weft set-up message")]
    NotOurs,
    /// Another wire version.
    #[error("set-up message of wire version {0}, this weft speaks {VERSION}")]
    Version(u16),
    /// A type that this version does not know.
    #[error("set-up message of unknown type {0}")]
    Type(u8),
    /// A name in it is damaged.
    #[error("set-up message with a bad name: {0}")]
    Name(#[from] NameError),
    /// A reason that this version does not know.
    #[error("set-up message with unknown reason {0}")]
    Reason(u8),
}

crate::debug_says_display!(SetupError);

impl Hello {
    /// The proof that a side of this call knows the key of the endpoint that is called.
    pub fn proof(&self, key: Key, side: Side) -> KeyProof {
        KeyProof::new(key, side, &self.to_bytes())
    }

    /// The message's bytes, without the proof.
    fn to_bytes(self) -> [u8; MESSAGE_BYTES] {
        let mut b = header(1);
        b[8..48].copy_from_slice(&self.source.to_bytes());
        b[48..88].copy_from_slice(&self.destination.to_bytes());
        b[88..96].copy_from_slice(&self.draw.to_le_bytes());
        b[96..100].copy_from_slice(&self.bundle.0.to_le_bytes());
        b[100] = u8::from(self.is_alone);
        b[104..112].copy_from_slice(&self.nonce_at.to_le_bytes());
        b
    }
}

impl Message {
    /// The message's bytes.
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        let mut b = header(0);
        match self {
            Message::Hello(hello, proof) => {
                b = hello.to_bytes();
                b[112..128].copy_from_slice(&proof.0.to_le_bytes());
            }
            Message::Challenge { seen, nonce_at, proof } => {
                b[6] = 6;
                b[8..24].copy_from_slice(&seen.0.to_le_bytes());
                b[24..32].copy_from_slice(&nonce_at.to_le_bytes());
                b[32..48].copy_from_slice(&proof.0.to_le_bytes());
            }
            Message::Proof { seen } => {
                b[6] = 7;
                b[8..24].copy_from_slice(&seen.0.to_le_bytes());
            }
            Message::Accept { ring, bell, bundle, is_trusted, proof } => {
                shape(&mut b, 2, ring, *bell, *bundle);
                b[24] = u8::from(*is_trusted);
                b[32..48].copy_from_slice(&proof.0.to_le_bytes());
            }
            Message::Ready { ring, bell } => shape(&mut b, 3, ring, *bell, BundleId(0)),
            Message::Join { bundle, proof } => {
                b[6] = 5;
                b[20..24].copy_from_slice(&bundle.0.to_le_bytes());
                b[32..48].copy_from_slice(&proof.0.to_le_bytes());
            }
            Message::Refuse { reason } => {
                b[6] = 4;
                b[8] = reason.code();
            }
            Message::Wake => b[6] = 8,
        }
        b
    }

    /// Reads a message. Total.
    pub fn from_bytes(bytes: &[u8]) -> Result<Message, SetupError> {
        let b: &[u8; MESSAGE_BYTES] = bytes.try_into().map_err(|_| SetupError::NotOurs)?;
        if b[..4] != MAGIC {
            return Err(SetupError::NotOurs);
        }
        let version = u16::from_le_bytes(array(&b[4..6]));
        if version != VERSION {
            return Err(SetupError::Version(version));
        }
        let ring = Geometry {
            hot_lines: u32::from_le_bytes(array(&b[8..12])),
            arena_lines: u32::from_le_bytes(array(&b[12..16])),
        };
        let bell = u32::from_le_bytes(array(&b[16..20]));
        let bundle = BundleId(u32::from_le_bytes(array(&b[20..24])));
        let proof = KeyProof(u128::from_le_bytes(array(&b[32..48])));
        match b[6] {
            1 => {
                let hello = Hello {
                    source: Name::from_bytes(&b[8..8 + NAME_BYTES])?,
                    destination: Name::from_bytes(&b[48..48 + NAME_BYTES])?,
                    bundle: BundleId(u32::from_le_bytes(array(&b[96..100]))),
                    is_alone: b[100] != 0,
                    nonce_at: u64::from_le_bytes(array(&b[104..112])),
                    draw: u64::from_le_bytes(array(&b[88..96])),
                };
                Ok(Message::Hello(hello, KeyProof(u128::from_le_bytes(array(&b[112..128])))))
            }
            2 => Ok(Message::Accept { ring, bell, bundle, is_trusted: b[24] != 0, proof }),
            3 => Ok(Message::Ready { ring, bell }),
            4 => Ok(Message::Refuse { reason: Reason::from_code(b[8]).ok_or(SetupError::Reason(b[8]))? }),
            5 => Ok(Message::Join { bundle, proof }),
            6 => Ok(Message::Challenge {
                seen: Nonce(u128::from_le_bytes(array(&b[8..24]))),
                nonce_at: u64::from_le_bytes(array(&b[24..32])),
                proof,
            }),
            7 => Ok(Message::Proof { seen: Nonce(u128::from_le_bytes(array(&b[8..24]))) }),
            8 => Ok(Message::Wake),
            other => Err(SetupError::Type(other)),
        }
    }
}

/// A message of this kind with everything else zero.
fn header(kind: u8) -> [u8; MESSAGE_BYTES] {
    let mut b = [0u8; MESSAGE_BYTES];
    b[..4].copy_from_slice(&MAGIC);
    b[4..6].copy_from_slice(&VERSION.to_le_bytes());
    b[6] = kind;
    b
}

fn shape(b: &mut [u8; MESSAGE_BYTES], kind: u8, ring: &Geometry, bell: u32, bundle: BundleId) {
    b[6] = kind;
    b[8..12].copy_from_slice(&ring.hot_lines.to_le_bytes());
    b[12..16].copy_from_slice(&ring.arena_lines.to_le_bytes());
    b[16..20].copy_from_slice(&bell.to_le_bytes());
    b[20..24].copy_from_slice(&bundle.0.to_le_bytes());
}

/// The contents of an `Open` record, which opens another flow of an existing session, or the first flow of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// The endpoint that will send on the flow.
    pub source: EndpointId,
    /// The endpoint that it sends to.
    pub destination: EndpointId,
    /// The destination's key.
    pub key: Key,
    /// The user of the source endpoint, as its own side claims. If the kernel says which user it is, that counts instead.
    pub uid: Uid,
    /// The epoch of the destination's name: one network interface may serve many programs.
    pub destination_epoch: Epoch,
    /// The epoch of the source's name, if the network interface that opens a stream serves many programs. It is the record's payload.
    /// Without it, the epoch is that of the network interface.
    pub source_epoch: Option<Epoch>,
}

/// The number of arguments of an `Open` record.
pub const OPEN_ARGS: usize = 7;

impl Open {
    /// A flow to an endpoint, from an endpoint of a network interface that serves one program.
    pub fn to(destination: &Name, source: EndpointId, key: Key, uid: Uid) -> Open {
        let (endpoint, epoch) = (destination.endpoint, destination.epoch);
        Open { source, destination: endpoint, key, uid, destination_epoch: epoch, source_epoch: None }
    }

    /// As the record's arguments.
    pub fn to_args(&self) -> [u32; OPEN_ARGS] {
        let [key_low, key_high] = halves(self.key.0);
        let [low, high] = halves(self.destination_epoch.0);
        [self.source.0, self.destination.0, key_low, key_high, self.uid.0, low, high]
    }

    /// From the record's arguments and its payload.
    pub fn from_record(args: &[u32], payload: &[u8]) -> Option<Open> {
        let &[source, destination, key_low, key_high, uid, low, high] = args else { return None };
        let source_epoch = match payload.len() {
            0 => None,
            8 => Some(Epoch(u64::from_le_bytes(array(payload)))),
            _ => return None,
        };
        Some(Open {
            source: EndpointId(source),
            destination: EndpointId(destination),
            key: Key(whole(key_low, key_high)),
            uid: Uid(uid),
            destination_epoch: Epoch(whole(low, high)),
            source_epoch,
        })
    }
}

fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

fn whole(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostAddress;
    use proptest::prelude::*;

    fn name(endpoint: u32) -> Name {
        Name { epoch: Epoch(7), endpoint: EndpointId(endpoint), uid: Uid(1), address: HostAddress::NONE }
    }

    fn hello() -> Hello {
        let (source, destination) = (name(1), name(2));
        Hello { source, destination, bundle: BundleId(9), is_alone: true, nonce_at: 1 << 47, draw: u64::MAX - 3 }
    }

    #[test]
    fn an_open_reads_back() {
        let open = Open::to(&Name { epoch: Epoch(5 << 50), ..name(2) }, EndpointId(1), Key(3 << 40), Uid(4));
        let (args, epoch) = (open.to_args(), (6u64 << 33 | 7).to_le_bytes());
        for (payload, source_epoch) in [(&[][..], None), (&epoch[..], Some(Epoch(6 << 33 | 7)))] {
            let Some(read) = Open::from_record(&args, payload) else { panic!("{open:?}") };
            assert_eq!((read.source, read.destination, read.uid), (open.source, open.destination, open.uid));
            assert_eq!((read.destination_epoch, read.source_epoch), (open.destination_epoch, source_epoch));
            assert!(read.key.matches(open.key));
        }
        assert!(Open::from_record(&args[1..], &[]).is_none() && Open::from_record(&args, &epoch[1..]).is_none());
    }

    #[test]
    fn each_message_reads_back() {
        let ring = Geometry { hot_lines: 252, arena_lines: 131_072 };
        let proof = KeyProof(u128::MAX - 9);
        for message in [
            Message::Hello(hello(), proof),
            Message::Challenge { seen: Nonce(u128::MAX - 5), nonce_at: 99, proof },
            Message::Proof { seen: Nonce(3 << 70) },
            Message::Wake,
            Message::Accept { ring, bell: 3, bundle: BundleId(8), is_trusted: true, proof },
            Message::Join { bundle: BundleId(7), proof },
            Message::Ready { ring, bell: 4 },
            Message::Refuse { reason: Reason::WrongKey },
        ] {
            let bytes = message.to_bytes();
            let back = Message::from_bytes(&bytes).expect("own message");
            assert_eq!(back.to_bytes(), bytes);
        }
    }

    #[test]
    fn a_proof_covers_the_whole_hello() {
        let proof = |hello: Hello| hello.proof(Key(5), Side::Caller);
        let own = proof(hello());
        assert!(own.matches(proof(hello())));
        let epoch = Epoch(8);
        for (other, what) in [
            (Hello { source: name(3), ..hello() }, "the endpoint that calls"),
            (Hello { source: Name { epoch, ..name(1) }, ..hello() }, "its epoch"),
            (Hello { bundle: BundleId(8), ..hello() }, "its bundle"),
            (Hello { destination: name(1), ..hello() }, "the endpoint that is called"),
            (Hello { destination: Name { epoch, ..name(2) }, ..hello() }, "its epoch"),
            (Hello { is_alone: false, ..hello() }, "whether there is a session"),
            (Hello { nonce_at: 0, ..hello() }, "where the nonce lies"),
            (Hello { draw: 0, ..hello() }, "the draw"),
        ] {
            assert!(!own.matches(proof(other)), "{what}");
        }
    }

    #[test]
    fn another_version_is_told_from_garbage() {
        let mut bytes = Message::Refuse { reason: Reason::NoRoom }.to_bytes();
        bytes[4] = 9;
        assert_eq!(Message::from_bytes(&bytes).err(), Some(SetupError::Version(9)));
        assert_eq!(Message::from_bytes(b"GET / HTTP/1.1").err(), Some(SetupError::NotOurs));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(tail in proptest::collection::vec(any::<u8>(), 124..125), kind in 0u8..10) {
            let mut bytes = MAGIC.to_vec();
            bytes.extend(tail);
            bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
            bytes[6] = kind;
            let _ = Message::from_bytes(&bytes);
            for cut in 0..bytes.len() {
                prop_assert!(Message::from_bytes(&bytes[..cut]).is_err());
            }
        }
    }
}
