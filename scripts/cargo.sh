#!/usr/bin/env bash
# Runs cargo of the first toolchain that is new enough: scripts/cargo.sh build --release
set -euo pipefail
. "$(dirname "$0")/lib.sh"
find_toolchain || die "no Rust $(msrv) or newer here: run scripts/setup.sh"
exec cargo "$@"
