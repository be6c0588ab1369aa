//! The wire's counts per direction.

use serde::Serialize;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident: $words:literal,)*) => {
        /// Counts of the frames of one direction.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }

        impl Counts {
            /// All counts, with their names for display.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($words, self.$name),)*].into_iter()
            }
        }
    };
}

counts! {
    /// Frames received.
    frames: "frames",
    /// Their bytes.
    bytes: "bytes",
    /// Lost independently.
    lost: "lost",
    /// Lost in bursts.
    burst_lost: "lost in bursts",
    /// Lost because they were larger than the MTU set by `--mtu`.
    too_large: "lost as too large",
    /// Dropped because the queue in front of the rate was full.
    queue_dropped: "dropped, queue full",
    /// Frames passed on, copies included.
    handed_on: "handed on",
    /// Their bytes.
    handed_on_bytes: "bytes handed on",
    /// Frames passed on later than they came: because of the rate, the delay, or reordering.
    delayed: "delayed",
    /// Frames that others overtook.
    reordered: "reordered",
    /// Copies passed on.
    duplicated: "duplicated",
    /// Frames passed on with a flipped bit.
    corrupted: "corrupted",
    /// Frames that the interface refused: larger than its own MTU, or it was down.
    refused: "not taken by the interface",
    /// Frames of more than 9,000 bytes: an interface has merged them, or the sender has left segmentation to a device.
    merged: "dropped as merged",
    /// Frames that the wire was too slow to receive.
    missed: "missed by the wire",
    /// Frames that were under way at the end.
    on_way: "on their way at the end",
}
