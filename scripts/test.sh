#!/usr/bin/env bash
# Runs all checks, stage by stage, and stops at the first failure: scripts/test.sh [STAGE...]
# Without arguments it sets the machine up first and runs all stages. The last line is the sum of all test runs.
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."
. scripts/lib.sh
exec </dev/null

# The stages, in order. run_stage explains each beside its command.
stages=(subjects fmt clippy doc limits licences build package test rare fuzz loom oldest ordinary)
# These share nothing, and each leaves a core idle for long, so those that are asked for run side by side. Only fuzz does less when it gets
# less of a core, so the others run at low priority.
beside=(rare fuzz loom oldest)
# Shared with examples/tokio, a workspace of its own, which reuses identical builds there.
target=${CARGO_TARGET_DIR:-$root/target}

# Prints a command as it could be typed, then runs it.
run() {
    printf '  $'
    printf ' %q' "$@"
    printf '\n'
    "$@"
}

# Builds what is shipped, and the examples whose instructions are counted. The other examples are built with the tests, without LTO.
build_shipped() {
    local examples=(--example count_messages --example count_memory --example count_hosts --example count_rust)
    run cargo build --workspace --bins --lib "${examples[@]}" --release --locked
}

run_stage() {
    case "$1" in
        subjects) # the first lines of new commits
            run scripts/subjects.sh ;;
        fmt) # the layout of the code
            run cargo fmt --all --check
            run cargo fmt --manifest-path fuzz/Cargo.toml --check
            run cargo fmt --manifest-path examples/tokio/Cargo.toml --check ;;
        clippy) # the lints
            run cargo clippy --workspace --all-targets --locked -- -D warnings
            run cargo clippy --manifest-path examples/tokio/Cargo.toml --locked --target-dir "$target" -- -D warnings ;;
        doc) # the documentation builds, its links lead somewhere, and weft's shows only what its users can name
            run env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
            run scripts/public-types.sh ;;
        limits) # the C programs that measure what the machine could do
            run make -C bench/limits ;;
        licences) # the licence and the source of each dependency, those of other systems too
            run cargo run -p weft-system-tests --profile tests --locked --quiet --example licences ;;
        build) # all that is shipped; and the tests beside it, because towards its end each build waits for one large crate
            local tests status=0
            run nice cargo test --workspace --profile tests --locked --no-run --quiet &
            tests=$!
            build_shipped || status=$?
            wait "$tests" || status=$?
            return "$status" ;;
        package) # the crates as they would be published, and what was built, installed and removed again
            run cargo package --workspace --exclude weft-system-tests --locked --no-verify --allow-dirty --quiet
            run scripts/test-install.sh ;;
        test) # all tests, as whoever runs this; they look at what was built before, too
            build_shipped
            run cargo build --manifest-path examples/tokio/Cargo.toml --locked --target-dir "$target"
            run scripts/programs.sh --workspace --profile tests --locked
            run cargo test --workspace --profile tests --locked --no-fail-fast --doc ;;
        rare) # the simulator's rows and what is sure to meet them all, with rare paths fired on purpose
            # Of the whole workspace, so that cargo chooses the same features of dependencies as for the other tests.
            run nice cargo test --workspace --features weft-sim/rare --profile tests --locked --test rare --test rows --test same_seed ;;
        fuzz) # every decoder, ten seconds of mutated input each
            run scripts/fuzz.sh 10 ;;
        loom) # the rings under every interleaving
            run nice env RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$root/target/loom" \
                cargo test -p weft-shm --profile tests --locked --test loom --test loom_sleep ;;
        oldest) # the oldest Rust that is promised, and aarch64
            run nice scripts/oldest.sh ;;
        ordinary) # the same test programs, as an ordinary user with little allowed
            run scripts/programs.sh --by scripts/ordinary-user.sh --workspace --profile tests --locked --tests ;;
    esac
}

# The cargo tool that a stage needs and this toolchain may lack.
tool_of() {
    case "$1" in fmt | clippy) printf '%s\n' "$1" ;; esac
}

# The sum of all test results in the output of the test programs.
sum() {
    awk '{ gsub(/\033\[[0-9;]*m/, "") }
         /^test result: / { for (i = 1; i < NF; i++) { if ($(i + 1) == "passed;") p += $i; if ($(i + 1) == "failed;") f += $i } }
         END { printf "%d passed, %d failed", p, f }' "$log"
}

# Whether this toolchain can run a stage; prints what is missing.
can_run() {
    local tool
    tool=$(tool_of "$1")
    if [ -z "$tool" ] || cargo "$tool" --version >/dev/null 2>&1; then return 0; fi
    [ -z "${CI-}" ] || die "stage $1 cannot run: this toolchain has no cargo $tool"
    say "LEFT OUT: stage $1: this toolchain has no cargo $tool"
    left_out+=("$1")
    return 1
}

# Runs a stage. Its status and time are in a file when it has ended.
one_stage() {
    local began=$SECONDS
    # A subshell with its own -e: an `if` or `||` around a function would disable it inside.
    set +e
    (set -e; run_stage "$1") 2>&1
    printf '%s %s\n' "$?" $((SECONDS - began)) >"$work/$1.end"
    set -e
}

# Prints how a stage ended, and exits if it failed.
judge() {
    local status took
    read -r status took <"$work/$1.end"
    if [ "$status" -ne 0 ]; then
        say "stage $1 FAILED after $took s; to repeat it alone: scripts/test.sh $1"
        printf '%s\n' "$(sum) (stopped at stage $1)"
        exit 1
    fi
    say "stage $1: $took s"
}

# Runs stages at the same time. The output of each is printed when all have ended.
side_by_side() {
    local stage
    say "stages $* side by side: what they say comes when all have ended"
    for stage in "$@"; do one_stage "$stage" >"$work/$stage" & done
    wait
    for stage in "$@"; do
        say "stage $stage"
        tee -a "$log" <"$work/$stage"
        judge "$stage"
    done
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Background processes do not get Ctrl-C.
trap 'trap "" TERM; kill 0; exit 130' INT
log=$work/log
left_out=()

if [ $# -eq 0 ]; then
    scripts/setup.sh --for test
    set -- "${stages[@]}"
fi
find_toolchain || die "no Rust $(msrv) or newer here: run scripts/setup.sh --for test"
for stage in "$@"; do
    [[ " ${stages[*]} " = *" $stage "* ]] || die "no stage $stage; there are: ${stages[*]}"
done

start=$SECONDS together=()
for stage in "$@"; do
    [[ " ${beside[*]} " != *" $stage "* ]] || together+=("$stage")
done
for stage in "$@"; do
    if [ ${#together[@]} -gt 1 ] && [[ " ${beside[*]} " = *" $stage "* ]]; then
        # All of them run with the first one, and none with the later ones.
        [ "$stage" != "${together[0]}" ] || side_by_side "${together[@]}"
        continue
    fi
    can_run "$stage" || continue
    say "stage $stage"
    one_stage "$stage" | tee -a "$log"
    judge "$stage"
done
say "all stages: $((SECONDS - start)) s${left_out[*]:+; LEFT OUT: ${left_out[*]}}"
printf '%s\n' "$(sum)"
