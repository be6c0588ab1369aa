#!/usr/bin/env bash
# Checks weft with the oldest Rust that Cargo.toml promises, for this processor and for aarch64: scripts/oldest.sh
#
# The toolchain is, in this order: the one in PATH, if it has that version; rustup's of that version; Debian 12's package of that version,
# unpacked below target/oldest-rust. Nothing is installed, and root is not needed. For aarch64 the toolchain needs its standard library,
# which Debian has. `cargo check` links nothing, so no compiler for aarch64 is needed. A missing part is LEFT OUT with a line; with CI set
# that is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

want=$(msrv)
other=aarch64-unknown-linux-gnu
place=$root/target/oldest-rust

left_out() {
    [ -z "${CI-}" ] || die "$1"
    say "LEFT OUT: $1"
}
# Whether rustc and cargo in PATH have the oldest version.
is_oldest() { [[ "$(toolchain_version)" = "$want".* ]]; }

# A private apt with lists of its own, for two architectures. It installs nothing.
apt() {
    "apt-$1" -q -o APT::Architectures::=amd64 -o APT::Architectures::=arm64 -o APT::Sandbox::User="$(id -un)" \
        -o Dir::State::lists="$place/lists" -o Dir::Cache="$place/cache" \
        -o Dir::Etc::sourcelist="$place/sources.list" -o Dir::Etc::sourceparts=- "${@:2}" </dev/null
}

# Unpacks Debian 12's Rust below target/oldest-rust, once.
unpack() {
    local codename mirror keys=/usr/share/keyrings/debian-archive-keyring.gpg version package
    [ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ] || return 1
    codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME-}")
    [ "$codename" = bookworm ] || return 1
    mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $codename" "Created-By: Packages" | head -n1)
    [ -n "$mirror" ] || return 1
    mkdir -p "$place/lists/partial" "$place/cache/archives/partial" "$place/packages" "$place/new"
    [ -r "$keys" ] && keys=" signed-by=$keys" || keys=
    echo "deb [arch=amd64,arm64$keys] $mirror $codename main" >"$place/sources.list"
    say "unpacks Debian's Rust $want below $place"
    apt get update >/dev/null || return 1
    version=$(apt cache madison rustc-web | awk '{ print $3 }' | grep -m1 "^$want\.") || return 1
    # The compiler, cargo, the standard libraries of both processors, and the libraries that cargo and the compiler need beyond those of apt
    # and curl.
    (cd "$place/packages" && apt get download "rustc-web=$version" "cargo-web=$version" "libstd-rust-web-$want=$version" \
        "libstd-rust-web-dev=$version" "libstd-rust-web-dev:arm64=$version" libllvm19 libz3-4 libpcre3 libhttp-parser2.9) >/dev/null || return 1
    for package in "$place"/packages/*.deb; do dpkg -x "$package" "$place/new" || return 1; done
    mv "$place/new" "$place/root"
    rm -rf "$place/lists" "$place/cache" "$place/packages"
}

if ! is_oldest && rustup run "$want" cargo --version >/dev/null 2>&1; then
    PATH=$(dirname "$(rustup which --toolchain "$want" cargo)"):$PATH
    export PATH
elif ! is_oldest; then
    if [ -e "$place/root" ] || unpack; then
        export PATH=$place/root/usr/bin:$PATH
        export LD_LIBRARY_PATH=$place/root/usr/lib/x86_64-linux-gnu:$place/root/lib/x86_64-linux-gnu
    fi
    if ! is_oldest; then
        left_out "the oldest Rust: no Rust $want here, nor in this machine's package lists; to have it: rustup toolchain install $want"
        exit 0
    fi
fi

say "checks with $(rustc --version)"
# In a folder of its own: other stages build with another compiler at the same time.
export CARGO_TARGET_DIR=$root/target/oldest RUSTFLAGS="-D warnings"
cargo check --workspace --all-targets --locked
if [ -e "$(rustc --print target-libdir --target "$other")" ]; then
    cargo check --workspace --all-targets --locked --target "$other"
else
    left_out "the check for $other: $(rustc --version) has no standard library for it; to have it: rustup target add --toolchain $want $other"
fi
