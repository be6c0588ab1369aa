//! `weft bench mpi` with scripts in place of MPIs: their lines become rows, failures are reported, and errors name the way out.
//! scripts/test-mpi.sh runs it with real MPIs.

mod support;

use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::{ask_to_end, err, out, printed, weft, Folder};

/// A compiler. Its program prints lines as the real one does, and fails at the measurement that FAILS names. If HANGS is set, it
/// creates that file and prints nothing.
const MPICC: &str = r#"#!/bin/sh
ls measure.c measure.h nbody.c onesided.c >/dev/null || exit 1
while [ "$1" != -o ]; do shift; done
cat >"$2" <<'PROGRAM'
#!/bin/sh
shift 2
[ -z "$HANGS" ] || { : >"$HANGS" && exec sleep 60; }
echo 'library Open MPI v9.8.7'
for probe; do
    name=${probe%:*} size=${probe#*:}
    echo "begin $name $size"
    echo "result $name $size 2000 3000 2500 7"
    [ "$name" != nbody ] || echo "result nbody.speedup $size 1.5 1.2 1.4 7"
    [ "$probe" != "$FAILS" ] || { echo "measure: $name, $size B: what arrived is not what was sent" >&2; exit 3; }
done
echo end
PROGRAM
chmod +x "$2"
"#;

/// A launcher that prints the provider that it was told to use, or the one in USES.
const MPIEXEC: &str = r#"#!/bin/sh
echo "[host:1] mtl_ofi_component.c:343: mtl:ofi:provider: ${USES-$FI_PROVIDER}" >&2
while [ "${1##*/}" != measure-openmpi ]; do shift; done
exec "$@"
"#;

/// A folder with an Open MPI made of scripts, and one with a file named like the provider.
fn stage(name: &str) -> Folder {
    let folder = Folder::new(name);
    for directory in ["mpi/bin", "ofi", "tmp"] {
        std::fs::create_dir_all(folder.0.join(directory)).expect("a folder");
    }
    folder.write("ofi/libweft-fi.so", "");
    for (program, text) in [("ompi_info", ""), ("mpicc", MPICC), ("mpiexec", MPIEXEC)] {
        let path = folder.write(&format!("mpi/bin/{program}"), text);
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("it is ours");
    }
    folder
}

/// `weft bench mpi` with these arguments and additional variables.
fn bench(folder: &Folder, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    command(folder, arguments, environment).output().expect("weft starts")
}

fn command(folder: &Folder, arguments: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(["bench", "mpi", "--mpi", &folder.file("mpi"), "--provider", &folder.file("ofi")]);
    // No cache line: it needs the limit programs.
    command.env("WEFT_LIMITS", "/nonexistent/limits").env("TMPDIR", folder.file("tmp")).env("COLUMNS", "80");
    command.args(arguments).envs(environment.iter().copied());
    command
}

fn has_two_cpus() -> bool {
    std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= 2)
}

/// The rows of a system: metrics and sizes.
fn rows(document: &Value, system: &str) -> BTreeSet<(String, u64)> {
    let rows = document["rows"].as_array().expect("a list").iter().filter(|row| row["system"] == system);
    rows.map(|row| (row["metric"].as_str().expect("text").to_owned(), row["size"].as_u64().expect("a number")))
        .collect()
}

fn left_out(document: &Value) -> Vec<&str> {
    document["left_out"].as_array().expect("a list").iter().map(|note| note.as_str().expect("text")).collect()
}

#[test]
fn json_has_every_row_of_each_transport_and_a_page_shows_them() {
    if !has_two_cpus() {
        return;
    }
    let folder = stage("bench-mpi-rows");
    let file = folder.file("a.json");
    let text = printed(&bench(&folder, &["--quick", "--rounds", "2", "--ms", "1", "--json", &file], &[]));
    let document: Value = serde_json::from_slice(&std::fs::read(&file).expect("a file")).expect("JSON");
    let over_weft = rows(&document, "openmpi-weft");
    let metrics: BTreeSet<&str> = over_weft.iter().map(|row| row.0.as_str()).collect();
    let all = [
        "mpi.allreduce",
        "mpi.bandwidth",
        "mpi.barrier",
        "mpi.get",
        "mpi.get.bandwidth",
        "mpi.nbody",
        "mpi.nbody.speedup",
        "mpi.put",
        "mpi.put.bandwidth",
        "mpi.rate",
        "mpi.rtt",
    ];
    assert_eq!(metrics, BTreeSet::from(all));
    for transport in ["own", "tcp", "shm"] {
        assert_eq!(rows(&document, &format!("openmpi-{transport}")), over_weft, "{transport}");
    }
    for row in document["rows"].as_array().expect("a list") {
        assert_eq!((row["n"].as_u64(), row["medians"].as_array().map(Vec::len)), (Some(14), Some(2)), "{row}");
    }
    assert_eq!(document["between"].as_str().map(|between| between.ends_with(", Open MPI 9.8.7")), Some(true));
    assert!(text.contains("libfabric shm") && text.contains("2.00 µs") && text.contains("14 to 14 samples"), "{text}");
    // Only the cache line: there are no limit programs.
    assert!(left_out(&document).iter().all(|note| note.contains("/nonexistent/limits")), "{text}");
    let page = folder.file("page.html");
    printed(&weft(&["bench", "report", &file, "-o", &page, "--svg", &folder.file("svg")]));
    let page = std::fs::read_to_string(page).expect("a page");
    let pictures = std::fs::read_dir(folder.0.join("svg")).expect("a folder").count();
    assert_eq!((page.matches("<svg ").count(), pictures), (11, 11));
    assert!(page.contains("1024 particles") && page.contains("weft ÷ it") && !page.contains("UCX"), "{page}");
    let markdown = printed(&weft(&["bench", "report", "--markdown", &file]));
    let head = "| Open MPI | weft | its own | ratio | libfabric tcp | ratio | libfabric shm | ratio |\n";
    assert!(markdown.starts_with(head), "{markdown}");
    assert!(
        markdown.contains("\n| barrier | 2.00 µs | 2.00 µs | 1.00 | 2.00 µs | 1.00 | 2.00 µs | 1.00 |\n"),
        "{markdown}"
    );
    assert!(printed(&weft(&["bench", "compare", &file, &file])).contains("0 of 60 figures moved"));
    assert_eq!(std::fs::read_dir(folder.0.join("tmp")).expect("a folder").count(), 0, "what was built is removed");
}

#[test]
fn a_failure_is_told_and_what_is_behind_it_is_still_measured() {
    if !has_two_cpus() {
        return;
    }
    let folder = stage("bench-mpi-failure");
    let run = |more: &[&str]| {
        let asked = ["--quick", "--rounds", "3", "--ms", "1", "--json", "-", "--only", "rtt,rate,put"];
        let output = bench(&folder, &[&asked, more].concat(), &[("FAILS", "rtt:8192")]);
        let document: Value = serde_json::from_str(&out(&output)).expect("JSON alone");
        (output, document)
    };
    let (output, document) = run(&[]);
    assert_eq!(output.status.code(), Some(1), "something over weft failed: {}", err(&output));
    for system in ["openmpi-weft", "openmpi-own", "openmpi-tcp", "openmpi-shm"] {
        let rows = rows(&document, system);
        assert!(!rows.contains(&("mpi.rtt".to_owned(), 8192)), "what was wrong has no figure: {rows:?}");
        assert!(rows.contains(&("mpi.rate".to_owned(), 8)) && rows.contains(&("mpi.put".to_owned(), 8)), "{rows:?}");
        let told = left_out(&document);
        let told: Vec<&&str> = told.iter().filter(|note| note.starts_with(system)).collect();
        assert_eq!(told.len(), 1, "once, not in each round: {told:?}");
        assert!(told[0].contains("rtt of 8 KiB") && told[0].contains("what arrived is not what was sent"), "{told:?}");
    }
    let said = err(&output);
    assert!(
        said.contains("left out: openmpi-weft, rtt of 8 KiB") && said.contains("MPI over weft failed: 1 of"),
        "{said}"
    );
    let (output, _) = run(&["--over", "own,tcp"]);
    assert!(output.status.success(), "weft was not asked for: {}", err(&output));
}

/// A replacement for hpcc, run as rank 0: it writes an output with as many errors as LOST says.
const HPCC: &str = r#"#!/bin/sh
grep -q '^400 Ns' hpccinf.txt || exit 1
echo working
cat >hpccoutf.txt <<END
 5 tests completed and passed residual checks.
 0 tests completed and failed residual checks.
 1 tests completed and passed residual checks,
 0 tests completed and failed residual checks,
Success=1
CommWorldProcs=2
HPL_Tflops=0.0125
PTRANS_GBs=3.5
MPIRandomAccess_Errors=${LOST-0}
MPIRandomAccess_GUPs=0.017
MPIFFT_Gflops=2.5
MPIFFT_maxErr=1.3e-15
END
"#;

#[test]
fn hpcc_is_measured_if_its_own_checks_pass() {
    if !has_two_cpus() {
        return;
    }
    let folder = stage("bench-mpi-hpcc");
    std::fs::create_dir(folder.0.join("path")).expect("a folder");
    let programs = [
        ("path/hpcc", HPCC),
        ("path/taskset", "#!/bin/sh\nshift 2\nexec \"$@\"\n"),
        ("mpi/bin/ompi_info", "#!/bin/sh\necho 'Open MPI v9.8.7'\n"),
        (
            "mpi/bin/mpiexec",
            "#!/bin/sh\necho \"mtl:ofi:provider: $FI_PROVIDER\" >&2\nwhile [ \"${1##*/}\" != hpcc.sh ]; do shift; done\n\
             OMPI_COMM_WORLD_RANK=0 exec \"$@\"\n",
        ),
    ];
    for (program, text) in programs {
        let path = folder.write(program, text);
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("it is ours");
    }
    let path = format!("{}:{}", folder.file("path"), std::env::var("PATH").expect("it is set"));
    let asked = ["--only", "hpcc", "--quick", "--rounds", "1", "--over", "weft,own", "--json", "-"];
    let output = bench(&folder, &asked, &[("PATH", &path)]);
    let document: Value = serde_json::from_str(&printed(&output)).expect("JSON alone");
    let metrics = ["mpi.hpcc.fft", "mpi.hpcc.hpl", "mpi.hpcc.random", "mpi.hpcc.transpose"];
    let all: BTreeSet<(String, u64)> = metrics.iter().map(|metric| ((*metric).to_owned(), 400)).collect();
    assert_eq!(rows(&document, "openmpi-weft"), all);
    assert_eq!(rows(&document, "openmpi-own"), all);
    let hpl = document["rows"].as_array().expect("a list").iter().find(|row| row["metric"] == "mpi.hpcc.hpl");
    assert_eq!(hpl.expect("a row")["median"], 1.25e10);
    let output = bench(&folder, &asked, &[("PATH", &path), ("LOST", "5")]);
    let document: Value = serde_json::from_str(&out(&output)).expect("JSON alone");
    assert_eq!((output.status.code(), rows(&document, "openmpi-weft")), (Some(1), BTreeSet::new()));
    assert!(left_out(&document).iter().any(|note| note.contains("random updates were lost")), "{document}");
    // Without hpcc there is nothing to measure; if other groups are measured too, a note says so.
    std::fs::remove_file(folder.0.join("path/hpcc")).expect("it is there");
    let nowhere = [("PATH", folder.file("path"))];
    let nowhere: Vec<(&str, &str)> = nowhere.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let output = bench(&folder, &asked, &nowhere);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("hpcc is not on the path") && err(&output).contains("apt-get install hpcc"));
}

#[test]
fn figures_of_another_provider_do_not_count() {
    if !has_two_cpus() {
        return;
    }
    let folder = stage("bench-mpi-provider");
    let asked = ["--rounds", "1", "--ms", "1", "--json", "-", "--only", "rate", "--over", "weft,own"];
    let output = bench(&folder, &asked, &[("USES", "sockets"), ("FI_PROVIDER", "sockets")]);
    let document: Value = serde_json::from_str(&out(&output)).expect("JSON alone");
    assert_eq!(rows(&document, "openmpi-weft"), BTreeSet::new());
    assert_eq!(rows(&document, "openmpi-own").len(), 1);
    assert!(left_out(&document).iter().any(|note| note.contains("nowhere does it say `mtl:ofi:provider: weft`")));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn what_is_missing_is_told_with_the_way_out() {
    if !has_two_cpus() {
        return;
    }
    let folder = stage("bench-mpi-missing");
    let refused = |output: Output, status: i32, says: &[&str]| {
        let said = err(&output);
        assert_eq!(output.status.code(), Some(status), "{said}");
        says.iter().for_each(|word| assert!(said.contains(word), "{word}: {said}"));
    };
    let ofi = folder.file("ofi");
    let named = |mpi: &str| weft(&["bench", "mpi", "--provider", &ofi, "--mpi", mpi]);
    refused(
        named("/nonexistent"),
        2,
        &["there is no MPI in /nonexistent", "mpicc and mpiexec of Open MPI 5 or MPICH 5"],
    );
    refused(named(&ofi), 2, &["neither bin/ompi_info nor bin/mpichversion"]);
    refused(
        weft(&["bench", "mpi", "--provider", "/nonexistent"]),
        2,
        &["no libweft-fi.so", "make bench-mpi", "--provider PATH"],
    );
    let twice = [folder.file("mpi"), folder.file("mpi")];
    refused(
        weft(&["bench", "mpi", "--provider", &ofi, "--mpi", &twice[0], "--mpi", &twice[1]]),
        2,
        &["are of Open MPI"],
    );
    // Outside of the repository, the folder of `make bench-mpi` does not exist.
    let program = folder.0.join("weft");
    std::fs::copy(env!("CARGO_BIN_EXE_weft"), &program).expect("a copy");
    let outside = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(["bench", "mpi"]).args(arguments).current_dir(&folder.0).output().expect("it starts")
    };
    refused(outside(&["--over", "own"]), 2, &["outside of weft's repository", "`make bench-mpi`", "--mpi PATH"]);
    refused(outside(&[]), 2, &["no libweft-fi.so", "--provider PATH"]);
    folder.write("mpi/bin/mpicc", "#!/bin/sh\necho 'gcc: not found' >&2\nexit 127\n");
    refused(bench(&folder, &[], &[]), 1, &["gcc: not found", "apt-get install gcc"]);
    std::fs::remove_file(folder.file("mpi/bin/mpicc")).expect("it is there");
    refused(bench(&folder, &[], &[]), 2, &["no bin/mpicc"]);
    assert!(!Path::new(&folder.file("tmp")).read_dir().expect("a folder").any(|entry| entry.is_ok()));
}

#[test]
fn an_interrupted_run_ends_its_launcher_and_leaves_nothing() {
    if !has_two_cpus() {
        return;
    }
    let folder = stage("bench-mpi-interrupt");
    let begun = folder.file("begun");
    let mut command = command(&folder, &["--over", "own"], &[("HANGS", &begun)]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weft starts");
    let since = Instant::now();
    while !Path::new(&begun).exists() {
        assert!(since.elapsed() < Duration::from_secs(60), "it starts no ranks");
        std::thread::sleep(Duration::from_millis(5));
    }
    ask_to_end(&child);
    let status = child.wait().expect("it is ours");
    assert_eq!(status.code(), Some(130));
    let output = child.wait_with_output().expect("it is ours");
    assert!(err(&output).contains("interrupted"), "{}", err(&output));
    assert!(since.elapsed() < Duration::from_secs(50), "the launcher was not ended");
    assert_eq!(std::fs::read_dir(folder.0.join("tmp")).expect("a folder").count(), 0);
}

#[test]
fn help_says_what_is_compared_and_wrong_words_are_refused() {
    let help = printed(&weft(&["bench", "mpi", "--help"])).split_whitespace().collect::<Vec<_>>().join(" ");
    for word in
        ["--over", "--quick", "--json", "--mpi", "target/mpi", "rtt", "nbody", "own shared memory", "exit status"]
    {
        assert!(help.contains(word), "{word}: {help}");
    }
    for wrong in [["--only", "latency"], ["--over", "ucx"], ["--rounds", "0"]] {
        assert_eq!(weft(&["bench", "mpi", wrong[0], wrong[1]]).status.code(), Some(2), "{wrong:?}");
    }
}
