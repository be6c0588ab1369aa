//! The members of the chat, as each describes itself: `NICK NAME KEY`.

use std::collections::BTreeMap;
use weft::am::Context;
use weft::{Endpoint, Name};

pub struct Chat {
    pub me: (Endpoint, Name),
    /// The others' names, and their `NICK NAME KEY`, by their index in the translation table.
    pub members: BTreeMap<u32, (Name, String)>,
    pub next: u32,
    /// Members that were entered and not greeted yet.
    pub new: Vec<u32>,
}

impl Chat {
    /// Enters a member by its `NICK NAME KEY`, unless it is known.
    pub fn enter(&mut self, context: &mut Context, line: &str) -> Option<()> {
        let [nick, name, key] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
        let (name, key) = (name.parse().ok()?, key.parse().ok()?);
        if name == self.me.1 || self.members.values().any(|(known, _)| *known == name) {
            return None;
        }
        context.map(self.me.0, self.next, name, key).ok()?;
        self.members.insert(self.next, (name, line.to_owned()));
        self.new.push(self.next);
        self.next += 1;
        println!("* {} is here", printable(nick));
        Some(())
    }
}

pub fn nick_of(line: &str) -> String {
    printable(line.split(' ').next().unwrap_or_default())
}

/// Removes control characters: others' text must not control our terminal.
pub fn printable(text: &str) -> String {
    text.replace(char::is_control, "?")
}
