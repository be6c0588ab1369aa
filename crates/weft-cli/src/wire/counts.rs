//! What the wire did, per direction.

use serde::Serialize;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident: $words:literal,)*) => {
        /// What was done to the frames of one direction.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }

        impl Counts {
            /// All of them, as people read them.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($words, self.$name),)*].into_iter()
            }
        }
    };
}

counts! {
    /// Frames that came.
    frames: "frames",
    /// Their bytes.
    bytes: "bytes",
    /// Lost, each by its own lot.
    lost: "lost",
    /// Lost in bursts.
    burst_lost: "lost in bursts",
    /// Lost because they were larger than the MTU that was asked for.
    too_large: "lost as too large",
    /// Dropped because the queue in front of the rate was full.
    queue_dropped: "dropped, queue full",
    /// Frames handed on, copies included.
    handed_on: "handed on",
    /// Their bytes.
    handed_on_bytes: "bytes handed on",
    /// Those of them that left later than they came: because of the rate, the delay, or to be overtaken.
    delayed: "delayed",
    /// Those that others overtook.
    reordered: "reordered",
    /// Those that were copies.
    duplicated: "duplicated",
    /// Those in which a bit was flipped.
    corrupted: "corrupted",
    /// Frames that the interface did not take: larger than its own MTU, or it was down.
    refused: "not taken by the interface",
    /// Frames of more than 9,000 bytes: an interface has merged them, or left their cutting up to another one.
    merged: "dropped as merged",
    /// Frames that came and were not seen: the wire was too slow.
    missed: "missed by the wire",
    /// Frames that were on their way at the end.
    on_way: "on their way at the end",
}
