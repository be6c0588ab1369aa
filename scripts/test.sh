#!/usr/bin/env bash
# Runs everything that must hold, stage by stage, and stops at the first that fails: scripts/test.sh [STAGE...]
# Without arguments it sets the machine up first and runs all stages. The last line is the sum of all test runs.
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."
. scripts/lib.sh
exec </dev/null

# The stages, in order: what each is for stands beside its command in run_stage.
stages=(fmt clippy doc limits build package test rare fuzz loom ordinary)

# Prints a command as it could be typed, then runs it.
run() {
    printf '  $'
    printf ' %q' "$@"
    printf '\n'
    "$@"
}

build_shipped() {
    run cargo build --workspace --bins --lib --examples --release --locked
    run cargo build --manifest-path examples/tokio/Cargo.toml --release --locked --target-dir target/tokio
}

run_stage() {
    case "$1" in
        fmt) # the layout of the code
            run cargo fmt --all --check
            run cargo fmt --manifest-path fuzz/Cargo.toml --check
            run cargo fmt --manifest-path examples/tokio/Cargo.toml --check ;;
        clippy) # the lints
            run cargo clippy --workspace --all-targets --locked -- -D warnings
            run cargo clippy --manifest-path examples/tokio/Cargo.toml --locked --target-dir target/tokio -- -D warnings ;;
        doc) # the documentation builds, and its links lead somewhere
            run env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked ;;
        limits) # the C programs that measure what the machine could do
            run make -C bench/limits ;;
        build) # all that is shipped, and the examples
            build_shipped ;;
        package) # the crates as they would be published, and what was built, installed and removed again
            run cargo package --workspace --exclude weft-system-tests --locked --no-verify --allow-dirty --quiet
            run scripts/test-install.sh ;;
        test) # all tests, as whoever runs this; they look at what was built before, too
            build_shipped
            run cargo test --workspace --profile tests --locked --no-fail-fast ;;
        rare) # the simulator's rows and what is sure to meet them all, with rare paths fired on purpose
            run cargo test -p weft-sim --features rare --profile tests --locked --test rare --test rows --test same_seed ;;
        fuzz) # every decoder, ten seconds of mutated input each
            run scripts/fuzz.sh 10 ;;
        loom) # the rings under every interleaving
            run env RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$root/target/loom" \
                cargo test -p weft-shm --profile tests --locked --test loom --test loom_sleep ;;
        ordinary) # the same test programs, as an ordinary user with little allowed
            local host
            host=$(rustc -vV | sed -n 's/^host: //p')
            run cargo --config "target.$host.runner=['bash', '$root/scripts/ordinary-user.sh']" \
                test --workspace --profile tests --locked --no-fail-fast --tests ;;
    esac
}

# The cargo tool a stage needs and this toolchain may lack.
tool_of() {
    case "$1" in fmt | clippy) printf '%s\n' "$1" ;; esac
}

# The sum of what the test programs said, from their output.
sum() {
    awk '{ gsub(/\033\[[0-9;]*m/, "") }
         /^test result: / { for (i = 1; i < NF; i++) { if ($(i + 1) == "passed;") p += $i; if ($(i + 1) == "failed;") f += $i } }
         END { printf "%d passed, %d failed", p, f }' "$log"
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
left_out=()

if [ $# -eq 0 ]; then
    scripts/setup.sh --for test
    set -- "${stages[@]}"
fi
find_toolchain || die "no Rust $(msrv) or newer here: run scripts/setup.sh --for test"
for stage in "$@"; do
    [[ " ${stages[*]} " = *" $stage "* ]] || die "no stage $stage; there are: ${stages[*]}"
done

start=$SECONDS
for stage in "$@"; do
    tool=$(tool_of "$stage")
    if [ -n "$tool" ] && ! cargo "$tool" --version >/dev/null 2>&1; then
        [ -z "${CI-}" ] || die "stage $stage cannot run: this toolchain has no cargo $tool"
        say "LEFT OUT: stage $stage: this toolchain has no cargo $tool"
        left_out+=("$stage")
        continue
    fi
    say "stage $stage"
    began=$SECONDS status=0
    # A subshell with its own -e: an `if` or `||` around a function would switch it off inside.
    set +e
    (set -e; run_stage "$stage") 2>&1 | tee -a "$log"
    status=${PIPESTATUS[0]}
    set -e
    if [ "$status" -ne 0 ]; then
        say "stage $stage FAILED after $((SECONDS - began)) s; to repeat it alone: scripts/test.sh $stage"
        printf '%s\n' "$(sum) (stopped at stage $stage)"
        exit 1
    fi
    say "stage $stage: $((SECONDS - began)) s"
done
say "all stages: $((SECONDS - start)) s${left_out[*]:+; LEFT OUT: ${left_out[*]}}"
printf '%s\n' "$(sum)"
