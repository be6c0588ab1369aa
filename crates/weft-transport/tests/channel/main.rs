//! Tests of the channel: two channels over links in memory, in virtual time.
//!
//! * `world`: two hosts with doors and channels, bad links between them, and a ledger of every record.
//! * `transcripts`: one behaviour each, written as input and expected output.
//! * `streams`: how arriving records open streams, and how streams are closed at rest.
//! * `pauses`: paused streams.
//! * `spacing`: pacing.
//! * `sizes`: how packet sizes are found and reduced.
//! * `faults`: many records over bad links, and deaths; the ledger is itself tested with planted faults.
//! * `refusals`: processes that ended on live hosts.
//! * `integrity`: checksums that leave payloads out.
//! * `unreliable`: unreliable messages; `words`: when acknowledgements are processed.
//! * `hostile`: packets that no honest peer sends; `attacks`: many of them; `readers`: peers that lie about what they read.
//!
//! Random tests print their seed when they fail; `SEED=n` runs them with another one.

mod attacks;
mod faults;
mod hostile;
mod integrity;
mod pauses;
mod readers;
mod refusals;
mod shares;
mod sizes;
mod spacing;
mod streams;
mod transcripts;
mod unreliable;
mod words;
mod world;
