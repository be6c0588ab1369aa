//! The manual page and the documents list all settings.

use std::path::Path;
use std::process::Command;

const SETTINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/weftd.toml");

fn said(arguments: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_weftd")).args(arguments).output().expect("it runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

#[test]
fn the_page_has_every_option_and_setting() {
    // As roff writes it.
    let page = said(&["--man"]).replace("\\-", "-").replace("\\fB", "").replace("\\fR", "");
    for option in ["--foreground", "--config", "--socket", "--check", "--man"] {
        assert!(page.contains(option), "{option}");
    }
    for line in std::fs::read_to_string(SETTINGS).expect("the file").lines() {
        assert!(page.lines().any(|of_page| of_page == line), "{line:?} is not in the page");
    }
}

#[test]
fn the_file_of_all_settings_can_be_used_and_stands_in_the_documents() {
    assert_eq!(said(&["--check", "--config", SETTINGS]), "the configuration can be used\n");
    let file = std::fs::read_to_string(SETTINGS).expect("the file");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/weftd.md");
    let page = std::fs::read_to_string(page).expect("the page");
    assert!(page.contains(&format!("```toml\n{file}```\n")), "docs/weftd.md has other settings than weftd.toml");
}
