//! What the demonstration counts in: the files given, or this repository's text.

use crate::error::Error;
use crate::repository;
use std::fs;
use std::path::{Path, PathBuf};

/// What is counted outside of a checkout: the source of this demonstration.
const EMBEDDED: [&str; 10] = [
    include_str!("mod.rs"),
    include_str!("words.rs"),
    include_str!("count.rs"),
    include_str!("master.rs"),
    include_str!("worker.rs"),
    include_str!("text.rs"),
    include_str!("put.rs"),
    include_str!("owner.rs"),
    include_str!("job.rs"),
    include_str!("frames.rs"),
];

/// Directories that hold nothing written by hand.
const LEFT_OUT: [&str; 3] = ["target", "build", ".git"];

/// A text, and where it is from.
#[derive(Debug)]
pub struct Text {
    pub bytes: Vec<u8>,
    pub origin: String,
}

/// Reads the files, or if none is given, this repository's text.
pub fn read(files: &[PathBuf]) -> Result<Text, Error> {
    if files.is_empty() {
        return Ok(repository_text());
    }
    let mut bytes = Vec::new();
    for path in files {
        let content = fs::read(path).map_err(|source| Error::File {
            verb: "read",
            path: path.clone(),
            source,
            way_out: "Name files that exist and that you may read, or none for this repository's text",
        })?;
        bytes.extend_from_slice(&content);
        bytes.push(b'\n');
    }
    let origin = match files {
        [one] => one.display().to_string(),
        many => format!("{} files", many.len()),
    };
    Ok(Text { bytes, origin })
}

fn repository_text() -> Text {
    let root = std::env::current_dir().ok().and_then(|dir| repository::root_above(&dir));
    let Some(root) = root else {
        let origin =
            "the source of this demonstration (not in a checkout of weft; name files to count in them)".to_owned();
        return Text { bytes: EMBEDDED.concat().into_bytes(), origin };
    };
    let mut files = Vec::new();
    gather(&root, &mut files);
    files.sort();
    // What cannot be read, or is no text, is not part of the repository's text.
    let texts: Vec<Vec<u8>> =
        files.iter().filter_map(|path| fs::read(path).ok()).filter(|text| !text.contains(&0)).collect();
    Text { origin: format!("the {} text files of {}", texts.len(), root.display()), bytes: texts.join(&b'\n') }
}

fn gather(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && !LEFT_OUT.iter().any(|name| entry.file_name() == *name) => {
                gather(&entry.path(), files)
            }
            Ok(kind) if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
}
