//! One behaviour each.
