//! Reports, compared with what was done.

use crate::world::{message, name, op, Inside, Pair, A, B, KEY, LARGEST};
use weft_core::report::{Limit, ROWS_MOST};
use weft_core::{Report, SendError};
use weft_transport::Grant;
use weft_wire::{Epoch, Reason};

fn report(state: &mut Inside) -> Report {
    let mut report = Report::default();
    state.report_into(&mut report);
    report
}

#[test]
fn a_full_window_is_reported_at_both_ends_until_one_request_is_answered() {
    let mut p = Pair::open(4096);
    let (a, b) = (p.a, p.b);
    let idle = report(p.world.state(A));
    assert_eq!((idle.endpoints.len(), idle.sessions.len(), idle.flows_out.len()), (1, 1, 1), "{idle:?}");
    assert_eq!(idle.flows_out[0].limit, Limit::Nothing);
    while p.world.state(A).try_request(a, 0, message(op::DEFER, &[1], &[])).is_ok() {}
    let asking = report(p.world.state(A));
    let flow = asking.flows_out[0];
    assert_eq!((flow.requests, flow.limit, flow.wants_room), (32, Limit::Window, true));
    assert_eq!((asking.counters.requests_sent - idle.counters.requests_sent, asking.unsettled), (32, 32));
    assert_eq!((flow.requests_sent - idle.flows_out[0].requests_sent, flow.sent), (32, 0));
    let traffic = asking.sessions[0].traffic;
    assert_eq!(traffic.pushed - traffic.taken, 32 * 64, "nobody has polled");
    p.world.run(1);
    let asked = report(p.world.state(B));
    assert_eq!((asked.flows_in[0].requests, asked.flows_in[0].endpoint), (32, b));
    assert_eq!(asked.flows_in[0].from, p.world.state(A).name(a).unwrap());
    assert_eq!(report(p.world.state(A)).sessions[0].traffic.taken, traffic.pushed, "taken, though not answered");
    let token = p.world.node(B).sink.tokens.pop().unwrap();
    p.world.state(B).reply(token, op::TAKE, &[], &[]).unwrap();
    p.world.run(2);
    let flow = report(p.world.state(A)).flows_out[0];
    assert_eq!((flow.requests, flow.limit), (31, Limit::Nothing));
    assert_eq!(flow.to, p.world.state(B).name(b).unwrap());
}

#[test]
fn spent_credit_and_a_full_path_are_distinguished() {
    let mut p = Pair::open(1 << 20);
    let (a, b) = (p.a, p.b);
    // Nobody serves the endpoint, so no credit comes back.
    p.world.state(B).set_served(b, false).unwrap();
    loop {
        match p.world.state(A).try_send(a, 0, message(op::TAKE, &[], &[])) {
            Ok(()) => {}
            Err(SendError::Full) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let all = Grant::V1.messages;
    let flow = report(p.world.state(A)).flows_out[0];
    assert_eq!((flow.limit, flow.credit.messages, flow.unstored), (Limit::Credit, 0, u64::from(all)));
    assert_eq!(flow.sent, u64::from(all));
    (0..all / 32).for_each(|_| p.world.run(1));
    let there = report(p.world.state(B));
    assert_eq!((there.endpoints[0].parked, there.endpoints[0].is_served), (all as usize, false));

    let mut p = Pair::open(LARGEST);
    let a = p.a;
    while p.world.state(A).try_send(a, 0, message(op::TAKE, &[], &[0; 4096])).is_ok() {}
    let full = report(p.world.state(A));
    assert_eq!((full.flows_out[0].limit, full.sessions[0].has_room), (Limit::Room, false));
    assert!(full.flows_out[0].credit.messages > 0);
    p.world.run(2);
    let after = report(p.world.state(A));
    assert_eq!((after.flows_out[0].limit, after.sessions[0].has_room), (Limit::Nothing, true));
}

#[test]
fn a_destination_without_a_session_is_reported_as_called_and_then_as_refused() {
    let mut p = Pair::open(4096);
    let a = p.a;
    let nobody = name(Epoch(7), 1);
    p.world.state(A).map(a, 3, nobody, KEY).unwrap();
    assert_eq!(report(p.world.state(A)).destinations, [], "nothing was sent there yet");
    assert_eq!(p.world.state(A).try_send(a, 3, message(op::TAKE, &[], &[])), Err(SendError::Full));
    let calling = report(p.world.state(A)).destinations;
    assert_eq!(calling.iter().map(|d| (d.endpoint, d.name, d.refused)).collect::<Vec<_>>(), [(a, nobody, None)]);
    p.world.run(1);
    assert_eq!(report(p.world.state(A)).destinations[0].refused, Some(Reason::NobodyThere));
}

#[test]
fn a_report_is_bounded_and_says_what_it_leaves_out() {
    let mut p = Pair::open(4096);
    for _ in 0..2 * ROWS_MOST {
        p.world.add_endpoint(A, KEY);
    }
    let report = report(p.world.state(A));
    // A session, its two flows, and as many endpoints as there is a place for.
    assert_eq!(
        report.sessions.len() + report.flows_out.len() + report.flows_in.len() + report.endpoints.len(),
        ROWS_MOST
    );
    assert_eq!(report.endpoints.len() + report.left_out, 2 * ROWS_MOST + 1);
}
