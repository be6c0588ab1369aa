//! The installed library, as C programs see it, and programs built with it.
#![allow(dead_code)] // each test program uses a part of it

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A time limit for a program, even on a loaded machine.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Flags under which all C of this repository compiles without warnings.
pub const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

pub fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn root() -> PathBuf {
    crate_dir().join("../..")
}

/// A file of the library, or the command `weft`, in the folder of the tests' profile. Cargo builds it, unless this user may not write
/// there.
pub fn built(file: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let folder = BUILT.get_or_init(|| {
        let test = std::env::current_exe().expect("a test knows its file");
        let profile = test.parent().and_then(Path::parent).expect("tests lie in PROFILE/deps").to_path_buf();
        let probe = profile.join(format!(".writable-{}", std::process::id()));
        if std::fs::write(&probe, "").is_ok() {
            let _ = std::fs::remove_file(&probe);
            let name = profile.file_name().expect("a profile has a name");
            // A profile's folder is named after it, except that of `dev`.
            let name = if name == "debug" { "dev".as_ref() } else { name };
            let mut cargo = Command::new(env!("CARGO"));
            // Builds the whole workspace: a package alone would be built once more, with fewer features of its dependencies.
            cargo.args(["build", "--locked", "--workspace", "--lib", "--bins", "--profile"]).arg(name);
            cargo.arg("--target-dir").arg(profile.parent().expect("a profile lies in the target directory"));
            assert!(cargo.current_dir(crate_dir()).status().is_ok_and(|status| status.success()), "cargo build");
        }
        profile
    });
    let path = folder.join(file);
    assert!(path.is_file(), "{} is missing: cargo build --workspace --lib --bins --profile tests", path.display());
    path
}

/// A folder of a test, removed at its end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("weft-c-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder for temporary files");
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The libraries, under their installed names.
pub fn library(folder: &Folder) {
    for (built_as, installed_as) in
        [("libweft_c.so", "libweft.so.0"), ("libweft_c.so", "libweft.so"), ("libweft_c.a", "libweft.a")]
    {
        let link = folder.path().join(installed_as);
        if !link.exists() {
            std::os::unix::fs::symlink(built(built_as), link).expect("a link");
        }
    }
}

/// Builds a C program with the shared library.
pub fn program(folder: &Folder, source: &Path) -> PathBuf {
    library(folder);
    let name = source.file_stem().expect("a source has a name");
    let target = folder.path().join(name);
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_DEFAULT_SOURCE", "-O1", "-g"])
        .args(STRICT)
        .arg("-I")
        .arg(crate_dir().join("include"))
        .arg(source);
    cc.arg("-o").arg(&target).arg("-L").arg(folder.path()).args(["-lweft", "-lpthread"]);
    cc.arg(format!("-Wl,-rpath,{}", folder.path().display()));
    run_well(&mut cc);
    target
}

/// Runs a command that must succeed.
pub fn run_well(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Runs one of our programs, and kills it at the time limit.
pub fn run(command: &mut Command) -> Output {
    // In a group of its own, with the processes that it forks.
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let begin = Instant::now();
    // The output of our programs fits into a pipe.
    while child.try_wait().expect("a child can be waited for").is_none() {
        if begin.elapsed() > LIMIT {
            let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status();
            let output = child.wait_with_output().expect("its output");
            panic!("{command:?} does not end\n{}", String::from_utf8_lossy(&output.stderr));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("its output")
}
