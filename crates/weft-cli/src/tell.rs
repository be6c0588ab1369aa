//! How what was found is told: in words, or with `--json` as one document.

use crate::error::Error;
use crate::output::{print, print_line};
use serde::Serialize;

// No line of documentation, which would take the place of the command's own in its help.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Form {
    /// Prints one JSON document and nothing else.
    #[arg(long)]
    json: bool,
}

impl Form {
    /// Whether it is told as a document.
    pub fn is_json(self) -> bool {
        self.json
    }

    /// Prints the document, or the words.
    pub fn tell(self, document: &impl Serialize, words: impl FnOnce() -> String) -> Result<(), Error> {
        match self.json {
            true => print_json(document),
            false => print(words()),
        }
    }
}

/// Prints a document.
pub fn print_json(document: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(document);
    print_line(text.map_err(|e| Error::system("write JSON", std::io::Error::from(e), "Report this"))?)
}
