//! Parses quantities from the command line: chances, rates, sizes, times, topologies, rules.

use std::ops::RangeInclusive;
use std::time::Duration;
use weft_sim::{HostId, PerMillion, Plant, Rule, Target, Topology};

/// `30%`, `0.1%`, or a part such as `0.3`.
pub fn chance(text: &str) -> Result<PerMillion, String> {
    let (number, unit) = match text.strip_suffix('%') {
        Some(number) => (number, 10_000.0),
        None => (text, 1_000_000.0),
    };
    let number: f64 = number.trim().parse().map_err(|_| "not a number with or without %, such as 30%".to_string())?;
    let per_million = number * unit;
    match (0.0..=1_000_000.0).contains(&per_million) {
        true => Ok(per_million.round() as PerMillion),
        false => Err("not from 0% to 100%".to_string()),
    }
}

/// A number followed by one of these units.
fn quantity(text: &str, units: &[(&str, f64)]) -> Result<f64, String> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let names = || units.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let number: f64 = number.parse().map_err(|_| format!("not a number with a unit ({})", names()))?;
    let found = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit.trim()));
    found.map(|(_, size)| number * size).ok_or_else(|| format!("unknown unit {unit:?}; use one of {}", names()))
}

/// `20us`, `1.5ms`, `3s`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9), ("min", 60e9), ("h", 3600e9)];
    quantity(text, &units).map(|nanos| Duration::from_nanos(nanos.round() as u64))
}

/// `1G`, `100M`: bits per second.
pub fn rate(text: &str) -> Result<u64, String> {
    let rate = quantity(text, &[("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9)])? as u64;
    if rate == 0 {
        Err("a rate is at least 1".to_string())
    } else {
        Ok(rate)
    }
}

/// `64K`, `1M`: bytes, in powers of 1024.
pub fn bytes(text: &str) -> Result<u32, String> {
    let bytes = quantity(text, &[("", 1.0), ("K", 1024.0), ("M", 1024.0 * 1024.0)])?;
    if bytes <= f64::from(u32::MAX) {
        Ok(bytes as u32)
    } else {
        Err("at most 4095M".to_string())
    }
}

/// `pair`, `star:16`, `tree:16x16`.
pub fn topology(text: &str) -> Result<Topology, String> {
    let (kind, size) = text.split_once(':').unwrap_or((text, ""));
    let number = |text: &str, most| text.parse().ok().filter(|n| (1..=most).contains(n));
    match kind {
        "pair" if size.is_empty() => Some(Topology::Pair),
        "star" => number(size, weft_sim::HOSTS_MOST).filter(|n| *n >= 2).map(Topology::Star),
        "tree" => size.split_once('x').and_then(|(switches, hosts)| {
            let hosts = number(hosts, 64).filter(|n| *n >= 2)?;
            Some(Topology::Tree { switches: number(switches, 64)?, hosts })
        }),
        _ => None,
    }
    .ok_or_else(|| "not pair, star:2 to star:4096, or tree:1x2 to tree:64x64 (switches x hosts of each)".to_string())
}

/// `A..B`: seeds from A to B, both included.
pub fn seeds(text: &str) -> Result<RangeInclusive<u64>, String> {
    let ends = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..=to.parse().ok()?));
    ends.filter(|seeds| !seeds.is_empty())
        .ok_or_else(|| "not two numbers such as 1..100, the smaller one first".to_string())
}

/// `acks`, `retransmissions`, `fresh`, `set-up`, `every`; a suffix `:N` means each N-th.
pub fn rule(text: &str) -> Result<Rule, String> {
    let (target, every) = text.split_once(':').unwrap_or((text, "1"));
    let target = match target {
        "acks" => Target::Acks,
        "retransmissions" => Target::Retransmissions,
        "fresh" => Target::Fresh,
        "set-up" => Target::SetUp,
        "every" => Target::Every,
        _ => return Err("not acks, retransmissions, fresh, set-up or every, with :N for each N-th".to_string()),
    };
    let every = every.parse().ok().filter(|n| *n > 0).ok_or("not a number behind the colon")?;
    Ok(Rule { target, every, chance: 1_000_000 })
}

/// Something that happens to a host and may end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spell {
    pub host: HostId,
    pub from: Duration,
    pub until: Option<Duration>,
}

/// `HOST@FROM..UNTIL`, or `HOST@FROM`.
pub fn spell(text: &str) -> Result<Spell, String> {
    let wrong = || "not HOST@FROM..UNTIL, such as 0@10ms..1s".to_string();
    let (host, times) = text.split_once('@').ok_or_else(wrong)?;
    let host = HostId(host.parse().map_err(|_| wrong())?);
    let (from, until) = match times.split_once("..") {
        Some((from, until)) => (from, Some(duration(until)?)),
        None => (times, None),
    };
    Ok(Spell { host, from: duration(from)?, until })
}

/// `lose:N`, `repeat:N`, `change:N`, `return:N`: after N messages.
pub fn plant(text: &str) -> Result<(Plant, u64), String> {
    let wrong = "not lose:N, repeat:N, change:N or return:N";
    let (what, after) = text.split_once(':').ok_or(wrong)?;
    let plant = match what {
        "lose" => Plant::Lose,
        "repeat" => Plant::Repeat,
        "change" => Plant::Change,
        "return" => Plant::Return,
        _ => return Err(wrong.to_string()),
    };
    Ok((plant, after.parse().map_err(|_| wrong)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_and_others_refused() {
        assert_eq!([chance("30%"), chance("0.001"), chance("100%")], [Ok(300_000), Ok(1000), Ok(1_000_000)]);
        assert_eq!(duration("1.5ms"), Ok(Duration::from_micros(1500)));
        assert_eq!((rate("10G"), bytes("64K")), (Ok(10_000_000_000), Ok(65_536)));
        assert_eq!(topology("tree:16x16"), Ok(Topology::Tree { switches: 16, hosts: 16 }));
        assert_eq!([seeds("3..9"), seeds("3..3")], [Ok(3..=9), Ok(3..=3)]);
        let times = (Duration::from_millis(1), Some(Duration::from_secs(2)));
        assert_eq!(spell("1@1ms..2s").map(|s| (s.host, s.from, s.until)), Ok((HostId(1), times.0, times.1)));
        let refused = [
            chance("130%").is_err(),
            duration("5").is_err(),
            duration("x").is_err(),
            rate("0").is_err(),
            topology("star:1").is_err(),
            topology("ring").is_err(),
            seeds("9..3").is_err(),
            rule("acks:0").is_err(),
            spell("1").is_err(),
            plant("lose").is_err(),
        ];
        assert_eq!(refused, [true; 10]);
    }
}
