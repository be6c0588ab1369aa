//! Two threads, two million records of all sizes: each arrives once, in order and with its contents.

mod support;

use support::{fill, seed, Memory, Rng, Tapped};
use weft_shm::{Consumer, Lanes, Producer, RingMem};
use weft_wire::path::{Peek, PushError};
use weft_wire::{Head, Kind, MAX_PAYLOAD};

const RECORDS: u64 = if cfg!(debug_assertions) { 100_000 } else { 2_000_000 };

/// The shape of record `number`: most are small, one in a thousand is of any size.
fn shape(number: u64, seed: u64) -> (Head, [u32; 16], u64) {
    let mut rng = Rng(seed ^ number.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let len = match rng.below(1000) {
        0 => rng.below(MAX_PAYLOAD as u64 + 1),
        1..50 => rng.below(2000),
        50..200 => rng.below(300),
        _ => rng.below(49),
    };
    let word = rng.next();
    let head = Head { op: word as u8, args: (word >> 8) as u8 % 17, len: len as u32, ..Head::new(Kind::Send) };
    let head = Head { flow: number as u16, slot: (number >> 16) as u16, ..head };
    (head, std::array::from_fn(|i| (word >> 16) as u32 ^ i as u32), word)
}

fn produce<M: RingMem>(mut producer: Producer<M>, seed: u64, records: u64) -> (u64, u64) {
    let (mut sum, mut refused) = (0, 0);
    let mut payload = vec![0; MAX_PAYLOAD];
    for number in 0..records {
        let (head, args, word) = shape(number, seed);
        let payload = &mut payload[..head.len as usize];
        fill(payload, word);
        sum = checksum(sum, payload);
        while let Err(error) = producer.push(head, &args[..usize::from(head.args)], payload) {
            assert_eq!(error, PushError::Full);
            refused += 1;
            std::thread::yield_now();
        }
    }
    (sum, refused)
}

/// Reads all records. `ended` says whether the producer has ended, well or badly.
fn consume<M: RingMem>(mut consumer: Consumer<M>, seed: u64, records: u64, ended: impl Fn() -> bool) -> u64 {
    let mut sum = 0;
    for number in 0..records {
        let (head, args, _) = shape(number, seed);
        loop {
            let ended = ended();
            match consumer.peek() {
                Peek::Empty => {
                    assert!(!ended, "record {number} is missing");
                    std::thread::yield_now();
                }
                Peek::Broken(malformed) => panic!("record {number}: {malformed}"),
                Peek::Record(record) => {
                    assert_eq!(record.head, head.into(), "record {number}");
                    assert_eq!(record.args, &args[..usize::from(head.args)], "record {number}");
                    sum = checksum(sum, record.payload);
                    break;
                }
            }
        }
        consumer.pop();
    }
    assert!(matches!(consumer.peek(), Peek::Empty), "a record too many");
    sum
}

/// A sum that depends on every byte and on their order.
fn checksum(sum: u64, payload: &[u8]) -> u64 {
    let step = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let mut words = payload.chunks_exact(8);
    let sum = words.by_ref().fold(sum, |sum, word| step(sum, u64::from_le_bytes(word.try_into().expect("8 bytes"))));
    words.remainder().iter().fold(step(sum, payload.len() as u64), |sum, &byte| step(sum, u64::from(byte)))
}

/// Sends records from one thread to another, each with its own view of the memory.
fn stream<M: RingMem + Send>(producer: Producer<M>, consumer: Consumer<M>, records: u64) {
    let seed = seed();
    std::thread::scope(|scope| {
        let producing = scope.spawn(move || produce(producer, seed, records));
        let received = consume(consumer, seed, records, || producing.is_finished());
        let (sent, refused) = producing.join().expect("producer");
        println!("refused {refused} times");
        assert_eq!(received, sent, "a payload changed on the way");
    });
}

fn lanes() -> Lanes {
    Lanes::new(16 << 10, 1 << 20)
}

#[test]
fn two_million_records_of_mixed_sizes_pass_between_two_threads() {
    let memory = Memory::new(lanes());
    stream(memory.producer(), memory.consumer(), RECORDS);
}

#[test]
fn records_that_are_stored_past_the_caches_pass_between_two_threads() {
    let memory = Memory::new(lanes());
    let maps = [memory.map(), memory.map()];
    let [sending, receiving] = maps.each_ref().map(|mem| Tapped::at_distance(mem, |_| (), 1000));
    stream(Producer::new(sending, lanes()), Consumer::new(receiving, lanes()), RECORDS / 4);
}
