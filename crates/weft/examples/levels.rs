//! Two levels of reliability side by side: readings of a sensor, which may be lost because the next one is as good, and entries of
//! a log, each of which must be confirmed as received.
//!
//! ```sh
//! cargo run --release --example levels
//! ```

use std::cell::Cell;
use std::rc::Rc;
use weft::{Bundle, Event, Key, MessageKind, Node, Outgoing, Reliability, Service};

const READING: u8 = 1;
const ENTRY: u8 = 2;
const READINGS: u32 = 1000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let node = Node::new()?;
    let key = Key(7);
    let mut sensor = Bundle::new(&node)?;
    let mut station = Bundle::new(&node)?;

    let there = station.endpoint(key)?;
    let (readings, last) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (count, seen) = (readings.clone(), last.clone());
    station.on(there, READING, move |m| {
        count.set(count.get() + 1);
        seen.set(m.args()[0]);
    })?;
    station.on(there, ENTRY, |m| println!("log: {}", String::from_utf8_lossy(m.payload())))?;
    let name = station.name(there)?;

    // Each level has an endpoint of its own.
    let (values, log) = (sensor.endpoint(Key(1))?, sensor.endpoint(Key(2))?);
    sensor.set_service(values, Service { reliability: Reliability::Unreliable, ..Service::default() })?;
    sensor.set_service(log, Service { reliability: Reliability::Reception, ..Service::default() })?;
    for endpoint in [values, log] {
        sensor.map(endpoint, 0, name, key)?;
    }

    let (mut next, mut entries, mut received) = (0, 0, 0);
    while received < 2 || next < READINGS {
        if next < READINGS && sensor.try_send(values, 0, READING, &[next], b"").is_ok() {
            next += 1;
        }
        if entries < 2 {
            let text = ["switched on", "warmed up"][entries];
            let entry = Outgoing { op: ENTRY, args: &[], payload: text.as_bytes(), completion: Some(entries as u64) };
            entries += usize::from(sensor.try_post(log, 0, MessageKind::OneWay, entry).is_ok());
        }
        sensor.poll();
        station.poll();
        while let Some(event) = sensor.next_event() {
            if let Event::Completed(entry) = event {
                println!("entry {entry} was received");
                received += 1;
            }
        }
    }
    while station.poll() > 0 {}
    assert_eq!(sensor.unreceived(log, 0)?, 0);
    println!("{} of {READINGS} readings came, the last of them number {}", readings.get(), last.get());
    Ok(())
}
