#!/usr/bin/env bash
# Runs the tests in which several threads of a process meet under the thread sanitiser: scripts/races.sh
# Needs a nightly toolchain (rustup toolchain install nightly) with the standard library's source, which has to be instrumented too; adds
# the source if it is missing. It does not see what the two ends of a ring do in different processes: loom checks that (scripts/test.sh
# loom). valgrind's DRD and Helgrind are no substitute. They know the locks of pthread, but neither Rust's locks, which are futexes, nor
# atomics, so they report thousands of errors in correct programs.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

has_source() { [ -e "$(rustc +nightly --print sysroot 2>/dev/null)/lib/rustlib/src/rust/library/Cargo.lock" ]; }

if ! has_source && rustc +nightly -V >/dev/null 2>&1; then
    say "adds rust-src to the nightly toolchain"
    rustup component add rust-src --toolchain nightly || true
fi
if ! has_source; then
    say "LEFT OUT: the thread sanitiser: no nightly toolchain with rust-src here (see the head of scripts/races.sh)"
    exit 0
fi
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
export RUSTFLAGS="-Zsanitizer=thread" CARGO_TARGET_DIR="$root/target/races"
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
# A test with a race exits with a status of its own.
export TSAN_OPTIONS="exitcode=66"

test_with() { cargo +nightly test --release --locked -Zbuild-std --target "$host" "$@"; }
# libweft, and the C program whose threads share a bundle.
c_program() {
    local built=$CARGO_TARGET_DIR/$host/release case
    cargo +nightly build --release --locked -Zbuild-std --target "$host" -p weft-capi --lib
    ln -sf libweft_c.so "$built/libweft.so.0"
    gcc -std=c11 -D_DEFAULT_SOURCE -O1 -g -fsanitize=thread -I crates/weft-capi/include -c -o "$built/parallel.o" \
        crates/weft-capi/tests/c/parallel.c
    # With the sanitiser of Rust's compiler, because gcc's has other functions.
    gcc -o "$built/parallel" "$built/parallel.o" -Wl,--export-dynamic -Wl,-rpath,"$built" -Wl,--whole-archive \
        "$(rustc +nightly --print sysroot)/lib/rustlib/$host/lib/librustc-nightly_rt.tsan.a" -Wl,--no-whole-archive \
        "$built/libweft.so.0" -lpthread -ldl -lm -lrt -lresolv
    for case in $("$built/parallel"); do
        say "parallel.c: $case"
        "$built/parallel" "$case"
    done
}

c_program
test_with -p weft-shm --lib biased
test_with -p weft --test helper --test messages --test wait
test_with -p weft --test hosts deputy
