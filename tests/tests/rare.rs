//! Rare paths are fired in tests only (`weft_transport::rare`): no crate of the workspace switches the feature on, by default or for one
//! that it stands on, so nothing that is built for use has it.

use std::path::Path;

/// Lines of a manifest that switch the feature on by default, or in a dependency that is no test's.
fn switched_on(manifest: &str) -> Vec<String> {
    let mut table = "";
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        if line.starts_with('[') {
            table = line;
        }
        let is_for_use = table.ends_with("dependencies]") && table != "[dev-dependencies]";
        let is_default = table == "[features]" && line.starts_with("default");
        if (is_for_use || is_default) && line.contains("rare\"") {
            found.push(line.to_owned());
        }
    }
    found
}

#[test]
fn nothing_that_is_shipped_has_rare_paths() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let crates = std::fs::read_dir(root.join("crates")).expect("the crates");
    let mut manifests: Vec<_> = crates.flatten().map(|entry| entry.path().join("Cargo.toml")).collect();
    manifests.push(root.join("Cargo.toml"));
    let mut has_feature = 0;
    for path in &manifests {
        let manifest = std::fs::read_to_string(path).expect("a manifest");
        assert_eq!(switched_on(&manifest), [""; 0], "{}", path.display());
        has_feature += usize::from(manifest.lines().any(|line| line.starts_with("rare = ")));
    }
    assert!(has_feature >= 3, "the crates that have rare paths are looked at");
}

#[test]
fn a_crate_that_switches_them_on_is_found() {
    for planted in [
        "[features]\ndefault = [\"rare\"]\n",
        "[dependencies]\nweft-transport = { workspace = true, features = [\"rare\"] }\n",
        "[workspace.dependencies]\nweft-core = { path = \"crates/weft-core\", features = [\"rare\"] }\n",
    ] {
        assert_eq!(switched_on(planted).len(), 1, "{planted}");
    }
    assert_eq!(switched_on("[features]\nrare = [\"weft-core/rare\"]\n"), [""; 0]);
}
