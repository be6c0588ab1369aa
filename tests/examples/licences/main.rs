//! Checks the licence and the source of every dependency: `scripts/test.sh licences`.
//!
//! It is not a test, because the crates' own manifests state the licences: it reads every crate of the lock files, even those for other
//! systems, and cargo downloads the missing ones. The test programs must also run without a network.

mod rules;

use serde_json::Value;
use std::process::{Command, ExitCode};

/// The manifests of the workspaces of this repository.
const WORKSPACES: [&str; 3] = ["Cargo.toml", "fuzz/Cargo.toml", "examples/tokio/Cargo.toml"];

fn main() -> ExitCode {
    let mut is_good = true;
    for manifest in WORKSPACES {
        match metadata(manifest) {
            Ok(metadata) => {
                let packages = metadata["packages"].as_array().map_or(0, Vec::len);
                let faults = rules::faults(&metadata);
                println!("{manifest}: {} packages, {} of them at fault", packages, faults.len());
                faults.iter().for_each(|fault| eprintln!("  {fault}"));
                // The repository's own packages must be among them.
                is_good &= faults.is_empty() && packages > 0;
            }
            Err(cause) => {
                eprintln!("{manifest}: {cause}");
                is_good = false;
            }
        }
    }
    match is_good {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// All packages of a workspace's lock file, as cargo knows them.
fn metadata(manifest: &str) -> Result<Value, String> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version", "1", "--locked", "--manifest-path", manifest]).current_dir(root);
    let output = cargo.output().map_err(|e| format!("cannot start cargo: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata printed no JSON: {e}"))
}
