//! Tests of the core over paths in ordinary memory: what becomes of every message if peers die, lie or do not listen.
//!
//! * `world`: bundles, the home that connects them, and a network interface that can die at any path operation.
//! * `transcripts`: one behaviour each, written as input and expected output.
//! * `closing`: closing flows and reusing their numbers.
//! * `levels`: unreliable messages; order when messages are refused.
//! * `long`: messages of any length, placed into segments.
//! * `hostile`: a peer that pushes whatever it likes.
//! * `model`: random programs against a ledger of every message; the ledger is itself tested with planted faults.
//! * `reports`: the reports of a bundle.
//! * `visits`: a client that ends visits before everything is taken.
//! * `neglect`: programs that do not take their events, and peers that cause more of them.
//! * `floods`: both ways, through paths that hold one largest record.
//!
//! Random tests write no files. A failure prints the shrunk input, and the seed: run again with `PROPTEST_RNG_SEED=seed`.

mod closing;
mod floods;
mod held;
mod hostile;
mod levels;
mod long;
mod model;
mod moves;
mod neglect;
mod reports;
mod transcripts;
mod visits;
mod world;
