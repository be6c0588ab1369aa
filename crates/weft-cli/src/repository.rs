//! Finds weft's repository, if the command runs in a checkout.

use std::path::{Path, PathBuf};

/// A file that only weft's repository has.
const MARK: &str = "crates/weft/Cargo.toml";

/// The root of weft's repository: above the current directory, otherwise above the running program.
pub fn root() -> Option<PathBuf> {
    root_above(&std::env::current_dir().ok()?).or_else(|| root_above(&std::env::current_exe().ok()?))
}

/// The root of weft's repository at or above a directory.
pub fn root_above(from: &Path) -> Option<PathBuf> {
    from.ancestors().find(|dir| dir.join(MARK).is_file()).map(Path::to_path_buf)
}
