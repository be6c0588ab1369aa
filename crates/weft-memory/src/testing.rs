//! Memory for tests and the simulator: cells of bytes.

mod shown;

pub use shown::{allow_pulls, Showing, Shown};

use crate::platform::{NoReach, NotPulled, Platform, Proof, Pulled, Source, Space};
use crate::{Cookie, Engine, Part, RegionId, Rights, Settings, Table};
use std::cell::RefCell;
use std::num::NonZeroU32;
use std::rc::Rc;
use weft_core::testing::{path, MemRx, MemTx, NoBells};
use weft_core::{Bundle, Client, Delivery, PeerId, Returned, Sink, State};
use weft_wire::memory::{Atomic, Credential, Mark, Origin, Place, RegionHandle, Type, Word};
use weft_wire::path::{Peek, Rx, Tx};
use weft_wire::setup::Open;
use weft_wire::{BundleId, EndpointId, Epoch, Head, HostAddress, Key, Kind, Name, Reason, Uid, MAX_ARGS};

/// Bytes that can be shared.
#[derive(Clone, Debug)]
pub struct Bytes(Rc<RefCell<Vec<u8>>>);

impl Bytes {
    /// `len` zeros.
    #[must_use]
    pub fn new(len: usize) -> Bytes {
        Bytes(Rc::new(RefCell::new(vec![0; len])))
    }

    /// A copy of all of them.
    #[must_use]
    pub fn all(&self) -> Vec<u8> {
        self.0.borrow().clone()
    }

    fn with<R>(&self, at: u64, len: usize, run: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        let at = usize::try_from(at).ok()?;
        let mut bytes = self.0.borrow_mut();
        bytes.get_mut(at..at.checked_add(len)?).map(run)
    }
}

impl Space for Bytes {
    fn len(&self) -> u64 {
        self.0.borrow().len() as u64
    }

    fn read(&self, at: u64, to: &mut [u8]) -> bool {
        self.with(at, to.len(), |bytes| to.copy_from_slice(bytes)).is_some()
    }

    fn write(&self, at: u64, from: &[u8]) -> bool {
        self.with(at, from.len(), |bytes| bytes.copy_from_slice(from)).is_some()
    }

    fn pull(&self, at: u64, from: Pulled<'_>) -> Result<(), NotPulled> {
        shown::pull(self, at, from)
    }

    fn is_word(&self, at: u64, bytes: usize) -> bool {
        matches!(bytes, 1 | 2 | 4 | 8) && at % bytes as u64 == 0 && self.with(at, bytes, |_| ()).is_some()
    }

    fn update(&self, at: u64, bytes: usize, mut change: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        if !self.is_word(at, bytes) {
            return None;
        }
        self.with(at, bytes, |word| {
            let mut old = [0; 8];
            old[..bytes].copy_from_slice(word);
            let old = u64::from_le_bytes(old);
            if let Some(new) = change(old) {
                word.copy_from_slice(&new.to_le_bytes()[..bytes]);
            }
            old
        })
    }
}

/// Regions of [`Bytes`], operations with vectors as buffers.
#[derive(Debug)]
pub enum Plain {}

impl Platform for Plain {
    type Space = Bytes;
    type Source = Vec<u8>;
    type Target = Vec<u8>;
    type Reach = NoReach;
}

/// Plays a peer that has a session with an owner, and sends it whatever `input` says. Panics if the peer reaches a byte that it may not
/// reach. For fuzzing and for tests with random input.
///
/// The input is a list of steps: a byte that says what the step is, then what it needs. What is missing is zero.
pub fn attack(input: &[u8]) {
    let mut owner = Attacked::new();
    let mut input = Input(input);
    while let Some(step) = input.byte() {
        match step % 16 {
            0 => owner.revoke_and_open(),
            1 => owner.poll(),
            2 => owner.push(Kind::Send, input.byte().unwrap_or(0), &input.args(), input.rest_of_a_record()),
            3 => owner.push(Kind::Request, input.byte().unwrap_or(0), &input.args(), input.rest_of_a_record()),
            _ => {
                let word = input.word(&owner);
                let packed = word.pack();
                let kind = if step % 2 == 0 { Kind::Send } else { Kind::Request };
                let origin = matches!(word, Word::Pull { .. }).then(|| input.origin(&owner));
                let payload = origin.as_ref().map_or_else(|| input.rest_of_a_record(), |origin| &origin[..]);
                owner.push(kind, packed.op, packed.args(), payload);
            }
        }
    }
    owner.poll();
    owner.check();
}

/// Bytes that are consumed in order.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn number(&mut self, bytes: usize) -> u64 {
        (0..bytes).fold(0, |number, _| number << 8 | u64::from(self.byte().unwrap_or(0)))
    }

    /// A number that is likely to be near a bound.
    fn offset(&mut self) -> u64 {
        match self.byte().unwrap_or(0) % 4 {
            0 => self.number(8),
            1 => u64::MAX - self.number(1),
            _ => self.number(1),
        }
    }

    fn args(&mut self) -> Vec<u32> {
        let len = self.number(1) as usize % (MAX_ARGS + 1);
        (0..len).map(|_| self.number(4) as u32).collect()
    }

    /// A payload: from the input's bytes, or a long one that repeats one byte.
    fn rest_of_a_record(&mut self) -> &'a [u8] {
        let most = match self.byte().unwrap_or(0) {
            len @ 0..=127 => usize::from(len),
            _ => self.number(2) as usize,
        };
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Where a pull's bytes are: likely values with which it can be carried out.
    fn origin(&mut self, owner: &Attacked) -> [u8; Origin::BYTES] {
        let proof = &owner.proof;
        let mut origin =
            Origin { from: owner.shown.address().unwrap_or(0), proof_at: proof.address(), proof: proof.value() };
        match self.byte().unwrap_or(0) % 8 {
            0 => origin.from = self.offset(),
            1 => origin.proof_at = self.offset(),
            2 => origin.proof = self.offset(),
            3 => origin.from = origin.from.wrapping_add(self.number(1)),
            _ => {}
        }
        origin.to_bytes()
    }

    fn word(&mut self, owner: &Attacked) -> Word {
        let by = owner.credential(self.byte().unwrap_or(0));
        let place = Place { by, at: self.offset() };
        let mark = Mark { operation: self.number(1) as u32, piece: self.number(1) as u32 };
        match self.byte().unwrap_or(0) % 11 {
            0..=2 => {
                let (len, notice) = (self.offset(), self.byte().filter(|n| n % 2 == 0).map(u64::from));
                let is_part = notice.is_none() && self.byte().is_some_and(|n| n % 2 == 0);
                Word::Write { place, len, notice, mark: self.byte().filter(|n| n % 2 == 0).map(|_| mark), is_part }
            }
            3 => Word::Data,
            4 => {
                Word::Read { place, len: self.offset() as u32, mark, is_part: self.byte().is_some_and(|n| n % 2 == 0) }
            }
            5 => Word::Bytes(mark),
            6..=7 => {
                let (len, notice) = (self.offset(), self.byte().filter(|n| n % 2 == 0).map(u64::from));
                Word::Pull { place, len, notice, mark, is_part: false }
            }
            10 => Word::Attach { by, mark },
            _ => {
                let [atomic, of] =
                    [Atomic::ALL.len(), Type::ALL.len()].map(|kinds| self.byte().unwrap_or(0) % kinds as u8);
                let args = [0, 0, 0, 0, u32::from(atomic) | u32::from(of) << 8, mark.operation, mark.piece];
                match Word::unpack(5, &args) {
                    Some(Word::Atomic { atomic, of, mark, .. }) => {
                        Word::Atomic { place, atomic, of, mark, is_part: false }
                    }
                    _ => Word::Data,
                }
            }
        }
    }
}

/// Bytes of each of its regions.
const BYTES: usize = 200;
/// The range that the attacker may write by a cookie.
const PART: std::ops::Range<usize> = 64..128;
const LINES: u32 = 1 << 12;

/// An owner, and the attacker's ends of their paths.
struct Attacked {
    core: Bundle<MemRx, MemTx, NoBells>,
    engine: Engine<Plain>,
    tx: MemTx,
    rx: MemRx,
    /// One open to everything, one to reads alone, and one to writes by a cookie for a part.
    spaces: [Bytes; 3],
    open: RegionId,
    cookie: Cookie,
    revoked: Cookie,
    /// The handle of the region that is open to reads alone.
    handle: RegionHandle,
    free: u32,
    /// The bytes that the attacker offers to be pulled.
    shown: Shown,
    proof: Proof,
}

impl Attacked {
    fn new() -> Attacked {
        let mut core = Bundle::new(NoBells, weft_core::Settings::default());
        let name =
            |epoch| Name { epoch: Epoch(epoch), endpoint: EndpointId(1), uid: Uid(1), address: HostAddress::NONE };
        let endpoint = core.state_mut().add_endpoint(name(1), Key(1));
        let settings = Settings { notices_most: 4, ..Settings::default() };
        let mut engine = Engine::new(endpoint, settings);
        engine.attach(core.state_mut());
        let spaces = [(); 3].map(|()| Bytes::new(BYTES));
        let table = engine.table_mut();
        // None of these can fail in a new table.
        let open = |table: &mut Table<Bytes>, key, rights| match table.open(key, rights, spaces[key as usize].clone()) {
            Ok(region) => region,
            Err(error) => panic!("{error}"),
        };
        let regions = [open(table, 0, Rights::ALL), open(table, 1, Rights::READ), open(table, 2, Rights::WRITE)];
        let part = Part { at: PART.start as u64, len: PART.len() as u64 };
        let cookies = [7, 8].map(|secret| match table.cookie(regions[2], part, Rights::WRITE, [secret; 16]) {
            Ok(cookie) => cookie,
            Err(error) => panic!("{error}"),
        });
        table.revoke_cookie(cookies[1]);
        let Some(handle) = table.handle(regions[1], 100) else { panic!("it is open") };
        let ((to_peer, rx), (tx, from_peer)) = (path(LINES), path(LINES));
        let (to_peer, proof) = (to_peer.to_process(NonZeroU32::MIN), Proof::new(7));
        Showing::note_proof(&proof);
        let shown = Shown::from(vec![1; 2 * BYTES]);
        let peer = PeerId { epoch: Epoch(2), bundle: BundleId(0), uid: Uid(1), address: HostAddress::NONE };
        if let Some(index) = core.reserve() {
            core.attach(index, peer, to_peer, from_peer);
        }
        let [cookie, revoked] = cookies;
        let (open, free) = (regions[0], u32::MAX);
        let mut owner = Attacked { core, engine, tx, rx, spaces, open, cookie, revoked, handle, free, shown, proof };
        let setup = Open::to(&name(1), EndpointId(1), Key(1), Uid(1));
        owner.push_head(Head::new(Kind::Open), &setup.to_args(), &[]);
        owner
    }

    fn credential(&self, number: u8) -> Credential {
        match number % 10 {
            0..=1 => Credential::Key(0),
            2 => Credential::Key(1),
            3..=4 => self.cookie.into(),
            5 => self.revoked.into(),
            6 => Credential::Cookie { index: number.into(), secret: [7; 16] },
            7 => self.handle.into(),
            // No other region is open under its handle.
            8 => Credential::Handle(u32::from(number) / 10),
            _ => Credential::Key(number.into()),
        }
    }

    fn revoke_and_open(&mut self) {
        let table = self.engine.table_mut();
        if let Some(space) = table.revoke(self.open) {
            if let Ok(open) = table.open(0, Rights::ALL, space) {
                self.open = open;
            }
        }
    }

    fn push(&mut self, kind: Kind, op: u8, args: &[u32], payload: &[u8]) {
        let slot = self.free.trailing_zeros() as u16;
        match kind {
            Kind::Request if slot < 32 => self.free &= !(1 << slot),
            Kind::Request => return,
            _ => {}
        }
        let slot = if kind == Kind::Request { slot } else { 0 };
        self.push_head(Head { op, slot, ..Head::new(kind) }, args, payload);
    }

    fn push_head(&mut self, head: Head, args: &[u32], payload: &[u8]) {
        if self.tx.push(head, args, payload).is_err() {
            self.poll();
            // Fails if the owner has cut the attacker off.
            let _ = self.tx.push(head, args, payload);
        }
    }

    fn poll(&mut self) {
        let mut sink = Only(&mut self.engine);
        while self.core.poll(1024, &mut sink) > 0 {}
        while sink.0.next_completion().is_some() || sink.0.next_notice().is_some() {}
        while let Peek::Record(record) = self.rx.peek() {
            let head = record.head.head();
            let answers = head.kind == Kind::Reply || head.kind == Kind::Return;
            if answers && head.slot < 32 {
                self.free |= 1 << head.slot;
            }
            self.rx.pop();
        }
        self.rx.release();
        self.check();
    }

    /// Checks that memory which the attacker may not write is unchanged.
    fn check(&self) {
        let [_, read_only, partly] = &self.spaces;
        assert!(read_only.all().iter().all(|byte| *byte == 0), "what may only be read was written");
        let partly = partly.all();
        let outside = partly[..PART.start].iter().chain(&partly[PART.end..]);
        assert!(outside.into_iter().all(|byte| *byte == 0), "a byte outside of a cookie's part was written");
    }
}

/// The only client of a bundle.
struct Only<'a>(&'a mut Engine<Plain>);

impl Sink<MemTx> for Only<'_> {
    fn deliver(&mut self, state: &mut State<MemTx>, message: &Delivery<'_>) -> Result<(), Reason> {
        self.0.deliver(state, message)
    }

    fn returned(&mut self, state: &mut State<MemTx>, message: Returned) -> Option<Returned> {
        self.0.returned(state, message)
    }

    fn do_chores(&mut self, state: &mut State<MemTx>) -> u32 {
        let mut work = 0;
        while let Some(event) = state.next_claimed() {
            self.0.on_event(state, &event);
            work += 1;
        }
        while let Some((endpoint, completion)) = state.next_completed() {
            self.0.completed(state, endpoint, completion);
            work += 1;
        }
        while let Some((endpoint, flow)) = state.next_closed_flow() {
            self.0.flow_closed(state, endpoint, flow);
        }
        work + Client::<MemTx>::go_on(self.0, state)
    }
}
