//! The help, the manual pages and the shells' completions: all of them come from the command line's one definition.

use std::path::PathBuf;
use std::process::{Command, Output};

fn weft(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft")).args(arguments).env("COLUMNS", "80").output().expect("weft starts")
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// A directory of a test's own, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("weft-manual-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("text").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_help_fits_a_screen() {
    let help = out(&weft(&["--help"]));
    let lines: Vec<&str> = help.lines().collect();
    assert!(lines.len() <= 24, "{} lines:\n{help}", lines.len());
    let longest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    assert!((20..=80).contains(&longest), "{longest} columns:\n{help}");
}

/// The commands that the help lists.
fn commands() -> Vec<String> {
    let help = out(&weft(&["--help"]));
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn each_command_has_its_manual_page() {
    let page = out(&weft(&["man"]));
    assert!(page.contains(".TH weft 1"), "{page}");
    let folder = Folder::new("man");
    assert_eq!(out(&weft(&["man", "--dir", folder.0.to_str().expect("text")])), "");
    let commands = commands();
    assert!(commands.len() > 7, "{commands:?}");
    for command in &commands {
        assert!(page.contains(&format!("weft\\-{command}(1)")), "{command}: {page}");
        let text = std::fs::read_to_string(folder.0.join(format!("weft-{command}.1"))).expect(command);
        assert!(text.contains(".SH SYNOPSIS"), "{command}");
    }
    for nested in ["weft.1", "weft-bench-report.1"] {
        assert!(folder.0.join(nested).exists(), "{nested}");
    }
    for hidden in ["demo-worker", "bench-peer", "wire-host"] {
        assert!(!page.contains(hidden) && !folder.0.join(format!("weft-{hidden}.1")).exists(), "{hidden}");
    }
}

#[test]
fn shells_complete_each_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = out(&weft(&["completions", shell]));
        for command in commands() {
            assert!(script.contains(&command), "{shell}: {command}");
        }
        assert!(!script.contains("demo-worker"), "{shell}");
    }
    let folder = Folder::new("completions");
    let script = folder.write("weft.bash", &out(&weft(&["completions", "bash"])));
    let complete = format!(
        "source '{script}' && COMP_WORDS=(weft bench co) COMP_CWORD=2 && _weft weft co bench && echo \"${{COMPREPLY[*]}}\""
    );
    let output = Command::new("bash").args(["-c", &complete]).output().expect("bash starts");
    assert_eq!(out(&output).trim(), "compare");
}
