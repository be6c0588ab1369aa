//! The commands that the test of the documents leaves to others, with the reason and where they are run.

/// Where a command is run. The named words are searched for there.
pub enum By {
    Test {
        file: &'static str,
        test: &'static str,
        says: &'static str,
    },
    Script {
        file: &'static str,
        says: &'static str,
    },
    /// Nowhere, except for `make -n`.
    Hand,
}

pub struct Row {
    /// As written in the documents, without `sudo`.
    pub command: &'static str,
    pub why: &'static str,
    pub by: By,
}

const fn row(command: &'static str, why: &'static str, by: By) -> Row {
    Row { command, why, by }
}

const fn script(file: &'static str, says: &'static str) -> By {
    By::Script { file, says }
}

const fn stage(says: &'static str) -> By {
    script("scripts/test.sh", says)
}

const fn test(file: &'static str, test: &'static str, says: &'static str) -> By {
    By::Test { file, test, says }
}

const MINUTES: &str = "takes minutes";
const INSTALLS: &str = "changes the machine";

const CONTENTION: By = test(
    "crates/weft-cli/tests/contention.rs",
    "pictures_and_a_table_tell_of_the_collapse_without_the_writable_state",
    "\"bench\", \"contention\", \"--quick\"",
);

const DAEMON: By = test(
    "crates/weft-cli/tests/bench_daemon.rs",
    "all_figures_have_rows_with_weftd_and_without_and_every_message_is_answered",
    "\"--quick\", \"--rounds\", \"1\"",
);

const AM: By = test(
    "crates/weft-cli/tests/bench_am.rs",
    "all_figures_have_rows_in_c_and_in_rust_and_every_message_arrives",
    "\"--quick\", \"--rounds\", \"1\"",
);

pub const ELSEWHERE: &[Row] = &[
    row("make build", MINUTES, stage("cargo build --workspace --bins --lib")),
    row(
        "make demo",
        "measures for half a minute",
        test("crates/weft-cli/tests/command.rs", "workers_and_a_single_process_count_the_same", "\"demo\""),
    ),
    row("make test", "it is what runs this", script(".ci/run", "make test\n")),
    row("make test-mpi", MINUTES, script(".ci/run", "make test-mpi")),
    row("make bench", MINUTES, test("crates/weft-cli/tests/command.rs", "bench", "\"bench\", \"local\", \"--quick\"")),
    row("make bench-mpi", MINUTES, script("scripts/test-mpi.sh", "bench mpi --rounds 1")),
    row("weft bench mpi", MINUTES, script("scripts/test-mpi.sh", "bench mpi --rounds 1")),
    row(
        "weft bench report mpi.json -o mpi.html --svg pictures",
        "it is of an MPI",
        test("crates/weft-cli/tests/bench_mpi.rs", "json_has_every_row_of_each_transport_and_a_page_shows_them", "\"bench\", \"report\""),
    ),
    row("weft bench mpi --json mpi.json", MINUTES, script("scripts/test-mpi.sh", "bench mpi --rounds 1 --ms 2 --json")),
    row("weft bench mpi --only hpcc", "it needs an MPI and hpcc", script("scripts/test-mpi.sh", "set -- --only hpcc --quick")),
    row("weft bench contention --goals --json contention.json --svg pictures", MINUTES, CONTENTION),
    row("weft bench contention --quick", "takes half a minute", CONTENTION),
    row("weft bench contention --goals", MINUTES, CONTENTION),
    row("weft bench contention --only crowds --goals", MINUTES, CONTENTION),
    row(
        "weft bench contention --only real",
        "measures for twenty seconds",
        test(
            "crates/weft-cli/tests/contention.rs",
            "a_weftd_with_fewer_frames_than_endpoints_answers_every_request_once_and_in_order",
            "\"--only\", \"real\"",
        ),
    ),
    row("weft bench daemon", MINUTES, DAEMON),
    row("weft bench daemon --goals", MINUTES, DAEMON),
    row("weft bench daemon --quick", "takes half a minute", DAEMON),
    row("weft bench daemon --goals --json daemon.json", MINUTES, DAEMON),
    row("weft bench daemon --quick --only remapping", "measures for some seconds", DAEMON),
    row("weft bench daemon --only remapping", "measures for ten seconds", DAEMON),
    row("weft bench am", MINUTES, AM),
    row("weft bench am --goals --json am.json", MINUTES, AM),
    row("cargo build --release -p weft-capi && make -C bench/am", MINUTES, AM),
    row("make soak", "takes an hour", By::Hand),
    row("make fuzz", "takes half an hour", stage("scripts/fuzz.sh 10")),
    row("make docs", MINUTES, stage("cargo doc --workspace --no-deps --locked")),
    row("make book", "builds mdBook", script("Makefile", "\tscripts/book.sh")),
    row("make install", INSTALLS, script("scripts/test-install.sh", "scripts/install.sh install")),
    row("make uninstall", INSTALLS, script("scripts/test-install.sh", "scripts/install.sh uninstall")),
    row("make install PREFIX=$HOME/.local", INSTALLS, script("scripts/test-install.sh", "export DESTDIR=$folder PREFIX=")),
    row("make uninstall PREFIX=$HOME/.local", INSTALLS, script("scripts/test-install.sh", "scripts/install.sh uninstall")),
    row("make deb", MINUTES, script("scripts/test-deb.sh", "scripts/deb.sh")),
    row("apt install ./target/deb/weft_*.deb", INSTALLS, script("scripts/test-deb.sh", "inside dpkg -i /tmp/weft.deb")),
    row(
        "apt-get install -y libfabric-bin openmpi-bin libopenmpi-dev",
        INSTALLS,
        script("scripts/setup.sh", "has mpicc.openmpi || echo libopenmpi-dev"),
    ),
    row("apt purge weft", INSTALLS, script("scripts/test-deb.sh", "inside dpkg -P weft")),
    row(
        "cargo install --locked --path crates/weft-cli",
        INSTALLS,
        script("scripts/test-install.sh", "cargo install --locked --path crates/weft-cli"),
    ),
    row("cargo uninstall weft-cli", INSTALLS, script("scripts/test-install.sh", "cargo uninstall")),
    row(
        "RUSTFLAGS=\"--remap-path-prefix=$PWD=/weft --remap-path-prefix=$HOME/.cargo=/cargo\" cargo build --release --locked",
        "takes minutes, twice; done on 2026-11-22",
        By::Hand,
    ),
    row(
        "cc -o first first.c $(pkg-config --cflags --libs weft)",
        INSTALLS,
        script("scripts/test-install.sh", "cc -o first first.c $(pkg-config --cflags --libs weft)"),
    ),
    row(
        "weft run -n 4 ./ranks",
        "needs the program in C",
        test("crates/weft-capi/tests/spmd.rs", "a_parallel_sum_is_right_for_any_number_of_ranks", "examples/c/ranks.c"),
    ),
    row("cargo test --profile tests", MINUTES, stage("cargo test --workspace --profile tests")),
    row("cargo test", MINUTES, stage("cargo test --workspace --profile tests")),
    row(
        "cargo test --profile tests -p weft-cli --test wire -- --ignored --nocapture told",
        MINUTES,
        test("crates/weft-cli/tests/wire/messages.rs", "the_share_of_a_shaped_rate_is_told", "#[ignore = \"measures\"]"),
    ),
    row(
        "WEFT_GOLDEN=write cargo test -p weft-sim --test same_seed",
        "writes into the sources",
        stage("--test same_seed"),
    ),
    row("scripts/test.sh STAGE", MINUTES, script("Makefile", "scripts/test.sh fmt clippy doc")),
    row("scripts/test.sh rare", MINUTES, stage("rare)")),
    row("scripts/fuzz.sh merge", MINUTES, script("scripts/fuzz.sh", "merge)")),
    row("scripts/test-mpi.sh STEP", MINUTES, script("Makefile", "scripts/test-mpi.sh $(STEPS)")),
    row(
        "mpirun -x FI_PROVIDER_PATH -x FI_PROVIDER --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include weft PROGRAM",
        "needs Open MPI",
        script("scripts/mpi.sh", "mtl_ofi_provider_include"),
    ),
    row("MPIR_CVAR_CH4_NETMOD=ofi mpiexec PROGRAM", "needs MPICH", script("scripts/mpi.sh", "MPIR_CVAR_CH4_NETMOD=ofi")),
    row(
        "I_MPI_OFI_PROVIDER=weft mpirun PROGRAM",
        "needs Intel MPI",
        script("scripts/mpi.sh", "I_MPI_OFI_PROVIDER=\"$fabric\""),
    ),
    row("fi_pingpong -p weft -e rdm", "needs two processes", script("scripts/test-mpi.sh", "fi_pingpong \"${options[@]}\"")),
    row("fi_pingpong -p weft -e rdm HOST", "needs two processes", script("scripts/test-mpi.sh", "fi_pingpong \"${options[@]}\"")),
    row(
        "weft top",
        "needs a terminal",
        test("crates/weft-cli/tests/top.rs", "the_screen_has_who_sends_to_whom_how_fast_and_what_limits_it", "\"top\""),
    ),
    row(
        "weft wire A B",
        "needs two hosts",
        test("crates/weft-cli/tests/wire/messages.rs", "each_message_arrives_once_through_loss_reordering_and_damage", "lab"),
    ),
    row(
        "weft trace --stages",
        "ends by Ctrl-C",
        test("crates/weft-cli/tests/stages.rs", "nothing_is_stamped_before_a_tracer_comes_and_after_it_was_killed", "\"--stages\""),
    ),
    row(
        "weft trace --pcap - | wireshark -X lua_script:contrib/wireshark/weft.lua -k -i -",
        "opens a window",
        test("crates/weft-cli/tests/trace.rs", "what_is_captured_while_processes_talk_is_all_weft_and_whole", "lua_script:"),
    ),
];
