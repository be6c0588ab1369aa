//! The wire's faults over time: from the command line, or from a file.

use super::counts::Counts;
use super::faults::Wanted;
use super::values::{Nanos, Wrong};
use crate::error::Error;
use serde_json::{Map, Value};
use std::path::Path;

/// The faults at the beginning, and later changes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Scenario {
    pub seed: u64,
    pub first: Wanted,
    /// Ordered by time.
    pub steps: Vec<Step>,
}

/// A change.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Step {
    /// When, from the beginning.
    pub at: Nanos,
    pub wanted: Wanted,
}

impl Scenario {
    /// Reads a file of TOML.
    pub fn read(path: &Path) -> Result<Scenario, Error> {
        let cannot = |source| {
            let way_out = "Give the path of a scenario: see `weft wire --help`";
            Error::File { verb: "read", path: path.to_owned(), source, way_out }
        };
        let text = std::fs::read_to_string(path).map_err(cannot)?;
        Scenario::parse(&text).map_err(|wrong| Error::Usage {
            cause: format!("{} is no scenario: {wrong}", path.display()),
            way_out: "`weft wire --help` shows one".to_owned(),
        })
    }

    /// The counts of all faults in it: these are not 0.
    pub fn asked(&self) -> Counts {
        let mut all = self.first;
        self.steps.iter().for_each(|step| all.give_way(&step.wanted));
        all.counted()
    }

    fn parse(text: &str) -> Result<Scenario, Wrong> {
        let mut document: Map<String, Value> = basic_toml::from_str(text).map_err(|e| e.to_string())?;
        let seed = match document.remove("seed") {
            None => 0,
            Some(seed) => seed.as_u64().ok_or("`seed` is a number from 0")?,
        };
        let steps = match document.remove("step") {
            None => Vec::new(),
            Some(Value::Array(steps)) => steps.into_iter().map(step).collect::<Result<_, _>>()?,
            Some(_) => return Err("steps are written as [[step]]".to_owned()),
        };
        if !steps.is_sorted_by_key(|step: &Step| step.at) {
            return Err("the steps are not in order of time".to_owned());
        }
        Ok(Scenario { seed, first: wanted(document)?, steps })
    }
}

fn step(value: Value) -> Result<Step, Wrong> {
    let Value::Object(mut words) = value else { return Err("steps are written as [[step]]".to_owned()) };
    let at = words.remove("at").ok_or("a step needs a time: at = \"2s\"")?;
    Ok(Step { at: text_of(&at)?.parse()?, wanted: wanted(words)? })
}

fn wanted(words: Map<String, Value>) -> Result<Wanted, Wrong> {
    let mut wanted = Wanted::default();
    for (word, value) in words {
        wanted.set(&word, &text_of(&value)?)?;
    }
    Ok(wanted)
}

/// A value as text, as it would be typed.
fn text_of(value: &Value) -> Result<String, Wrong> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(format!("{value} is neither a text nor a number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_has_the_words_of_the_command_line() {
        let scenario = "seed = 7\nloss = \"5%/0\"\nqueue = 30000\n[[step]]\nat = \"2s\"\nrate = \"100Mbit\"\n";
        let scenario = Scenario::parse(scenario).expect("a scenario");
        let (mut first, mut later) = (Wanted::default(), Wanted::default());
        first.set("loss", "5%/0").expect("a share");
        first.set("queue", "30000").expect("room");
        later.set("rate", "100Mbit").expect("a rate");
        let steps = vec![Step { at: Nanos(2_000_000_000), wanted: later }];
        assert_eq!(scenario, Scenario { seed: 7, first, steps });
    }

    #[test]
    fn what_is_wrong_in_a_scenario_is_named() {
        for (text, says) in [
            ("loss = \"5\"", "`5` is not a share"),
            ("lose = \"5%\"", "`lose` is not known"),
            ("seed = -1", "`seed` is a number"),
            ("[[step]]\nloss = 0.1", "a step needs a time"),
            ("[[step]]\nat = \"2s\"\n[[step]]\nat = \"1s\"", "not in order"),
            ("[step]\nat = \"1s\"", "[[step]]"),
            ("loss = true", "neither a text nor a number"),
            ("loss = ", "line 1"),
        ] {
            let said = Scenario::parse(text).expect_err(text);
            assert!(said.contains(says), "{text}: {said}");
        }
    }
}
