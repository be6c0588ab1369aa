//! `scripts/subjects.sh`, which checks the subjects of new commits, finds each kind of fault. `scripts/test.sh subjects` checks the history
//! itself: an ordinary user may not read another user's repository with git.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A repository of the test, removed at its end.
struct Repository(PathBuf);

impl Repository {
    fn new(name: &str) -> Repository {
        let folder = std::env::temp_dir().join(format!("weft-subjects-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the folder for temporary files can be written");
        let repository = Repository(folder);
        repository.git(&["init", "--quiet"]);
        repository
    }

    fn git(&self, arguments: &[&str]) -> String {
        let mut git = Command::new("git");
        git.arg("-C").arg(&self.0).args(["-c", "user.name=T", "-c", "user.email=t@example.org"]).args(arguments);
        let output = git.output().expect("git is here: scripts/setup.sh --for test");
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Adds a commit, and returns its name.
    fn commit(&self, subject: &str) -> String {
        self.git(&["commit", "--quiet", "--allow-empty", "--no-gpg-sign", "--no-verify", "-m", subject]);
        self.git(&["rev-parse", "HEAD"])
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What the script prints about the commits since one.
fn look(folder: &Path, since: &str) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/subjects.sh");
    Command::new("bash").arg(script).arg(folder).arg(since).output().expect("bash is here")
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn subjects_of_the_form_pass_and_the_history_before_is_left_alone() {
    let repository = Repository::new("good");
    let since = repository.commit("An old subject, which nobody changes any more.");
    let longest = format!("shm: refuse {}", "ä".repeat(72 - 12));
    let good =
        ["docs, readme: say what `weft bench` prints", "weft-cli/src: embed the text", "core: pass it on", &longest];
    for subject in good {
        repository.commit(subject);
    }
    let output = look(&repository.0, &since);
    assert!(output.status.success() && said(&output).contains("subjects of 4 commits"), "{}", said(&output));
}

#[test]
fn each_planted_subject_is_found_with_its_fault() {
    let too_long = format!("shm: refuse {}", "a".repeat(61));
    for (subject, fault) in [
        (too_long.as_str(), "has 73 characters"),
        ("refuse a ring of no size", "is not of the form"),
        ("shm: Refuse a ring of no size", "is not of the form"),
        ("shm: refuse a ring of no size.", "is not of the form"),
        ("Shm: refuse a ring of no size", "is not of the form"),
        ("shm:refuse a ring of no size", "is not of the form"),
        ("shm: refused a ring of no size", "no imperative: `refused`"),
        ("shm: refusing a ring of no size", "no imperative: `refusing`"),
        ("shm: refuses a ring of no size", "no imperative: `refuses`"),
    ] {
        let repository = Repository::new("bad");
        let since = repository.commit("core: begin");
        repository.commit("core: go on");
        let planted = repository.commit(subject);
        let output = look(&repository.0, &since);
        let said = said(&output);
        let fault = fault.replace("no imperative", "does not begin with an imperative");
        assert_eq!(output.status.code(), Some(1), "{subject}: {said}");
        assert!(said.contains(&planted[..7]) && said.contains(&fault) && said.contains("1 of 2 commits"), "{said}");
    }
}

#[test]
fn without_a_history_it_says_that_it_looked_at_nothing() {
    let repository = Repository::new("shallow");
    repository.commit("Whatever.");
    let output = look(&repository.0, "5c6fda627858f2db80f948e4b0617c3732de2f2c");
    assert!(output.status.success() && said(&output).contains("LEFT OUT"), "{}", said(&output));
    let package = repository.0.join("source-package");
    std::fs::create_dir(&package).expect("it can be made");
    let output = look(&package, "HEAD");
    assert!(output.status.success() && said(&output).contains("is no git repository"), "{}", said(&output));
}
