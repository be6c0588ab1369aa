#!/usr/bin/env bash
# Sets a Debian or Ubuntu machine up for weft: scripts/setup.sh [--for build|demo|test|bench|mpi]
#
# Looks first, and installs with apt only what is missing, so it may be repeated and takes no time when all is there.
#   build, demo   a C compiler, make, CA certificates, and Rust (rustc and cargo)
#   test          these, a C++ compiler, util-linux, iproute2, valgrind, tshark, fi_info and git, and the lint tools rustfmt and
#                 clippy where they can be had
#   bench         these of build, iproute2, and ucx_perftest and UCX's headers to compare with, where they can be had
#   mpi           these of build, iproute2, libfabric's headers and tools, Debian's Python with what environments and modules need, Open
#                 MPI and programs that use it
# Without root it installs nothing, and prints the command to type instead.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

purpose=build
case "${1-}" in
    "") ;;
    --for) purpose=${2-} ;;
    *) purpose= ;;
esac
case "$purpose" in
    build | demo | test | bench | mpi) ;;
    *) die "usage: scripts/setup.sh [--for build|demo|test|bench|mpi]" ;;
esac

apt() {
    DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 "$@" </dev/null
}
# The version of a package that apt would install; fails if it has none.
candidate() {
    local version
    version=$(apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: //p')
    [ -n "$version" ] && [ "$version" != "(none)" ] && printf '%s\n' "${version#*:}"
}
has() { command -v "$1" >/dev/null; }

# Required packages that are missing. (An empty compile also succeeds without the C library's headers.)
system_packages() {
    has cc && echo '#include <stdio.h>' | cc -E - >/dev/null 2>&1 || echo gcc libc6-dev
    has make || echo make
    [ -e /etc/ssl/certs/ca-certificates.crt ] || echo ca-certificates
    [ "$purpose" = test ] || [ "$purpose" = bench ] || [ "$purpose" = mpi ] || return 0
    has ip || echo iproute2
    if [ "$purpose" = mpi ]; then
        has unshare || echo util-linux
        has fi_pingpong || echo libfabric-bin
        [ -e /usr/include/rdma/fabric.h ] || echo libfabric-dev
        has mpiexec.openmpi || echo openmpi-bin
        has mpicc.openmpi || echo libopenmpi-dev
        has hpcc || echo hpcc
        has lmp || echo lammps
        compgen -G '/usr/lib/*/open-coarrays/openmpi/bin/OpenCoarrays-*-tests' >/dev/null || echo libcoarrays-openmpi-dev
        compgen -G '/usr/lib/*/scalapack/openmpi-tests' >/dev/null || echo scalapack-mpi-test
        # Debian's Python, even if there are others: its headers and pip's wheel are separate packages.
        /usr/bin/python3 -c 'import ensurepip' 2>/dev/null || echo python3-venv
        /usr/bin/python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || echo python3-dev
    fi
    [ "$purpose" = test ] || return 0
    has c++ && echo "#include <vector>" | c++ -xc++ -E - >/dev/null 2>&1 || echo g++
    has unshare && has setpriv || echo util-linux
    has valgrind || echo valgrind
    has git || echo git
    has python3 || echo python3
    has tshark || echo tshark
    has fi_info || echo libfabric-bin
}

# The distribution's Rust as one line: the package names of "rustc cargo rustfmt clippy".
rust_packages() {
    local names version
    while read -r names; do
        version=$(candidate "${names%% *}") || continue
        version_ge "$version" "$(msrv)" || continue
        printf '%s\n' "$names"
        return 0
    done < <(
        echo "rustc cargo rustfmt rust-clippy"
        echo "rustc-web cargo-web rustfmt-web rust-clippy-web" # Debian 12
        apt-cache search --names-only '^rustc-[0-9.]+$' | sort -V |
            sed -n 's/^rustc-\([0-9.]*\) .*/rustc-\1 cargo-\1 rustfmt-\1 rust-\1-clippy/p' # Ubuntu
    )
    return 1
}

# The lint tools that this toolchain lacks, as packages or components.
missing_lints() {
    cargo fmt --version >/dev/null 2>&1 || echo rustfmt
    cargo clippy --version >/dev/null 2>&1 || echo clippy
}

updated=
update() {
    [ -z "$updated" ] || return 0
    say "setup: reads the package lists (apt-get update)"
    apt update >/dev/null || say "setup: apt-get update failed; going on with the lists that are there"
    updated=yes
}

# install PACKAGE...: installs as root; otherwise prints the command to type and stops.
install() {
    if ! has apt-get; then
        die "missing here: $*. This machine has no apt-get; please install what these Debian packages hold."
    elif [ "$(id -u)" -ne 0 ]; then
        say "setup: something is missing, and installing it needs root. Please type:" >&2
        die "    sudo apt-get update && sudo apt-get install -y --no-install-recommends $*"
    fi
    update
    say "setup: installs $*"
    # --no-remove: never at the cost of an installed package.
    apt install -y --no-remove --no-install-recommends "$@" >/dev/null || die "setup: apt-get could not install $* (see above); an older Rust package in the way is yours to remove"
}

missing=$(system_packages | xargs)
need_rust=
find_toolchain || need_rust=yes

rust=
if [ -n "$need_rust" ]; then
    [ "$(id -u)" -ne 0 ] || ! has apt-get || update
    names=$(rust_packages) || die "setup: no Rust $(msrv) or newer here, nor in this machine's package lists" \
        "(after \`sudo apt-get update\` there may be). Install one, for instance with rustup, and come back."
    read -r rustc cargo fmt clippy <<<"$names"
    rust="$rustc $cargo"
    if [ "$purpose" = test ]; then
        for package in "$fmt" "$clippy"; do
            candidate "$package" >/dev/null && rust="$rust $package"
        done
    fi
fi

if [ -n "$missing$rust" ]; then
    # shellcheck disable=SC2086  # lists of package names
    install $missing $rust
    hash -r
    find_toolchain || die "setup: the Rust just installed is not found"
fi

# From here on, optional packages: if one is not available, a line says so, and the set-up goes on.
if [ "$purpose" = test ]; then
    lints=$(missing_lints | xargs)
    if [ -n "$lints" ] && has rustup; then
        say "setup: adds $lints to the toolchain (rustup component add)"
        # shellcheck disable=SC2086
        rustup -q component add $lints || true
    elif [ -n "$lints" ] && [ -z "$rust" ] && [ "$(id -u)" -eq 0 ] && names=$(rust_packages); then
        read -r rustc _ fmt clippy <<<"$names"
        # Only for the very Rust that they belong to: never pulls in another one.
        if dpkg -s "$rustc" >/dev/null 2>&1; then
            for package in $([[ $lints != *rustfmt* ]] || echo "$fmt") $([[ $lints != *clippy* ]] || echo "$clippy"); do
                candidate "$package" >/dev/null && install "$package"
            done
        fi
    fi
    lints=$(missing_lints | xargs)
    [ -z "$lints" ] || say "setup: this toolchain has no $lints, and no package for it is known: those checks will be left out"
fi
# wish PACKAGE LOSS: installs it if it is available, otherwise prints what is lost.
wish() {
    if [ "$(id -u)" -ne 0 ]; then
        say "setup: $1 is missing, $2 will be left out; to have it: sudo apt-get install -y $1"
    else
        update
        if candidate "$1" >/dev/null; then
            install "$1"
        else
            say "setup: no package $1 here: $2 will be left out"
        fi
    fi
}
if [ "$purpose" = bench ]; then
    has ucx_perftest || wish ucx-utils "the comparison with ucx_perftest"
    echo '#include <ucp/api/ucp.h>' | cc -E - >/dev/null 2>&1 || wish libucx-dev "the comparison with UCX whose receivers read"
fi

say "setup: ready to $purpose with Rust ${toolchain:-?}"
