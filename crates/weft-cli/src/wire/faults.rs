//! The faults of one direction, as the user sets them.

use super::counts::Counts;
use super::values::{Bursts, Count, Duplicate, Nanos, Pair, Rate, Reorder, Room, Share, Wrong};

/// The default queue in front of a rate: this much time, and at least this many bytes.
const QUEUE_TIME_MS: u64 = 20;
const QUEUE_BYTES_LEAST: u64 = 64 << 10;

/// The faults of one direction.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Faults {
    pub loss: Share,
    /// At most this many frames are lost in a row by `loss`.
    pub loss_run: Option<u32>,
    pub bursts: Bursts,
    pub delay: Nanos,
    /// The delay varies by this much at most; frames stay in order.
    pub jitter: Nanos,
    pub rate: Rate,
    /// The queue for the rate.
    pub queue: Option<Room>,
    pub reorder: Reorder,
    pub duplicate: Duplicate,
    pub corrupt: Share,
    /// The largest packet, without the Ethernet header.
    pub mtu: Option<u32>,
}

impl Faults {
    /// The size of the queue.
    pub fn room(&self) -> Room {
        let default = || (self.rate.0 / 8 * QUEUE_TIME_MS / 1000).max(QUEUE_BYTES_LEAST);
        self.queue.unwrap_or_else(|| Room::Bytes(default()))
    }
}

/// The options for faults, on the command line and, by the same names, in a scenario.
#[derive(Clone, Copy, PartialEq, Debug, Default, clap::Args)]
pub struct Wanted {
    /// Loses this share of the frames, each independently.
    #[arg(long, value_name = "SHARE")]
    loss: Option<Pair<Share>>,
    /// Loses at most this many frames in a row by `--loss`.
    #[arg(long, value_name = "FRAMES")]
    loss_run: Option<Pair<Count>>,
    /// Loses frames in bursts: how often one begins, their mean length in frames, and the share lost in them (all).
    #[arg(long, value_name = "SHARE,FRAMES[,SHARE]")]
    burst: Option<Pair<Bursts>>,
    /// Delays each frame by this time.
    #[arg(long, value_name = "TIME")]
    delay: Option<Pair<Nanos>>,
    /// Varies the delay by at most this much; frames stay in order.
    #[arg(long, value_name = "TIME")]
    jitter: Option<Pair<Nanos>>,
    /// Limits the rate to this many bits per second, Ethernet headers included.
    #[arg(long, value_name = "RATE")]
    rate: Option<Pair<Rate>>,
    /// The queue for the rate (default: 20 ms of it, at least 64 KiB); further frames are dropped.
    #[arg(long, value_name = "BYTES|FRAMESp")]
    queue: Option<Pair<Room>>,
    /// Holds this share of the frames back until others, at most this many (64), have passed; at most 10 ms.
    #[arg(long, value_name = "SHARE[,FRAMES]")]
    reorder: Option<Pair<Reorder>>,
    /// Sends this share of the frames twice, the copy at most this much later (at once).
    #[arg(long, value_name = "SHARE[,TIME]")]
    duplicate: Option<Pair<Duplicate>>,
    /// Flips a bit in this share of the UDP datagrams, behind their header, and corrects their checksum.
    #[arg(long, value_name = "SHARE")]
    corrupt: Option<Pair<Share>>,
    /// Silently drops packets of more bytes than this.
    #[arg(long, value_name = "BYTES")]
    mtu: Option<Pair<Count>>,
}

impl Wanted {
    /// Sets one value from a scenario.
    pub fn set(&mut self, word: &str, value: &str) -> Result<(), Wrong> {
        match word {
            "loss" => self.loss = Some(value.parse()?),
            "loss-run" => self.loss_run = Some(value.parse()?),
            "burst" => self.burst = Some(value.parse()?),
            "delay" => self.delay = Some(value.parse()?),
            "jitter" => self.jitter = Some(value.parse()?),
            "rate" => self.rate = Some(value.parse()?),
            "queue" => self.queue = Some(value.parse()?),
            "reorder" => self.reorder = Some(value.parse()?),
            "duplicate" => self.duplicate = Some(value.parse()?),
            "corrupt" => self.corrupt = Some(value.parse()?),
            "mtu" => self.mtu = Some(value.parse()?),
            _ => return Err(format!("`{word}` is not known: use the options of `weft wire --help`, without --")),
        }
        Ok(())
    }

    /// Takes over the values that are set in another one.
    pub fn give_way(&mut self, other: &Wanted) {
        let Wanted { loss, loss_run, burst, delay, jitter, rate, queue, reorder, duplicate, corrupt, mtu } = *other;
        *self = Wanted {
            loss: loss.or(self.loss),
            loss_run: loss_run.or(self.loss_run),
            burst: burst.or(self.burst),
            delay: delay.or(self.delay),
            jitter: jitter.or(self.jitter),
            rate: rate.or(self.rate),
            queue: queue.or(self.queue),
            reorder: reorder.or(self.reorder),
            duplicate: duplicate.or(self.duplicate),
            corrupt: corrupt.or(self.corrupt),
            mtu: mtu.or(self.mtu),
        };
    }

    /// Which counts tell of the faults that are set here: these are not 0.
    pub fn counted(&self) -> Counts {
        let Wanted { loss, loss_run, burst, delay, jitter, rate, queue, reorder, duplicate, corrupt, mtu } = *self;
        Counts {
            lost: (loss.is_some() || loss_run.is_some()).into(),
            burst_lost: burst.is_some().into(),
            too_large: mtu.is_some().into(),
            queue_dropped: (rate.is_some() || queue.is_some()).into(),
            delayed: (delay.is_some() || jitter.is_some() || rate.is_some()).into(),
            reordered: reorder.is_some().into(),
            duplicated: duplicate.is_some().into(),
            corrupted: corrupt.is_some().into(),
            ..Counts::default()
        }
    }

    /// Changes the faults that are set here; the rest stays as it is.
    pub fn change(&self, faults: &mut [Faults; 2]) {
        for (way, faults) in faults.iter_mut().enumerate() {
            take(&mut faults.loss, self.loss, way);
            take(&mut faults.bursts, self.burst, way);
            take(&mut faults.delay, self.delay, way);
            take(&mut faults.jitter, self.jitter, way);
            take(&mut faults.rate, self.rate, way);
            take(&mut faults.reorder, self.reorder, way);
            take(&mut faults.duplicate, self.duplicate, way);
            take(&mut faults.corrupt, self.corrupt, way);
            faults.loss_run = self.loss_run.map(|Pair(both)| both[way].0).or(faults.loss_run);
            faults.queue = self.queue.map(|Pair(both)| both[way]).or(faults.queue);
            faults.mtu = self.mtu.map(|Pair(both)| both[way].0).or(faults.mtu);
        }
    }
}

fn take<T: Copy>(value: &mut T, wanted: Option<Pair<T>>, way: usize) {
    if let Some(Pair(both)) = wanted {
        *value = both[way];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_later_changes_nothing_else() {
        let mut faults = [Faults::default(); 2];
        let mut first = Wanted::default();
        first.set("loss", "5%/10%").expect("a share");
        first.set("rate", "1Gbit").expect("a rate");
        first.change(&mut faults);
        let mut second = Wanted::default();
        second.set("rate", "100Mbit/none").expect("a rate");
        second.change(&mut faults);
        let share = |text: &str| text.parse::<Share>().expect("a share");
        assert_eq!([faults[0].loss, faults[1].loss], [share("5%"), share("10%")]);
        assert_eq!([faults[0].rate, faults[1].rate], [Rate(100_000_000), Rate(0)]);
        assert_eq!(faults[0].room(), Room::Bytes(250_000));
        assert!(first.set("los", "5%").is_err_and(|said| said.contains("`los` is not known")));
    }
}
