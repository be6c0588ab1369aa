//! What the engine reports about itself.

use super::{outgoing, SMALL};
use crate::world::World;
use weft_core::Endpoint;
use weft_daemon::{Limits, Settings, Survey};
use weft_wire::status::{DaemonStatus, EndStatus, EndpointStatus, Item, LineLimit, LineStatus, ResidenceStatus, Scope};
use weft_wire::Uid;

/// Items that a step may tell.
const ITEMS: usize = 64;

/// Everything that a survey reported, and its number of steps.
#[derive(Debug, Default)]
struct Told {
    daemon: DaemonStatus,
    users: Vec<u32>,
    attachments: Vec<u32>,
    endpoints: Vec<EndpointStatus>,
    lines: Vec<LineStatus>,
    end: EndStatus,
    steps: usize,
}

impl Told {
    fn of(&self, world: &World, (program, endpoint): (usize, Endpoint)) -> &EndpointStatus {
        let name = world.name(program, endpoint).to_string();
        self.endpoints.iter().find(|told| told.name == name).expect("it is told")
    }

    fn stalled(&self) -> Vec<&LineStatus> {
        self.lines.iter().filter(|line| line.limit == LineLimit::Peer).collect()
    }
}

fn survey(world: &mut World, scope: Scope, viewer: Option<u32>) -> Told {
    let mut survey = Survey::new(scope, viewer.map(Uid));
    let (mut told, mut items) = (Told::default(), Vec::new());
    while !survey.is_over() {
        told.steps += 1;
        assert!(told.steps < 100_000, "it does not end: {survey:?}");
        world.engine.survey(&mut survey, &mut items);
        assert!(items.len() <= ITEMS, "a step told {} items", items.len());
        for item in items.drain(..) {
            match item {
                Item::Daemon(daemon) => told.daemon = daemon,
                Item::User(user) => told.users.push(user.uid),
                Item::Host(host) => panic!("there is no network: {host:?}"),
                Item::Attachment(attachment) => told.attachments.push(attachment.uid),
                Item::Endpoint(endpoint) => told.endpoints.push(endpoint),
                Item::Line(line) => told.lines.push(line),
                Item::End(end) => told.end = end,
            }
        }
    }
    told
}

#[test]
fn a_line_that_its_peer_has_no_room_for_is_told_as_limited_by_the_peer() {
    let mut world = World::new(Settings::default());
    let (a, b) = (world.attach(1000), world.attach(1001));
    let from = (a, world.endpoint(a, 1));
    let others = [(a, world.endpoint(a, 3)), (a, world.endpoint(a, 4))];
    let to = (b, world.endpoint(b, 2));
    for from in [from].iter().chain(&others) {
        world.map(*from, 0, to, 2);
        world.programs[a].core.state_mut().set_admission(from.1, weft_core::Admission::AnyUser).expect("set");
    }
    let id = world.name(to.0, to.1).endpoint;
    world.programs[b].sessions.set_admission(id, weft_core::Admission::AnyUser);
    world.programs[b].core.state_mut().set_admission(to.1, weft_core::Admission::AnyUser).expect("set");
    world.settle();
    let told = survey(&mut world, Scope::All, None);
    assert!(told.stalled().is_empty() && told.endpoints.len() == 4, "{told:?}");
    for from in [from].iter().chain(&others) {
        world.send(*from, 0, &[0], b"first");
    }
    world.settle();
    // The receiver takes nothing any more.
    let stopped = world.programs.pop().expect("it is the last one");
    for _ in 0..20_000 {
        for from in [from].iter().chain(&others) {
            let _ = world.programs[a].core.state_mut().try_send(from.1, 0, outgoing(&[1], b"to one that sleeps"));
        }
        world.turn();
    }
    let told = survey(&mut world, Scope::All, None);
    world.programs.push(stopped);
    assert!(told.end.stalled > 0 && told.stalled().len() as u64 == told.end.stalled, "{told:?}");
    let receiver = told.of(&world, to);
    assert!(receiver.has_stalled && receiver.refused > 0 && receiver.not_taken > 0, "{receiver:?}");
    assert_eq!(told.of(&world, from).refused, 0);
    let name = world.name(to.0, to.1).to_string();
    assert!(told.stalled().iter().all(|line| line.peer.as_ref() == Some(&name)));
    assert_eq!(told.daemon.counters.refused, world.engine.counters().refused);

    let named = world.name(to.0, to.1);
    let told = survey(&mut world, Scope::Endpoint(named.epoch, named.endpoint), None);
    assert_eq!((told.endpoints.len(), told.lines.len()), (1, 6), "the endpoint, and both ends of its three lines");
    let told = survey(&mut world, Scope::Active, None);
    assert!(told.lines.iter().all(|line| line.limit == LineLimit::Peer) && !told.lines.is_empty());

    // It polls again, and nothing is blocked any more.
    world.settle();
    assert_eq!(survey(&mut world, Scope::All, None).end.stalled, 0);
}

#[test]
fn an_endpoint_that_waits_for_a_frame_is_told_as_waiting_and_its_frame_when_it_has_one() {
    let mut world = World::new(Settings { frames: 1, ..Settings::default() });
    let (a, b) = (world.attach(1000), world.attach(1000));
    let receiver = (b, world.endpoint(b, 9));
    let senders = [1, 2, 3].map(|key| (a, world.endpoint(a, key)));
    for from in senders {
        world.map(from, 0, receiver, 9);
        world.send(from, 0, &[0], b"first");
    }
    world.settle();
    let told = survey(&mut world, Scope::Active, None);
    assert_eq!((told.endpoints.len(), told.end.resident, told.end.waiting, told.end.idle), (1, 1, 0, 3));
    assert_eq!(told.endpoints[0].frame, Some(0));
    // All write at once. The bells are heard in one turn, and a turn gives the frame to one of them.
    for from in senders {
        world.programs[a].core.state_mut().try_send(from.1, 0, outgoing(&[1], b"second")).expect("room");
    }
    world.programs[a].core.state_mut().hasten();
    world.programs[a].poll();
    world.now = world.now.plus_nanos(10_000);
    world.engine.poll(world.now);
    let told = survey(&mut world, Scope::Active, None);
    assert_eq!((told.daemon.frames, told.daemon.frames_used, told.end.resident), (1, 1, 1), "{told:?}");
    let waiting = told.endpoints.iter().filter(|told| told.residence == ResidenceStatus::Waiting).count();
    assert!(waiting > 0 && waiting as u64 == told.end.waiting, "{told:?}");
    world.settle();
    assert_eq!(survey(&mut world, Scope::All, None).end.waiting, 0);
}

#[test]
fn a_user_is_told_of_its_own_endpoints_and_of_totals_alone() {
    let mut world =
        World::new(Settings { limits: Limits { endpoints: 12, ..Limits::default() }, ..Settings::default() });
    let (a, b) = (world.attach(1000), world.attach(1001));
    let (from, to) = ((a, world.endpoint(a, 1)), (a, world.endpoint(a, 2)));
    world.map(from, 0, to, 2);
    world.send(from, 0, &[0], b"first");
    world.endpoint(b, 3);
    world.settle();
    let told = survey(&mut world, Scope::All, Some(1001));
    assert_eq!(
        (told.endpoints.len(), told.lines.len(), &told.users[..], &told.attachments[..]),
        (1, 0, &[1001][..], &[1001][..])
    );
    assert_eq!((told.daemon.endpoints, told.daemon.attachments, told.daemon.tells_all), (3, 2, false));
    let endpoints = told.daemon.limits.iter().find(|quota| quota.of == "endpoints").expect("it is told");
    assert_eq!((endpoints.held, endpoints.most), (3, 12));
    let theirs = world.name(from.0, from.1);
    let told = survey(&mut world, Scope::Endpoint(theirs.epoch, theirs.endpoint), Some(1001));
    assert!(told.endpoints.is_empty() && told.lines.is_empty(), "{told:?}");
    let told = survey(&mut world, Scope::All, None);
    assert_eq!((told.endpoints.len(), &told.users[..]), (3, &[1000, 1001][..]));
    assert!(told.daemon.tells_all && told.lines.len() == 2, "{told:?}");
}

#[test]
fn many_endpoints_are_told_in_many_small_steps() {
    let mut world = World::new(Settings::default());
    for _ in 0..6 {
        let program = world.attach(1000);
        for key in 0..150 {
            world.endpoint_with(program, key, SMALL).expect("an endpoint");
        }
    }
    let told = survey(&mut world, Scope::All, None);
    assert_eq!((told.endpoints.len(), told.end.idle), (900, 900));
    assert!(told.steps >= 900 / ITEMS, "{}", told.steps);
    let mut names: Vec<&str> = told.endpoints.iter().map(|told| told.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 900, "each once");
    assert!(survey(&mut world, Scope::Active, None).endpoints.is_empty());
    let told = survey(&mut world, Scope::Totals, None);
    assert!(told.endpoints.is_empty() && told.steps < 10, "{told:?}");
}
