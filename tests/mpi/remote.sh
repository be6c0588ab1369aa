#!/usr/bin/env bash
# Runs a command on one of the two hosts that scripts/mpi.sh made (network namespaces), as ssh would: remote.sh [-OPTION...] ADDRESS COMMAND...
#
# Open MPI and MPICH start their ranks through this. Like ssh, it does not pass on the caller's settings.
set -euo pipefail
while [[ $1 = -* ]]; do shift; done
number=${1##*.}
shift
unset LD_LIBRARY_PATH LD_PRELOAD "${!FI_@}" "${!WEFT_@}" "${!OMPI_@}" "${!MPIR_@}" "${!I_MPI_@}"
# Each host needs its own name: Open MPI takes two hosts with the same name for one, and hangs.
exec ip netns exec "$MPI_HOSTS-$number" unshare --uts \
    bash -c 'echo "weft-host-$0" >/proc/sys/kernel/hostname; eval "$1"' "$number" "$*"
