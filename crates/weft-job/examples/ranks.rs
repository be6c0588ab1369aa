//! Tests a launcher: every rank reaches every other one, and barriers and gathers work. `mpiexec -n 4 ranks` prints one line if all is
//! well. `mpiexec -n 4 ranks exit 3` ends the whole job with status 3.

use std::{cell::Cell, rc::Rc};
use weft::{Bundle, Node};
use weft_job::{Job, Launched};

const GREET: u8 = 1;

/// A rank's contribution, which differs in length from those of others.
fn gift(rank: u32) -> Vec<u8> {
    (0..rank * 30_000).map(|at| (at + rank) as u8).collect()
}

fn expect(is_so: bool, what: &str) -> Result<(), String> {
    is_so.then_some(()).ok_or_else(|| format!("it is not so that {what}"))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut job = Job::from_environment()?;
    let mut bundle = Bundle::new(&Node::new()?)?;
    let me = bundle.endpoint_with_random_key()?;
    let greeted = Rc::new(Cell::new(0));
    let noted = greeted.clone();
    bundle.on(me, GREET, move |m| noted.set(noted.get() + m.args()[0] + 1))?;
    job.join(&mut bundle, me)?;
    let (rank, size) = (job.rank(), job.size());

    if std::env::args().nth(1).as_deref() == Some("exit") {
        let status = std::env::args().nth(2).and_then(|status| status.parse().ok()).unwrap_or(1);
        // The other ranks wait for this one, and are ended.
        if rank == size - 1 {
            job.exit(status);
        }
        job.barrier(&mut bundle)?;
        return Err("the job goes on".into());
    }

    // Longer than the values that some launchers take.
    let given = job.exchange(&[rank as u8; 3000])?;
    let is_right = (0..size).all(|rank| given[rank as usize] == [rank as u8; 3000]);
    expect(is_right, "an exchange gives what all gave")?;
    for to in 0..size {
        bundle.send(me, to, GREET, &[rank], b"")?;
    }
    bundle.poll_until(|_| greeted.get() == size * (size + 1) / 2);
    for _ in 0..100 {
        job.barrier(&mut bundle)?;
    }
    let gathered = job.all_gather(&mut bundle, &gift(rank))?;
    expect(gathered == (0..size).map(gift).collect::<Vec<_>>(), "a gather gives what all gave")?;
    let by = match job.launched() {
        Launched::Alone => "nobody",
        Launched::ByWeft => "weft run",
        Launched::ByPmi => "PMI",
        Launched::ByPmix => "PMIx",
    };
    if rank == 0 {
        println!("ranks: {size} ranks by {by}: all as it should be");
    }
    job.barrier(&mut bundle)?;
    Ok(job.leave()?)
}
