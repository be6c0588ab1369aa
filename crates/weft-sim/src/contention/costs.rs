//! What each part of a turn costs in instructions, and how long these take.

/// Instruction counts from callgrind (`docs/measurements/2026-11-28-contention.md`), and the speed at which they run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// Instructions per microsecond.
    pub per_microsecond: u64,
    /// An idle turn of the daemon, a client or a thread.
    pub turn: u64,
    /// A packet that the network interface takes or sends.
    pub packet: u64,
    /// A record that the daemon hands to a program or takes from one.
    pub record: u64,
    /// 1,024 bytes of contents that the daemon copies.
    pub kibibyte: u64,
    /// Giving a frame to an endpoint, on the daemon's core.
    pub remapping: u64,
    /// A message that a program or a client sends or takes.
    pub message: u64,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            per_microsecond: 3000,
            turn: 550,
            packet: 2200,
            record: 760,
            kibibyte: 1600,
            remapping: 1300,
            message: 850,
        }
    }
}

/// The work of turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// Turns.
    pub turns: u64,
    /// Packets taken and sent.
    pub packets: u64,
    /// Records that the daemon handed to programs and took from them.
    pub records: u64,
    /// Bytes of contents that the daemon copied.
    pub bytes: u64,
    /// Endpoints that were given a frame.
    pub remappings: u64,
    /// Messages that a program or a client took and sent.
    pub messages: u64,
}

impl std::ops::AddAssign for Work {
    fn add_assign(&mut self, more: Work) {
        let Work { turns, packets, records, bytes, remappings, messages } = more;
        self.turns += turns;
        self.packets += packets;
        self.records += records;
        self.bytes += bytes;
        self.remappings += remappings;
        self.messages += messages;
    }
}

impl Costs {
    /// Instructions that some work takes.
    pub(super) fn of(&self, work: &Work) -> u64 {
        work.turns * self.turn
            + work.packets * self.packet
            + work.records * self.record
            + work.bytes * self.kibibyte / 1024
            + work.remappings * self.remapping
            + work.messages * self.message
    }

    /// Nanoseconds that these instructions take, at least one: a turn must take time.
    pub(super) fn nanos(&self, instructions: u64) -> u64 {
        (instructions * 1000 / self.per_microsecond.max(1)).max(1)
    }
}
