# shellcheck shell=bash
# Functions shared by the scripts of this directory. Sourced, never run; expects `set -euo pipefail`.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "weft: $*"; }
die() {
    printf '%s\n' "weft: $*" >&2
    exit 1
}

# version_ge A B: is version A at least B?
version_ge() { printf '%s\n%s\n' "$2" "$1" | sort -V -C; }

# The oldest Rust that weft supports. Only Cargo.toml states it.
msrv() {
    local line
    line=$(grep -m1 '^rust-version *= *"' "$root/Cargo.toml") || die "Cargo.toml names no rust-version"
    line=${line#*\"}
    printf '%s\n' "${line%%\"*}"
}

# Puts the first toolchain that is new enough in front of PATH: the one in PATH, else rustup's, else the distribution's
# (Ubuntu keeps its newer ones in /usr/lib/rust-VERSION/bin). Sets `toolchain` to its version; fails if there is none.
find_toolchain() {
    local dir want found
    want=$(msrv)
    for dir in "" "${CARGO_HOME:-${HOME:-/root}/.cargo}/bin" /usr/bin /usr/lib/rust-*/bin; do
        found=$(PATH="${dir:+$dir:}$PATH" toolchain_version) || continue
        version_ge "$found" "$want" || continue
        [ -z "$dir" ] || PATH="$dir:$PATH"
        export PATH
        # shellcheck disable=SC2034  # read by those who source this file
        toolchain=$found
        return 0
    done
    return 1
}

# The older of the versions of rustc and cargo in PATH: both must be new enough.
toolchain_version() {
    local rustc cargo
    rustc=$(rustc --version 2>/dev/null) && cargo=$(cargo --version 2>/dev/null) || return 1
    rustc=${rustc#rustc } cargo=${cargo#cargo }
    printf '%s\n%s\n' "${rustc%% *}" "${cargo%% *}" | sort -V | head -n1
}
