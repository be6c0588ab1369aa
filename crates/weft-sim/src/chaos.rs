//! A random plan of everything that can go wrong, from a seed.

use crate::clock::ClockChange;
use crate::faults::{Bursts, Faults, Loss, Rule, Target};
use crate::simulation::Change;
use crate::topology::{HostId, Links};
use std::time::Duration;
use weft_transport::Random;

/// Changes for `hosts` hosts until `until`: bad links, partitions, crashes and restarts, stopped processes, clocks that jump or
/// stand still. At the end all hosts are up and reach each other over good links.
pub fn chaos(seed: u64, hosts: u32, until: Duration) -> Vec<(Duration, Change)> {
    let mut random = Random::new(seed ^ 0x6368_616f);
    let (mut plan, mut end) = (Vec::new(), until);
    let until_nanos = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
    for _ in 0..2 + random.below(10) {
        let at = Duration::from_nanos(random.below(until_nanos));
        let host = HostId(random.below(u64::from(hosts)) as u32);
        let other = HostId((host.0 + 1 + random.below(u64::from(hosts.max(2)) - 1) as u32) % hosts);
        let lasts = duration(&mut random);
        match random.below(8) {
            0 | 1 => plan.push((at, Change::Faults(Links::From(host), faults(&mut random)))),
            2 => {
                let cut = Change::Isolate { host, from: random.chance(700_000), to: random.chance(700_000) };
                plan.extend([(at, cut), (at + lasts, Change::Isolate { host, from: false, to: false })]);
            }
            3 => plan.extend([(at, Change::Cut(host, other)), (at + lasts, Change::Join(host, other))]),
            4 => plan.extend([(at, Change::Crash(host)), (at + lasts, Change::Restart(host))]),
            5 => plan.push((at, Change::Restart(host))),
            6 => plan.push((at, Change::Stop(host, lasts))),
            _ => plan.push((at, Change::Clock(host, clock(&mut random, lasts)))),
        }
        end = end.max(at + lasts);
    }
    plan.push((end, Change::Faults(Links::All, Faults::default())));
    plan.push((end, Change::Heal));
    plan.sort_by_key(|(at, _)| *at);
    plan
}

/// A random time from 0.1 ms to 10 s, uniform in its order of magnitude.
fn duration(random: &mut Random) -> Duration {
    let order = random.below(5) as u32;
    Duration::from_micros(100 * 10u64.pow(order) + random.below(900 * 10u64.pow(order)))
}

fn clock(random: &mut Random, lasts: Duration) -> ClockChange {
    match random.below(3) {
        0 => ClockChange::Skew(random.below(1001) as i32 - 500),
        1 => ClockChange::Ahead(Duration::from_secs(random.below(3600))),
        _ => ClockChange::Freeze(lasts.min(Duration::from_secs(1))),
    }
}

fn faults(random: &mut Random) -> Faults {
    let loss = match random.below(4) {
        0 => Loss::None,
        1 => Loss::Bursts(Bursts::default()),
        _ => Loss::Independent(random.below(500_000) as u32),
    };
    let targets = [Target::Acks, Target::Retransmissions, Target::Fresh, Target::SetUp, Target::Every];
    let target = targets[random.below(5) as usize];
    let rule = Rule { target, every: 1 + random.below(4) as u32, chance: random.below(900_000) as u32 };
    let mut some = |most: u64| if random.chance(500_000) { random.below(most) as u32 } else { 0 };
    let (duplicate, reorder, corrupt) = (some(500_000), some(500_000), some(300_000));
    Faults {
        loss,
        rule: random.chance(300_000).then_some(rule),
        duplicate,
        copies_late_most: duration(random) * 6,
        reorder,
        window: 1 + random.below(256) as u32,
        corrupt,
        // From the least that every link must carry.
        carries: if random.chance(200_000) { 548 + random.below(1000) as u16 } else { u16::MAX },
        ..Faults::default()
    }
}
