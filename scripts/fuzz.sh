#!/usr/bin/env bash
# Feeds every decoder, and the engine of weftd, mutated input and stops at the first that breaks:
#   scripts/fuzz.sh SECONDS [TARGET...]     each target for so long, beginning with its committed corpus
#   scripts/fuzz.sh repeat TARGET FILE      one input again
#   scripts/fuzz.sh merge [TARGET...]       adds to the committed corpus what reaches code that it did not reach
# Findings are kept below target/fuzz/found, and the next run continues from there. A stable compiler is enough.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

targets=(names rendezvous job setup records tagged memory packets door channel engine capi)
find_toolchain || die "no Rust $(msrv) or newer here: run scripts/setup.sh --for test"
command -v c++ >/dev/null || die "no C++ compiler here: run scripts/setup.sh --for test"

# Counters for the edges of the control flow, and for comparisons, which libFuzzer reads.
coverage=(-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares)
host=$(rustc -vV | sed -n 's/^host: //p')
built="$root/target/fuzz"

# Only programs for the target get the flags, not build scripts.
build() {
    RUSTFLAGS="${coverage[*]}" CARGO_TARGET_DIR="$built" \
        cargo build --manifest-path fuzz/Cargo.toml --release --locked --quiet --target "$host"
}
program() { printf '%s\n' "$built/$host/release/$1"; }

what=${1:?seconds, repeat or merge}
shift
build
case "$what" in
    repeat) exec "$(program "$1")" "$2" ;;
    merge)
        [ $# -gt 0 ] || set -- "${targets[@]}"
        for target in "$@"; do
            mkdir -p "fuzz/corpus/$target" "$built/found/$target"
            # Few and small: one input for each edge, not for each count of it.
            "$(program "$target")" -set_cover_merge=1 -use_counters=0 "fuzz/corpus/$target" "$built/found/$target" 2>&1 |
                grep "MERGE-OUTER:.*new" || true
        done
        exit ;;
esac

[ $# -gt 0 ] || set -- "${targets[@]}"
for target in "$@"; do
    found="$built/found/$target" log="$built/$target.log"
    mkdir -p "$found" "$built/broken"
    # A run exceeds its time by the time of the last input.
    if ! "$(program "$target")" -max_total_time="$what" -timeout=10 -rss_limit_mb=1024 -max_len=4096 \
        -artifact_prefix="$built/broken/$target-" -print_final_stats=1 "$found" "fuzz/corpus/$target" >"$log" 2>&1; then
        tail -n 40 "$log" >&2
        file=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
        die "fuzz target $target broke; to repeat it: scripts/fuzz.sh repeat $target ${file:-(see $log)}"
    fi
    say "fuzz $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs," \
        "$(sed -n 's/^#[0-9]*\t*DONE *cov: \([0-9]*\).*/\1/p' "$log") edges"
done
