//! The text whose words the demonstration counts: the given files, or this repository's text.

use crate::error::Error;
use crate::repository;
use std::fs;
use std::path::{Path, PathBuf};

/// The text outside of a checkout: the source of this demonstration.
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

/// Directories that are skipped: they have no hand-written files.
const LEFT_OUT: [&str; 3] = ["target", "build", ".git"];

/// A text, and a name of its source.
#[derive(Debug)]
pub struct Text {
    pub bytes: Vec<u8>,
    pub origin: String,
}

/// Reads the files. If none is given, reads this repository's text.
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
            "the source of this demonstration (this is not a checkout of weft; name files to count their words)"
                .to_owned();
        return Text { bytes: EMBEDDED.concat().into_bytes(), origin };
    };
    let mut files = Vec::new();
    gather(&root, &mut files);
    files.sort();
    // Skip files that cannot be read, and those with a zero byte, which are not text.
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
