//! Rare paths are fired in tests only (`weft_transport::rare`): no crate of the workspace switches the feature on, by default or for one
//! that it stands on, so nothing that is built for use has it.

use std::process::Command;

#[test]
fn nothing_that_is_shipped_has_rare_paths() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string());
    let tree = |more: &[&str]| {
        let args = ["tree", "--workspace", "--locked", "--offline", "--edges", "normal,build", "--prefix", "none"];
        let out = Command::new(&cargo).current_dir(root).args(args).args(["--format", "{p} {f}"]).args(more).output();
        let out = out.expect("cargo");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let text = String::from_utf8(out.stdout).expect("text");
        let with = text.lines().filter(|line| line.split([' ', ',']).any(|word| word == "rare"));
        (text.lines().count(), with.map(str::to_string).collect::<Vec<_>>())
    };
    let (all, with) = tree(&[]);
    assert!(all > 50, "{all} lines: the tree was not read");
    assert_eq!(with, [""; 0]);
    // It is seen where it is on.
    let (_, with) = tree(&["--features", "weft-sim/rare"]);
    assert!(with.iter().any(|line| line.starts_with("weft-transport ")), "{with:?}");
}
