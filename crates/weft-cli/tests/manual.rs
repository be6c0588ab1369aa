//! The help, the manual pages and the shell completions all come from the command line's definition.

mod support;

use std::process::Command;
use support::{printed, weft, Folder};

#[test]
fn the_help_fits_a_screen() {
    let help = printed(&weft(&["--help"]));
    let lines: Vec<&str> = help.lines().collect();
    assert!(lines.len() <= 24, "{} lines:\n{help}", lines.len());
    let longest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    assert!((20..=80).contains(&longest), "{longest} columns:\n{help}");
}

/// The commands in the help.
fn commands() -> Vec<String> {
    let help = printed(&weft(&["--help"]));
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn each_command_has_its_manual_page() {
    let page = printed(&weft(&["man"]));
    assert!(page.contains(".TH weft 1"), "{page}");
    let folder = Folder::new("man");
    assert_eq!(printed(&weft(&["man", "--dir", folder.0.to_str().expect("text")])), "");
    let commands = commands();
    assert!(commands.len() > 7, "{commands:?}");
    for command in &commands {
        assert!(page.contains(&format!("weft\\-{command}(1)")), "{command}: {page}");
        let text = std::fs::read_to_string(folder.0.join(format!("weft-{command}.1"))).expect(command);
        assert!(text.contains(".SH SYNOPSIS") && text.contains(".nh\n") && !text.contains("EXTRA"), "{command}");
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
        let script = printed(&weft(&["completions", shell]));
        for command in commands() {
            assert!(script.contains(&command), "{shell}: {command}");
        }
        assert!(!script.contains("demo-worker"), "{shell}");
    }
    let folder = Folder::new("completions");
    let script = folder.write("weft.bash", &printed(&weft(&["completions", "bash"])));
    let complete = format!(
        "source '{script}' && COMP_WORDS=(weft bench com) COMP_CWORD=2 && _weft weft com bench && echo \"${{COMPREPLY[*]}}\""
    );
    let output = Command::new("bash").args(["-c", &complete]).output().expect("bash starts");
    assert_eq!(printed(&output).trim(), "compare");
}
