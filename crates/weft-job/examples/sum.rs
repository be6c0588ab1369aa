//! A parallel sum: each rank adds up its part of the numbers from 1 to a million, and sends that to rank 0.
//! `weft run -n 4 target/release/examples/sum` runs it as four processes, and so do `mpiexec -n 4` and `mpirun -n 4`.

use std::{cell::Cell, rc::Rc};
use weft::{Bundle, Node};
use weft_job::Job;

const LAST: u64 = 1_000_000;
const ADD: u8 = 1;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut job = Job::from_environment()?;
    let mut bundle = Bundle::new(&Node::new()?)?;
    let me = bundle.endpoint_with_random_key()?;
    let (sum, parts) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (to, heard) = (sum.clone(), parts.clone());
    bundle.on(me, ADD, move |m| {
        let [low, high] = *m.args() else { return };
        to.set(to.get() + u64::from(low) + (u64::from(high) << 32));
        heard.set(heard.get() + 1);
    })?;
    job.join(&mut bundle, me)?; // from here on index i of the endpoint's table is rank i

    let (rank, size) = (u64::from(job.rank()), u64::from(job.size()));
    let part: u64 = (1..=LAST).filter(|number| number % size == rank).sum();
    bundle.send(me, 0, ADD, &[part as u32, (part >> 32) as u32], b"")?;
    if rank == 0 {
        bundle.poll_until(|_| parts.get() == size);
        println!("the sum of 1 to {LAST} is {}, by {size} ranks", sum.get());
    }
    job.barrier(&mut bundle)?;
    Ok(())
}
