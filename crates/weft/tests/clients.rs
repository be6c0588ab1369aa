//! Clients that a program attaches to endpoints, beside the built-in faces.

mod support;

use support::{poll_until, turn};
use weft::client::{Client, Delivery, State, Tx};
use weft::{
    Bundle, Certainty, Endpoint, Error, Event, Key, MessageKind, Node, Outgoing, Reason, Returned, SendError, Settings,
    SharedBundle,
};

const ECHO: u8 = 1;
const REFUSED: u8 = 2;
const BYE: u8 = 3;

#[test]
fn child() {
    support::play(&[]);
}

/// Echoes requests, refuses one operation, and records all its calls.
#[derive(Default)]
struct Notes {
    delivered: Vec<(MessageKind, u8, Vec<u32>)>,
    returned: Vec<(u8, Reason, Certainty)>,
    can_send: u32,
    lost: Vec<Reason>,
    turns: u32,
    /// Sent before the endpoint ends.
    last_words: Option<Endpoint>,
    is_closing: bool,
}

impl<T: Tx> Client<T> for Notes {
    fn deliver(&mut self, state: &mut State<T>, message: &Delivery<'_>) -> Result<(), Reason> {
        if message.op() == REFUSED {
            return Err(Reason::NoHandler);
        }
        self.delivered.push((message.kind(), message.op(), message.args.to_vec()));
        if let Some(token) = message.take_reply() {
            state.reply(token, ECHO, message.args, message.payload).map_err(|_| Reason::PeerLost)?;
        }
        Ok(())
    }

    fn returned(&mut self, _: &mut State<T>, message: Returned) -> Option<Returned> {
        self.returned.push((message.op, message.reason, message.certainty));
        // A return that it does not take goes to the program.
        (message.op != REFUSED).then_some(message)
    }

    fn on_event(&mut self, _: &mut State<T>, event: &Event) {
        match event {
            Event::CanSend { .. } => self.can_send += 1,
            Event::PeerLost { reason, .. } => self.lost.push(*reason),
            Event::Completed(_) | Event::Returned(_) | Event::ReplyRefused { .. } => {}
        }
    }

    fn go_on(&mut self, state: &mut State<T>) -> u32 {
        self.turns += 1;
        if let Some(me) = self.last_words.filter(|_| self.is_closing) {
            match state.try_send(me, 0, Outgoing { op: BYE, ..Outgoing::default() }) {
                Ok(()) => self.last_words = None,
                Err(_) => state.come_again(),
            }
        }
        1
    }

    fn close(&mut self, _: &mut State<T>, _: Endpoint) {
        self.is_closing = true;
    }

    fn is_closed(&self, _: Endpoint) -> bool {
        self.last_words.is_none()
    }
}

fn bundle() -> Bundle {
    Bundle::new(&Node::new().expect("node")).expect("bundle")
}

/// An endpoint with such a client.
fn with_notes(bundle: &mut Bundle, key: Key) -> Endpoint {
    let endpoint = bundle.endpoint(key).expect("endpoint");
    bundle.attach(endpoint, Notes::default()).expect("it has no handlers");
    endpoint
}

fn notes(bundle: &mut Bundle, endpoint: Endpoint) -> &mut Notes {
    bundle.client::<Notes>(endpoint).expect("attached").0
}

fn post(bundle: &mut Bundle, from: Endpoint, kind: MessageKind, op: u8, args: &[u32]) {
    poll_until(bundle, "room", |bundle| {
        let sent = bundle.try_post(from, 0, kind, Outgoing { op, args, ..Outgoing::default() });
        assert!(matches!(sent, Ok(()) | Err(SendError::Full)), "{sent:?}");
        sent.is_ok()
    });
}

#[test]
fn a_client_gets_its_messages_returns_and_events_beside_the_other_faces() {
    let _turn = turn("own clients");
    let mut bundle = bundle();
    let (asker, answerer) = (with_notes(&mut bundle, Key(1)), with_notes(&mut bundle, Key(2)));
    let plain = bundle.endpoint(Key(3)).expect("endpoint");
    bundle.on(plain, ECHO, |_| panic!("nothing was sent here")).expect("on");
    let there = bundle.name(answerer).expect("name");
    bundle.map(asker, 0, there, Key(2)).expect("the table is the program's");
    post(&mut bundle, asker, MessageKind::OneWay, 7, &[1, 2]);
    post(&mut bundle, asker, MessageKind::Request, 8, &[3]);
    post(&mut bundle, asker, MessageKind::OneWay, REFUSED, &[]);
    bundle.drain();
    assert_eq!(
        notes(&mut bundle, answerer).delivered,
        [(MessageKind::OneWay, 7, vec![1, 2]), (MessageKind::Request, 8, vec![3])]
    );
    poll_until(&mut bundle, "the return", |bundle| !notes(bundle, asker).returned.is_empty());
    let seen = notes(&mut bundle, asker);
    assert_eq!(seen.delivered, [(MessageKind::Reply, ECHO, vec![3])]);
    assert_eq!(seen.returned, [(REFUSED, Reason::NoHandler, Certainty::NotDelivered)]);
    assert!(seen.can_send > 0, "the first send found no session, and was told when there was one");
    assert_eq!(bundle.next_event(), None, "events are the client's, and it took the return");
}

#[test]
fn a_client_is_told_of_lost_peers_and_may_leave_returns_to_the_program() {
    let _turn = turn("own clients, lost");
    let (mut ours, mut theirs) = (bundle(), bundle());
    let (asker, answerer) = (with_notes(&mut ours, Key(1)), with_notes(&mut theirs, Key(2)));
    ours.map(asker, 0, theirs.name(answerer).expect("name"), Key(2)).expect("map");
    let mut sent = false;
    while !sent {
        sent = ours.try_post(asker, 0, MessageKind::OneWay, Outgoing { op: 7, ..Outgoing::default() }).is_ok();
        ours.poll();
        theirs.poll();
    }
    while notes(&mut theirs, answerer).delivered.is_empty() {
        theirs.poll();
    }
    drop(theirs);
    poll_until(&mut ours, "the loss", |bundle| !notes(bundle, asker).lost.is_empty());
    // The peer is gone: the message comes back to the client, which does not take it.
    post(&mut ours, asker, MessageKind::OneWay, 9, &[5]);
    let mut back = None;
    poll_until(&mut ours, "the return", |bundle| {
        back = bundle.next_event();
        back.is_some()
    });
    let Some(Event::Returned(back)) = back else { panic!("{back:?}") };
    assert_eq!((back.op, &back.args[..]), (9, &[5][..]));
    assert_eq!(notes(&mut ours, asker).returned.len(), 1);
}

#[test]
fn an_endpoint_has_one_client_and_calls_of_others_are_refused() {
    let _turn = turn("own clients, misuse");
    let mut bundle = bundle();
    let mine = with_notes(&mut bundle, Key(1));
    let other = |result: Result<(), Error>| matches!(result, Err(Error::Send(SendError::OtherClient)));
    assert!(other(bundle.on(mine, ECHO, |_| ())), "it has no handlers");
    assert!(other(bundle.attach(mine, Notes::default())), "it has a client");
    assert!(matches!(bundle.release(mine), Err(SendError::OtherClient)), "clients do not move");
    assert!(bundle.client::<Other>(mine).is_err_and(|e| other(Err(e))), "a client of another type");
    let handled = bundle.endpoint(Key(2)).expect("endpoint");
    bundle.on(handled, ECHO, |_| ()).expect("on");
    assert!(other(bundle.attach(handled, Notes::default())), "it has handlers");
    let tagged = bundle.tagged_endpoint(Key(3), weft::tagged::Settings::default()).expect("endpoint");
    assert!(other(bundle.attach(tagged, Notes::default())), "it is for tagged messages");
    assert!(other(bundle.set_key(tagged, Key(4))), "its table is the engine's");
    bundle.set_key(mine, Key(5)).expect("its table is the program's");
    bundle.free(mine).expect("free");
    for gone in [bundle.attach(mine, Notes::default()), bundle.client::<Notes>(mine).map(|_| ()), bundle.free(mine)] {
        assert!(matches!(gone, Err(Error::Send(SendError::NoEndpoint))));
    }
}

struct Other;

impl<T: Tx> Client<T> for Other {
    fn deliver(&mut self, _: &mut State<T>, _: &Delivery<'_>) -> Result<(), Reason> {
        Ok(())
    }
}

#[test]
fn a_freed_endpoint_says_its_clients_last_words_first() {
    let _turn = turn("own clients, last words");
    let mut bundle = bundle();
    let (leaver, hearer) = (with_notes(&mut bundle, Key(1)), with_notes(&mut bundle, Key(2)));
    bundle.map(leaver, 0, bundle.name(hearer).expect("name"), Key(2)).expect("map");
    notes(&mut bundle, leaver).last_words = Some(leaver);
    bundle.free(leaver).expect("free");
    assert!(bundle.client::<Notes>(leaver).is_err(), "it is closing");
    poll_until(&mut bundle, "the last words", |bundle| !notes(bundle, hearer).delivered.is_empty());
    assert_eq!(notes(&mut bundle, hearer).delivered, [(MessageKind::OneWay, BYE, vec![])]);
    poll_until(&mut bundle, "its end", |bundle| bundle.name(leaver).is_err());
}

#[test]
fn clients_of_a_shared_bundle_run_in_the_thread_that_polls() {
    let _turn = turn("own clients, shared");
    let bundle = SharedBundle::with_settings(&Node::new().expect("node"), Settings::default()).expect("bundle");
    let (mine, me) = (bundle.endpoint(Key(1)).expect("endpoint"), bundle.endpoint(Key(2)).expect("endpoint"));
    bundle.attach(mine, Notes::default()).expect("attach");
    bundle.map(me, 0, bundle.name(mine).expect("name"), Key(1)).expect("map");
    let poller = bundle.clone();
    let thread = std::thread::spawn(move || {
        poller.poll_until(|bundle| {
            bundle.with_client(mine, |notes: &mut Notes, _| notes.delivered.len() == 100).expect("attached")
        })
    });
    for number in 0..100 {
        bundle.send(me, 0, 7, &[number], b"").expect("mapped");
    }
    thread.join().expect("it ended").expect("no handler calls");
    let turns = bundle.with_client(mine, |notes: &mut Notes, state| {
        state.come_again();
        notes.turns
    });
    let before = turns.expect("attached");
    bundle.poll().expect("no handler");
    assert!(bundle.with_client(mine, |notes: &mut Notes, _| notes.turns).expect("attached") > before);
}
