//! Visits that the client ends: the next poll takes what follows the last message of a visit, whether the session is
//! visited on every poll or rings a bell.

use crate::world::{epoch, name, peer, KEY};
use weft_core::testing::{path, MemRx, MemTx, NoBells};
use weft_core::{Bundle, Delivery, Settings, Sink, State};
use weft_wire::path::Tx;
use weft_wire::setup::Open;
use weft_wire::{EndpointId, Head, Kind, Reason, Uid};

type Core = Bundle<MemRx, MemTx, NoBells>;

/// The operation of messages that end the visit.
const ENOUGH: u8 = 1;
const MORE: u8 = 2;

/// More sessions than are visited on every poll.
const SESSIONS: usize = 6;

/// The operations that arrived.
#[derive(Default)]
struct Client(Vec<u8>);

impl Sink<MemTx> for Client {
    fn deliver(&mut self, state: &mut State<MemTx>, delivery: &Delivery<'_>) -> Result<(), Reason> {
        self.0.push(delivery.op());
        if delivery.op() == ENOUGH {
            state.end_visit();
        }
        Ok(())
    }
}

/// A bundle, the ends that its peers write to, and those that they would read.
fn bundle() -> (Core, Vec<MemTx>, Vec<MemRx>) {
    let mut core = Core::new(NoBells, Settings::default());
    core.state_mut().add_endpoint(name(epoch(0), 1), KEY);
    let (mut writers, mut readers) = (Vec::new(), Vec::new());
    for number in 0..SESSIONS {
        let ((to_peer, reader), (mut writer, from_peer)) = (path(1000), path(1000));
        let index = core.reserve().expect("room");
        core.attach(index, peer(epoch(1 + number)), to_peer, from_peer);
        let open = Open::to(&name(epoch(0), 1), EndpointId(1), KEY, Uid(1000));
        writer.push(Head::new(Kind::Open), &open.to_args(), &[]).expect("room");
        writers.push(writer);
        readers.push(reader);
    }
    core.look_at_all();
    while core.poll(64, &mut Client::default()) > 0 {}
    (core, writers, readers)
}

fn send(writer: &mut MemTx, ops: &[u8]) {
    for &op in ops {
        writer.push(Head { op, ..Head::new(Kind::Send) }, &[], b"contents").expect("room");
    }
}

#[test]
fn a_visit_ends_with_the_message_at_which_the_client_stops() {
    let (mut core, mut writers, _readers) = bundle();
    let mut client = Client::default();
    send(&mut writers[0], &[MORE, ENOUGH, ENOUGH, MORE, MORE]);
    let polls: Vec<u32> = (0..4).map(|_| core.poll(64, &mut client)).collect();
    assert_eq!((polls, client.0), (vec![2, 1, 2, 0], vec![MORE, ENOUGH, ENOUGH, MORE, MORE]));
    assert_eq!(core.state().counters().delivered, 5);
}

#[test]
fn messages_left_by_a_visit_need_no_other_bell() {
    let (mut core, mut writers, _readers) = bundle();
    let mut client = Client::default();
    send(&mut writers[SESSIONS - 1], &[ENOUGH, MORE, MORE]);
    // As if its bell had rung once.
    core.look_at_all();
    let polls: Vec<u32> = (0..3).map(|_| core.poll(64, &mut client)).collect();
    assert_eq!((polls, client.0), (vec![1, 2, 0], vec![ENOUGH, MORE, MORE]));
}

#[test]
fn a_violation_after_the_end_of_a_visit_is_still_found() {
    let (mut core, mut writers, _readers) = bundle();
    let mut client = Client::default();
    send(&mut writers[0], &[ENOUGH]);
    // A reply to nothing, on a flow that was never opened.
    writers[0].push(Head { flow: 9, ..Head::new(Kind::Reply) }, &[], &[]).expect("room");
    send(&mut writers[0], &[MORE]);
    assert_eq!((core.poll(64, &mut client), core.has_broken()), (1, false));
    assert_eq!((core.poll(64, &mut client), core.has_broken()), (0, true));
    assert_eq!(client.0, [ENOUGH]);
}

#[test]
fn the_last_messages_of_a_lost_peer_are_taken_though_each_ends_a_visit() {
    let (mut core, mut writers, _readers) = bundle();
    let mut client = Client::default();
    send(&mut writers[0], &[ENOUGH, ENOUGH, MORE]);
    let (id, _) = core.state().sessions().next().expect("there are some");
    core.lose(id, Reason::PeerLost, &mut client);
    assert_eq!(client.0, [ENOUGH, ENOUGH, MORE]);
}
