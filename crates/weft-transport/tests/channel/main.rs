//! Tests of the channel: two of them over links in memory, in virtual time.
//!
//! * `world`: two hosts with doors and channels, bad links between them, and a ledger of every record.
//! * `transcripts`: one behaviour each, written as what goes in and what comes out.
//! * `streams`: how streams are opened by what comes, and closed at rest.
//! * `pauses`: streams whose reader takes nothing for now.
//! * `spacing`: packets that are sent evenly.
//! * `sizes`: packet sizes that are found, and lost again.
//! * `faults`: many records over bad links, and deaths; the ledger is itself tested with planted faults.
//! * `refusals`: processes that ended on hosts that live.
//! * `integrity`: checksums that leave payloads out.
//! * `unreliable`: messages that may be lost; `words`: when acknowledgements are taken in.
//! * `hostile`: packets that no honest peer sends; `attacks`: many of them.
//!
//! Random tests print their seed when they fail; `SEED=n` runs them with another one.

mod attacks;
mod faults;
mod hostile;
mod integrity;
mod pauses;
mod refusals;
mod shares;
mod sizes;
mod spacing;
mod streams;
mod transcripts;
mod unreliable;
mod words;
mod world;
