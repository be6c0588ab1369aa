//! Packets that no honest peer sends.
