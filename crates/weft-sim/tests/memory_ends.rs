//! Regions with an end, over the simulated wire: nothing is written after the end, whatever is under way then, and every operation
//! ends.

use std::time::Duration;
use weft_memory::testing::{Bytes, Plain};
use weft_memory::{Engine, Outcome, Rights, Settings, Write};
use weft_sim::{Client, Config, Context, Faults, HostId, Message, Outlet, Program, Reason, Simulation};
use weft_wire::memory::{Place, RegionKey};

const KEY: RegionKey = RegionKey(1);
const BYTES: usize = 200_000;
/// How long the region lives.
const LIFE: Duration = Duration::from_millis(40);

/// Host 0, the owner, opens a region that ends. Host 1 writes to it, one write after the other, until a write is refused.
struct Host {
    engine: Option<Engine<Plain>>,
    space: Bytes,
    /// The region's bytes when it ended.
    at_end: Option<Vec<u8>>,
    posted: u64,
    done: u64,
    revoked: u64,
}

impl Host {
    fn new() -> Host {
        Host { engine: None, space: Bytes::new(BYTES), at_end: None, posted: 0, done: 0, revoked: 0 }
    }

    fn write(&mut self, cx: &mut Context<'_>) {
        cx.look_up(HostId(0));
        let (state, _) = cx.for_client();
        let Some(engine) = self.engine.as_mut() else { return };
        while self.revoked == 0 && engine.pending(0) < 4 {
            let bytes = vec![self.posted as u8 + 1; BYTES];
            if engine.try_write(state, 0, Write::to(Place::new(KEY, 0)), bytes, self.posted).is_err() {
                return; // it is not known yet
            }
            self.posted += 1;
        }
    }

    fn take(&mut self) {
        while let Some(end) = self.engine.as_mut().and_then(Engine::next_completion) {
            match end.outcome {
                Outcome::Done => self.done += 1,
                Outcome::Failed { reason: Reason::Revoked, .. } => self.revoked += 1,
                other => panic!("{other:?}"),
            }
        }
    }
}

impl Program for Host {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        let now = Duration::from_nanos(cx.now().as_nanos());
        let (state, endpoint) = cx.for_client();
        let mut engine = Engine::new(endpoint, Settings::default());
        engine.attach(state);
        let region = engine.table_mut().open(KEY.0, Rights::ALL, self.space.clone()).expect("the first one");
        assert!(engine.table_mut().set_end(region, Some(now + LIFE)));
        self.engine = Some(engine);
        self.on_alarm(cx);
    }

    fn on_alarm(&mut self, cx: &mut Context<'_>) {
        let now = Duration::from_nanos(cx.now().as_nanos());
        if cx.host() == HostId(1) {
            self.take();
            self.write(cx);
            if self.revoked == 0 || self.engine.as_ref().is_some_and(|engine| engine.pending(0) > 0) {
                cx.wake_in(Duration::from_millis(1));
            }
            return;
        }
        let Some(engine) = self.engine.as_mut() else { return };
        if engine.expire(now) > 0 {
            assert!(now >= LIFE, "not before");
            self.at_end = Some(self.space.all());
        }
        // A sleeping owner wakes for this.
        if let Some(end) = engine.next_end() {
            cx.wake_in(end.saturating_sub(now));
        }
    }

    fn on_message(&mut self, _: &mut Context<'_>, _: &Message<'_>) -> Result<(), Reason> {
        Err(Reason::NoHandler)
    }

    fn client(&mut self) -> Option<&mut dyn Client<Outlet>> {
        self.engine.as_mut().map(|engine| engine as &mut dyn Client<Outlet>)
    }

    fn on_client(&mut self, _: &mut Context<'_>) {
        self.take();
    }
}

#[test]
fn nothing_lands_behind_the_end_of_a_region_and_everything_ends() {
    let mut done = 0;
    for seed in 1..9 {
        let faults = Faults { reorder: 100_000, window: 64, ..Faults::loss(20_000) };
        let mut simulation = Simulation::new(Config { seed, faults, ..Config::default() }, |_| Host::new());
        simulation.run_until(LIFE + Duration::from_micros(1));
        let owner = simulation.program(HostId(0)).expect("it is up");
        let at_end = owner.at_end.clone().unwrap_or_else(|| panic!("seed {seed}: it has not ended in time"));
        simulation.run_for(Duration::from_secs(20));
        let owner = simulation.program(HostId(0)).expect("it is up");
        assert!(owner.space.all() == at_end, "seed {seed}: something landed behind the end");
        let writer = simulation.program(HostId(1)).expect("it is up");
        assert_eq!(writer.done + writer.revoked, writer.posted, "seed {seed}: an operation does not end");
        assert!(writer.revoked > 0, "seed {seed}");
        done += writer.done;
    }
    assert!(done > 0, "some were done before");
}
