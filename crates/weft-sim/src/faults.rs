//! What a direction of a link does to packets besides carrying them.

use std::collections::BTreeMap;
use std::time::Duration;
use weft_transport::sequence::widen;
use weft_transport::Random;
use weft_wire::frame::{Frame, FIRST_OFFSET};
use weft_wire::packet::{Integrity, Packet, PacketKind, HEADER};

/// A probability in millionths.
pub type PerMillion = u32;

/// Random loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// Each with the same chance.
    Independent(PerMillion),
    /// Gilbert and Elliott's model: the link is good or bad, and may change between packets.
    Bursts(Bursts),
}

/// A link that is good for a while and then bad for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bursts {
    /// The chance that a packet vanishes while the link is good.
    pub good: PerMillion,
    /// While it is bad.
    pub bad: PerMillion,
    /// The chance that it gets bad before the next packet.
    pub worsens: PerMillion,
    /// The chance that it gets good before the next packet: 1 divided by the mean length of a burst.
    pub mends: PerMillion,
}

impl Default for Bursts {
    /// Loss of 0.1 % and 50 %, and bursts of 20 packets, one for each 400 packets.
    fn default() -> Bursts {
        Bursts { good: 1000, bad: 500_000, worsens: 2500, mends: 50_000 }
    }
}

/// The packets that a rule aims at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// All.
    Every,
    /// Packets of a channel without records: acknowledgements, reports of what was taken, pings.
    Acks,
    /// Packets with records that were all sent before.
    Retransmissions,
    /// Packets with records, at least one of them for the first time.
    Fresh,
    /// Calls and answers.
    SetUp,
}

/// Drops packets of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The kind.
    pub target: Target,
    /// Aims at every n-th of them; 1 for all.
    pub every: u32,
    /// The chance that a packet aimed at is dropped.
    pub chance: PerMillion,
}

/// How bad a direction of a link is. It can change at any time.
///
/// ```
/// use weft_sim::{Faults, Rule, Target};
///
/// // 5 % lost by chance, each third acknowledgement besides, and one packet in a hundred held back.
/// let rule = Rule { target: Target::Acks, every: 3, chance: 1_000_000 };
/// let faults = Faults { rule: Some(rule), reorder: 10_000, ..Faults::loss(50_000) };
/// assert_eq!(faults.duplicate, 0);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faults {
    /// Packets lost at random.
    pub loss: Loss,
    /// Packets lost by rule.
    pub rule: Option<Rule>,
    /// Packets delivered twice.
    pub duplicate: PerMillion,
    /// Copies are late by at most this.
    pub copies_late_most: Duration,
    /// Packets that are held back, so that others overtake them.
    pub reorder: PerMillion,
    /// At most this many packets overtake a held one.
    pub window: u32,
    /// A held packet goes on after this time if no others come.
    pub held_most: Duration,
    /// Packets that are damaged.
    pub corrupt: PerMillion,
    /// Damage only bytes that the packet's checksum covers.
    pub spares_uncovered: bool,
    /// Larger packets are lost.
    pub carries: u16,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults {
            loss: Loss::None,
            rule: None,
            duplicate: 0,
            copies_late_most: Duration::from_millis(1),
            reorder: 0,
            window: 64,
            held_most: Duration::from_millis(1),
            corrupt: 0,
            spares_uncovered: false,
            carries: u16::MAX,
        }
    }
}

impl Faults {
    /// Independent loss.
    pub fn loss(chance: PerMillion) -> Faults {
        Faults { loss: Loss::Independent(chance), ..Faults::default() }
    }
}

/// Counts of what links did to packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Done {
    /// Packets that network interfaces sent.
    pub sent: u64,
    /// Packets that network interfaces were given.
    pub arrived: u64,
    /// Packets that found a queue full.
    pub queue_full: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Packets lost by rule.
    pub aimed_at: u64,
    /// Packets delivered twice.
    pub duplicated: u64,
    /// Packets that were held back.
    pub reordered: u64,
    /// Packets that were damaged.
    pub corrupted: u64,
    /// Packets larger than a link carried.
    pub too_large: u64,
    /// Packets lost to a partition.
    pub cut: u64,
    /// Packets to hosts that were down, or whose inbox was full.
    pub not_taken: u64,
}

/// The faults of one direction, and their state.
#[derive(Debug)]
pub(crate) struct Harm {
    pub faults: Faults,
    random: Random,
    is_bad: bool,
    /// Packets that the rule matched so far.
    aimed: u32,
    /// How far each stream has got on this link, by channel id: what lies beyond is sent for the first time.
    sent_to: BTreeMap<u32, u64>,
}

impl Harm {
    pub fn new(faults: Faults, seed: u64) -> Harm {
        Harm { faults, random: Random::new(seed), is_bad: false, aimed: 0, sent_to: BTreeMap::new() }
    }

    /// Whether a packet gets through.
    #[inline]
    pub fn passes(&mut self, bytes: &[u8], done: &mut Done) -> bool {
        if bytes.len() > usize::from(self.faults.carries) {
            done.too_large += 1;
            return false;
        }
        if self.faults.rule.is_some() && self.is_aimed_at(bytes) {
            done.aimed_at += 1;
            return false;
        }
        if self.is_lost() {
            done.lost += 1;
            return false;
        }
        true
    }

    /// Whether all packets that get through are unchanged and in order.
    #[inline]
    pub fn is_harmless(&self) -> bool {
        let Faults { duplicate, reorder, corrupt, .. } = self.faults;
        duplicate | reorder | corrupt == 0
    }

    #[inline]
    pub fn chance(&mut self, chance: PerMillion) -> bool {
        chance > 0 && self.random.chance(chance)
    }

    /// A random time up to `most`, in nanoseconds.
    pub fn up_to(&mut self, most: Duration) -> u64 {
        self.random.below(u64::try_from(most.as_nanos()).unwrap_or(u64::MAX))
    }

    /// How many packets overtake the one that is held now.
    pub fn overtakers(&mut self) -> u64 {
        1 + self.random.below(u64::from(self.faults.window.max(1)))
    }

    #[inline]
    fn is_lost(&mut self) -> bool {
        match self.faults.loss {
            Loss::None => false,
            Loss::Independent(chance) => self.random.chance(chance),
            Loss::Bursts(Bursts { good, bad, worsens, mends }) => {
                self.is_bad ^= self.random.chance(if self.is_bad { mends } else { worsens });
                self.random.chance(if self.is_bad { bad } else { good })
            }
        }
    }

    #[cold]
    fn is_aimed_at(&mut self, bytes: &[u8]) -> bool {
        let Some(rule) = self.faults.rule else { return false };
        if rule.target != Target::Every && self.sort_of(bytes) != Some(rule.target) {
            return false;
        }
        self.aimed += 1;
        self.aimed % rule.every.max(1) == 0 && self.random.chance(rule.chance)
    }

    fn sort_of(&mut self, bytes: &[u8]) -> Option<Target> {
        let packet = Packet::decode_as(bytes, Integrity::Header).ok()?;
        if packet.header.kind != PacketKind::Data {
            return Some(Target::SetUp);
        }
        let far = self.sent_to.entry(packet.header.from.0).or_insert(FIRST_OFFSET);
        let (before, mut has_records) = (*far, false);
        for frame in packet.frames().flatten() {
            match frame {
                Frame::Records { offset, bytes, .. } => {
                    has_records = true;
                    *far = (*far).max(widen(*far, offset) + bytes.len() as u64);
                }
                Frame::Accept(_) => return Some(Target::SetUp),
                _ => {}
            }
        }
        Some(match has_records {
            false => Target::Acks,
            true if *far == before => Target::Retransmissions,
            true => Target::Fresh,
        })
    }

    /// Changes a packet, always to something else.
    #[cold]
    pub fn damage(&mut self, packet: &mut Vec<u8>) {
        let covered = Packet::decode_as(packet, Integrity::Header).map_or(packet.len(), |packet| packet.covered());
        let spared = if self.faults.spares_uncovered { packet.split_off(covered) } else { Vec::new() };
        self.damage_any(packet);
        packet.extend(spared);
    }

    fn damage_any(&mut self, packet: &mut Vec<u8>) {
        let Some(last) = packet.len().checked_sub(1) else { return };
        let at = self.random.below(packet.len() as u64) as usize;
        match self.random.below(8) {
            0 => packet[at] ^= 1 << self.random.below(8),
            1 => packet[at] ^= 1 + self.random.below(255) as u8,
            2 => self.flip_burst(packet),
            3 => self.swap_words(packet),
            4 => packet.truncate(at),
            5 => (0..=self.random.below(16)).for_each(|_| packet.push(self.random.bits() as u8)),
            6 => self.clear_tail(packet, at),
            _ => packet[at % HEADER.min(last + 1)] ^= 1 + self.random.below(255) as u8,
        }
    }

    /// Flips up to 32 bits in a row; the first and the last always change.
    fn flip_burst(&mut self, packet: &mut [u8]) {
        let bits = packet.len() as u64 * 8;
        let len = 1 + self.random.below(32.min(bits));
        let from = self.random.below(bits - len + 1);
        for bit in from..from + len {
            let is_end = bit == from || bit == from + len - 1;
            if is_end || self.random.below(2) == 1 {
                packet[(bit / 8) as usize] ^= 1 << (bit % 8);
            }
        }
    }

    /// Swaps two 16-bit words, which keeps their sum.
    fn swap_words(&mut self, packet: &mut [u8]) {
        let words = packet.len() as u64 / 2;
        let [a, b] = [0; 2].map(|_| self.random.below(words) as usize * 2);
        if words < 2 || packet[a..a + 2] == packet[b..b + 2] {
            return self.flip_burst(packet);
        }
        (0..2).for_each(|n| packet.swap(a + n, b + n));
    }

    fn clear_tail(&mut self, packet: &mut [u8], from: usize) {
        match packet[from..].iter().all(|byte| *byte == 0) {
            true => self.flip_burst(packet),
            false => packet[from..].fill(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_does_as_much_as_it_says() {
        let mut done = Done::default();
        let packet = [7; 100];
        let mut harm = Harm::new(Faults::loss(300_000), 1);
        let lost = (0..100_000).filter(|_| !harm.passes(&packet, &mut done)).count();
        assert!((29_000..31_000).contains(&lost), "{lost}");
        assert_eq!(done.lost, lost as u64);

        let mut harm = Harm::new(Faults { loss: Loss::Bursts(Bursts::default()), ..Faults::default() }, 1);
        let fates: Vec<bool> = (0..1_000_000).map(|_| harm.passes(&packet, &mut done)).collect();
        // The link is bad for 1 packet in 21, and then loses 50 %.
        let lost = fates.iter().filter(|passes| !**passes).count();
        assert!((20_000..28_000).contains(&lost), "{lost}");
        let after_a_loss = fates.windows(2).filter(|pair| !pair[0] && !pair[1]).count();
        assert!(after_a_loss > lost * 4 / 10, "losses come together: {after_a_loss} of {lost}");
    }

    #[test]
    fn damage_changes_every_packet() {
        let mut harm = Harm::new(Faults::default(), 3);
        let mut random = Random::new(4);
        for n in 0..200_000 {
            let original: Vec<u8> = (0..1 + random.below(80)).map(|_| random.below(3) as u8).collect();
            let mut packet = original.clone();
            harm.damage(&mut packet);
            assert_ne!(packet, original, "packet {n}");
        }
    }

    #[test]
    fn a_rule_takes_each_nth_of_what_it_aims_at() {
        let rule = Rule { target: Target::Every, every: 2, chance: 1_000_000 };
        let mut harm = Harm::new(Faults { rule: Some(rule), ..Faults::default() }, 1);
        let mut done = Done::default();
        let fates: Vec<bool> = (0..6).map(|_| harm.passes(&[0; 60], &mut done)).collect();
        assert_eq!(fates, [true, false, true, false, true, false]);
        assert_eq!(done.aimed_at, 3);
    }
}
