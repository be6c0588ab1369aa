//! Output forms: text, or one JSON document with `--json`.

use crate::error::Error;
use crate::output::print;
use serde::Serialize;

// Not a doc comment: clap would use it in place of the command's own in the help.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Form {
    /// Prints one JSON document and nothing else.
    #[arg(long)]
    json: bool,
}

impl Form {
    /// Whether the output is JSON.
    pub fn is_json(self) -> bool {
        self.json
    }

    /// Prints the document, or the text.
    pub fn tell(self, document: &impl Serialize, words: impl FnOnce() -> String) -> Result<(), Error> {
        match self.json {
            true => print_json(document),
            false => print(words()),
        }
    }
}

/// Prints a document as JSON.
pub fn print_json(document: &impl Serialize) -> Result<(), Error> {
    print(text(document)?)
}

/// A document as JSON, with the end of its last line.
pub fn text(document: &impl Serialize) -> Result<String, Error> {
    let text = serde_json::to_string_pretty(document);
    Ok(text.map_err(|e| Error::system("write JSON", std::io::Error::from(e), "Report this"))? + "\n")
}
