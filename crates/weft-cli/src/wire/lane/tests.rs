use super::super::faults::Wanted;
use super::*;

const MS: u64 = 1_000_000;

fn lane(words: &[(&str, &str)]) -> Lane {
    let (mut wanted, mut faults) = (Wanted::default(), [Faults::default(); 2]);
    words.iter().for_each(|(word, value)| wanted.set(word, value).expect("a word and its value"));
    wanted.change(&mut faults);
    Lane::new(faults[0], 1, 0)
}

/// A datagram of this many bytes that contains its number.
fn numbered(number: u32, bytes: usize) -> Buffer {
    let mut payload = number.to_be_bytes().to_vec();
    payload.resize(bytes - 42, 0);
    let bytes = frame::tests::datagram(&payload, false).into_boxed_slice();
    Buffer { length: bytes.len(), bytes }
}

fn number_of(frame: &Frame) -> u32 {
    u32::from_be_bytes(frame.buffer.frame()[42..46].try_into().expect("four bytes"))
}

/// The frames that left in this time, each with its time, looked at every `step`.
fn leave(lane: &mut Lane, from: u64, until: u64, step: u64) -> Vec<(u64, u32)> {
    let mut left = Vec::new();
    for now in (from..=until).step_by(step as usize) {
        while let Some(frame) = lane.leave(now) {
            left.push((now, number_of(&frame)));
        }
    }
    left
}

/// The numbers of the frames that leave at once, of `count` frames that come one per microsecond.
fn passed(lane: &mut Lane, count: u32) -> Vec<u32> {
    let mut left = Vec::new();
    for number in 0..count {
        let now = u64::from(number) * 1000;
        lane.take(now, numbered(number, 100));
        while let Some(frame) = lane.leave(now) {
            left.push(number_of(&frame));
        }
    }
    while let Some(frame) = lane.leave(u64::MAX) {
        left.push(number_of(&frame));
    }
    left
}

#[test]
fn without_faults_frames_leave_at_once_as_they_came() {
    let mut lane = lane(&[]);
    assert_eq!(passed(&mut lane, 100), (0..100).collect::<Vec<_>>());
    assert_eq!((lane.counts.frames, lane.counts.bytes, lane.counts.lost), (100, 10_000, 0));
}

#[test]
fn a_delay_holds_each_frame_for_its_time() {
    let mut lane = lane(&[("delay", "5ms")]);
    for number in 0..3 {
        lane.take(u64::from(number) * MS, numbered(number, 100));
    }
    assert_eq!(lane.next_due(), Some(5 * MS));
    assert_eq!(leave(&mut lane, 0, 10 * MS, MS / 2), [(5 * MS, 0), (6 * MS, 1), (7 * MS, 2)]);
    assert_eq!(lane.next_due(), None);
}

#[test]
fn jitter_changes_the_delay_and_not_the_order() {
    let mut lane = lane(&[("delay", "5ms"), ("jitter", "2ms")]);
    for number in 0..1000 {
        lane.take(u64::from(number) * MS / 100, numbered(number, 100));
    }
    let left = leave(&mut lane, 0, 100 * MS, MS / 100);
    assert!(left.iter().map(|(_, number)| *number).eq(0..1000));
    let delays = left.iter().map(|(at, number)| at - u64::from(*number) * MS / 100);
    let (least, most) = (delays.clone().min().expect("some"), delays.max().expect("some"));
    assert!((3 * MS..5 * MS).contains(&least) && (6 * MS..=7 * MS + MS / 100).contains(&most), "{least} to {most}");
}

#[test]
fn a_rate_spaces_frames_and_its_queue_drops_the_tail() {
    // 1,000 bytes are 1 ms at 8 Mbit/s.
    let mut bytes = lane(&[("rate", "8Mbit"), ("queue", "3500")]);
    let mut frames = lane(&[("rate", "8Mbit"), ("queue", "3p")]);
    for lane in [&mut bytes, &mut frames] {
        for number in 0..5 {
            lane.take(0, numbered(number, 1000));
        }
        assert_eq!(lane.counts.queue_dropped, 2);
        // One has passed: there is room for one.
        lane.take(MS, numbered(5, 1000));
        lane.take(MS, numbered(6, 1000));
        assert_eq!(lane.counts.queue_dropped, 3);
        assert_eq!(leave(lane, 0, 10 * MS, MS / 2), [(MS, 0), (2 * MS, 1), (3 * MS, 2), (4 * MS, 5)]);
        // An idle rate does not accumulate credit.
        lane.take(20 * MS, numbered(7, 1000));
        assert_eq!(leave(lane, 20 * MS, 30 * MS, MS / 2), [(21 * MS, 7)]);
    }
}

#[test]
fn loss_takes_its_share_and_the_same_frames_again() {
    let few = passed(&mut lane(&[("loss", "30%")]), 10_000);
    assert!((6_800..7_200).contains(&few.len()), "{}", few.len());
    assert_eq!(few, passed(&mut lane(&[("loss", "30%")]), 10_000));
    // Other faults do not change which frames are lost.
    let mut others = passed(&mut lane(&[("loss", "30%"), ("reorder", "5%,8"), ("corrupt", "0%")]), 10_000);
    others.sort_unstable();
    assert_eq!(few, others);
    assert!(passed(&mut lane(&[("loss", "100%")]), 100).is_empty());
}

#[test]
fn a_bounded_run_lets_the_next_frame_pass() {
    let mut lane = lane(&[("loss", "90%"), ("loss-run", "3")]);
    let left = passed(&mut lane, 10_000);
    let gaps = left.windows(2).map(|two| two[1] - two[0]);
    assert_eq!(gaps.max(), Some(4));
    assert_eq!(lane.counts.lost + left.len() as u64, 10_000);
}

#[test]
fn bursts_lose_many_in_a_row() {
    let mut lane = lane(&[("burst", "0.1%,20,50%")]);
    let left = passed(&mut lane, 100_000);
    let lost = lane.counts.burst_lost;
    assert_eq!((lost + left.len() as u64, lane.counts.lost), (100_000, 0));
    // 100 bursts of 20 frames, half of which are lost.
    assert!((600..1_600).contains(&lost), "{lost}");
    // Lost frames are close together: most have another one within ten frames.
    let missing: Vec<u32> = (0..100_000).filter(|number| left.binary_search(number).is_err()).collect();
    let near = missing.windows(2).filter(|two| two[1] - two[0] <= 10).count();
    assert!(near * 10 > missing.len() * 8, "{near} of {}", missing.len());
}

#[test]
fn reordered_frames_are_overtaken_by_no_more_than_the_window() {
    let mut lane = lane(&[("reorder", "10%,16")]);
    let mut overtaken = 0;
    let mut left = Vec::new();
    for number in 0..10_000 {
        lane.take(0, numbered(number, 100));
        while let Some(frame) = lane.leave(0) {
            overtaken += u32::from(frame.fate.is_overtaken);
            left.push(number_of(&frame));
        }
    }
    assert!((900..1_100).contains(&overtaken), "{overtaken}");
    let most = left.iter().enumerate().map(|(at, number)| at as i64 - i64::from(*number)).max();
    assert!(most.is_some_and(|most| (10..=16).contains(&most)), "{most:?}");
    // A frame that no other follows leaves when its time is up, and was not overtaken.
    let held = lane.on_way();
    let last = leave(&mut lane, HELD_MOST, HELD_MOST, 1);
    assert_eq!(last.len(), held);
    left.extend(last.iter().map(|(_, number)| *number));
    left.sort_unstable();
    assert!(left.into_iter().eq(0..10_000), "each once");
}

#[test]
fn copies_come_at_once_or_later() {
    let mut at_once = lane(&[("duplicate", "20%")]);
    let left = passed(&mut at_once, 10_000);
    let copies = left.windows(2).filter(|two| two[0] == two[1]).count();
    assert!((1_900..2_100).contains(&copies) && left.len() == 10_000 + copies, "{copies}");
    let mut later = lane(&[("duplicate", "100%,60s")]);
    assert!((0..100).all(|number| later.take(0, numbered(number, 100)).is_none()));
    assert_eq!(leave(&mut later, 0, 0, 1).len(), 100);
    let copies = leave(&mut later, 0, 60_000 * MS, MS);
    assert_eq!(copies.len(), 100);
    assert!(copies.iter().any(|(at, _)| *at > 50_000 * MS));
}

#[test]
fn the_share_that_is_corrupted_is_marked_and_differs() {
    let mut lane = lane(&[("corrupt", "50%")]);
    let mut marked = 0;
    for number in 0..1000 {
        lane.take(0, numbered(number, 100));
        let frame = lane.leave(0).expect("it leaves at once");
        let differs = frame.buffer.frame() != numbered(number, 100).frame();
        assert_eq!(differs, frame.fate.is_corrupt);
        marked += u32::from(differs);
    }
    assert!((400..600).contains(&marked), "{marked}");
}

#[test]
fn packets_above_the_mtu_are_dropped() {
    let mut lane = lane(&[("mtu", "576")]);
    assert!(lane.take(0, numbered(0, 14 + 577)).is_some());
    assert!(lane.take(0, numbered(1, 14 + 576)).is_none());
    assert_eq!((lane.counts.too_large, leave(&mut lane, 0, 0, 1).len()), (1, 1));
}
