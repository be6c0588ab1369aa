//! Settings in the environment: those that switch something on or off, and warnings about unknown names.

use std::env;
use std::ffi::OsString;
use std::io::Write;
use std::sync::Once;
use weft_link::NetworkError;

/// Off: no process is trusted, and all messages are copied.
pub(crate) const TRUST: &str = "WEFT_TRUST";

/// Off: nodes have no helper thread.
pub(crate) const HELPER: &str = "WEFT_HELPER";

/// Off: messages to processes of the same host go over the network as well.
pub(crate) const LOCAL: &str = "WEFT_LOCAL";

/// Off: serviced bundles have no thread that polls for the program.
pub(crate) const SERVICE: &str = "WEFT_SERVICE";

/// On: no warnings about unknown names.
const QUIET: &str = "WEFT_QUIET";

/// Every variable that weft, its command, its libfabric provider or its tests read. `tests/tests/settings.rs` compares the list
/// with the sources.
const KNOWN: &[&str] = &[
    "WEFT_ADDR",
    "WEFT_CONGESTION",
    "WEFT_GOLDEN",
    HELPER,
    "WEFT_INTEGRITY",
    "WEFT_JOB",
    "WEFT_LIMITS",
    "WEFT_LINGER",
    LOCAL,
    "WEFT_NI",
    "WEFT_PORT",
    QUIET,
    "WEFT_RANK",
    "WEFT_SEED",
    "WEFT_SEND_BUFFER",
    SERVICE,
    "WEFT_SIZE",
    "WEFT_SUSPICION",
    TRUST,
];

/// Prefixes of variables that weft's own programs and tests pass to their child processes.
const OWN: &[&str] = &["WEFT_DEMO_", "WEFT_KILL_TEST", "WEFT_OWN_", "WEFT_SIM_", "WEFT_TEST_", "WEFT_WIRE_"];

/// Returns whether a setting is on, which is the default.
///
/// # Errors
/// If its value means neither on nor off.
pub(crate) fn is_on(variable: &'static str) -> Result<bool, NetworkError> {
    read(variable, true)
}

fn read(variable: &'static str, default: bool) -> Result<bool, NetworkError> {
    let value = env::var_os(variable);
    let said = match &value {
        None => Some(default),
        Some(value) => value.to_str().and_then(switch).or(value.is_empty().then_some(default)),
    };
    said.ok_or_else(|| NetworkError::Setting {
        variable,
        value: value.unwrap_or_default().to_string_lossy().into_owned(),
        wanted: "on or off (also 1 or 0, yes or no, true or false)",
    })
}

/// Parses a value of `WEFT_HELPER`, `WEFT_TRUST` or `WEFT_LOCAL` as on or off. `None` for any other value, with which
/// [`Node::new`](crate::Node::new) fails.
pub fn switch(value: &str) -> Option<bool> {
    match value.trim().to_ascii_lowercase().as_str() {
        "on" | "1" | "yes" | "true" => Some(true),
        "off" | "0" | "no" | "false" => Some(false),
        _ => None,
    }
}

/// Prints a warning on standard error for each variable whose name starts like weft's settings but is unknown. Does so once per
/// process, and not at all with `WEFT_QUIET=on`.
///
/// # Errors
/// If the value of `WEFT_QUIET` means neither on nor off.
pub(crate) fn tell_unknown() -> Result<(), NetworkError> {
    static TOLD: Once = Once::new();
    if !read(QUIET, false)? {
        TOLD.call_once(|| {
            for name in unknown(env::vars_os().map(|(name, _)| name)) {
                // Standard error may be closed.
                let _ = writeln!(std::io::stderr(), "{}", warning(&name));
            }
        });
    }
    Ok(())
}

/// Those names that start like weft's settings but are unknown.
pub(crate) fn unknown(names: impl Iterator<Item = OsString>) -> Vec<String> {
    let names = names.map(|name| name.to_string_lossy().into_owned()).filter(|name| name.starts_with("WEFT_"));
    names.filter(|name| !KNOWN.contains(&name.as_str()) && !OWN.iter().any(|own| name.starts_with(own))).collect()
}

fn warning(name: &str) -> String {
    let near = KNOWN.iter().map(|known| (distance(name, known), known)).min().filter(|&(distance, _)| distance <= 2);
    let meant = near.map(|(_, known)| format!("; {known} is one")).unwrap_or_default();
    // A name can hold anything, even control characters.
    let name = name.escape_debug();
    format!(
        "weft: {name} in the environment is not a setting of weft{meant}. Unset it; WEFT_QUIET=on silences this line"
    )
}

/// The number of letters to insert, delete or replace to turn one name into the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().enumerate() {
        let mut above_left = std::mem::replace(&mut row[0], i + 1);
        for (j, other) in b.iter().enumerate() {
            let replaced = above_left + usize::from(letter != *other);
            above_left = row[j + 1];
            row[j + 1] = replaced.min(above_left + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_says_on_or_off_in_several_words_and_nothing_else() {
        assert_eq!(["on", "1", " Yes", "TRUE"].map(switch), [Some(true); 4]);
        assert_eq!(["off", "0", "no ", "False"].map(switch), [Some(false); 4]);
        assert_eq!(["", "perhaps", "offf", "2", "o n", "-"].map(switch), [None; 6]);
    }

    #[test]
    fn unknown_settings_are_reported_with_the_nearest_known_one() {
        let names = ["WEFT_TRSUT", "WEFT_TRUST", "WEFT_SIM_SEED", "WEFT_\n", "HOME", "WEFTWARD"];
        assert_eq!(unknown(names.iter().map(OsString::from)), ["WEFT_TRSUT", "WEFT_\n"]);
        assert!(
            warning("WEFT_TRSUT").contains("WEFT_TRSUT in the environment is not a setting of weft; WEFT_TRUST is one")
        );
        assert!(!warning("WEFT_SOMETHING_ELSE").contains("is one"));
        assert_eq!(warning("WEFT_\n\u{1b}[2J").lines().count(), 1);
        assert!(!warning("WEFT_\u{1b}").contains('\u{1b}'));
    }

    #[test]
    fn the_distance_of_names_counts_letters() {
        assert_eq!(
            [distance("", "ab"), distance("ab", "ab"), distance("abc", "ac"), distance("TRSUT", "TRUST")],
            [2, 0, 1, 2]
        );
    }
}
