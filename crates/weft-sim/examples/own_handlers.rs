//! A program of one's own over a bad network: a counter on host 0 that all others add to, each addition exactly once.
//! `cargo run -p weft-sim --example own_handlers [SEED]`

use std::time::Duration;
use weft_sim::{Config, Context, Faults, HostId, Message, Notice, Outgoing, Program, Reason, Simulation, Topology};

const ADD: u8 = 1;
const SUM: u8 = 2;
const SERVER: HostId = HostId(0);

/// The state of each host.
struct Counter {
    sum: u32,
    to_add: u32,
}

impl Program for Counter {
    /// Sends requests until weft says *full*; then `CanSend` follows.
    fn on_start(&mut self, cx: &mut Context<'_>) {
        while self.to_add > 0 && cx.try_request(SERVER, Outgoing { op: ADD, args: &[1], ..Outgoing::default() }).is_ok()
        {
            self.to_add -= 1;
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: &Message<'_>) -> Result<(), Reason> {
        match (message.op, message.take_reply()) {
            (ADD, Some(token)) => {
                self.sum += message.args[0];
                return cx.reply(token, SUM, &[self.sum], b"").map_err(|_| Reason::PeerLost);
            }
            (SUM, None) => self.sum = message.args[0],
            _ => return Err(Reason::NoHandler),
        }
        Ok(())
    }

    fn on_notice(&mut self, cx: &mut Context<'_>, notice: Notice) {
        if let Notice::CanSend(_) = notice {
            self.on_start(cx);
        }
    }

    fn is_done(&self) -> bool {
        self.to_add == 0
    }
}

fn main() {
    let seed = std::env::args().nth(1).and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let faults = Faults { duplicate: 200_000, reorder: 200_000, corrupt: 50_000, ..Faults::loss(200_000) };
    let config = Config { seed, topology: Topology::Star(8), faults, ..Config::default() };
    let program = |host| Counter { sum: 0, to_add: if host == SERVER { 0 } else { 1000 } };
    let mut simulation = Simulation::new(config, program);
    let report = simulation.settle(Duration::from_secs(60)).expect("every message ends in exactly one outcome");
    let sum = simulation.program(SERVER).map_or(0, |server| server.sum);
    println!("sum {sum} after {:?}, {} packets lost, hash {:016x}", report.time, report.packets.lost, report.hash);
    assert_eq!(sum, 7 * 1000);
}
