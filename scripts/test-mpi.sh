#!/usr/bin/env bash
# Runs MPIs, programs that use them, and libfabric's own tools over weft: scripts/test-mpi.sh [STEP...]
#
# Without arguments it sets the machine up first and runs all steps. Downloads from PyPI are kept below target/mpi. WEFT_TEST_FABRIC=tcp
# runs the MPI steps over another libfabric provider, to find out whose fault a failure is.
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."
. scripts/lib.sh
. scripts/mpi.sh
. scripts/mpi-clients.sh
exec </dev/null

# The steps, in order. Those with two hosts run in network namespaces, and need root.
steps=(info job job-two pingpong killed openmpi mpich onesided whole bench pingpong-two killed-two openmpi-two mpich-two onesided-two bench-two
    debian debian-two hpcc hpcc-two coarrays coarrays-two scalapack scalapack-two lammps lammps-two intel intel-two crowd
    openmpi-lossy mpich-lossy onesided-lossy debian-lossy hpcc-lossy coarrays-lossy scalapack-lossy lammps-lossy intel-lossy)
# The point-to-point and collective parts of mpi4py's tests, and the parts that these need.
mpi4py_parts='test_(p2p|cco|request|status|util_pkl5)'
# weft's suspicion time, and how long a program may take to end after it, in ms.
suspicion=3000 grace=2000

logs=$mpi_dir/logs

now_ms() { date +%s%3N; }

# check NAME SECONDS COMMAND...: runs it with its output in a log. A failure, or exceeding the time, ends the script.
check() {
    local name=$1 limit=$2 log=$logs/$1.log began status=0
    shift 2
    began=$(now_ms)
    # In the background with `wait`, so that this script reacts to a signal at once.
    timeout --kill-after 5 "$limit" "$@" >"$log" 2>&1 &
    wait "$!" || status=$?
    [ "$status" -eq 0 ] || failed "$name" "ended with $status ($([ "$status" -ne 124 ] || echo "more than ")$((($(now_ms) - began) / 1000)) s)" "$@"
    printf '  %-34s %7d ms\n' "$name" $(($(now_ms) - began))
}
# failed NAME REASON COMMAND...
failed() {
    local name=$1 reason=$2
    shift 2
    touch "$logs/$name.log"
    say "the end of $logs/$name.log:"
    # Without the lines that Open MPI prints about its choice.
    grep -av '/[mb]tl_ofi_component.c:' "$logs/$name.log" | tail -n 60 | sed 's/^/    | /' || true
    say "FAILED: $name: $reason"
    say "the command was: $(printf '%q ' "$@")"
    say "to repeat it: ${WEFT_TEST_FABRIC:+WEFT_TEST_FABRIC=$(printf %q "$fabric") }scripts/test-mpi.sh $step"
    exit 1
}
# expect NAME COUNT PATTERN: checks that the log contains it so often.
expect() {
    local found
    # grep fails if there is no match.
    found=$({ grep -aEo "$3" "$logs/$1.log" || true; } | wc -l)
    [ "$found" -eq "$2" ] || failed "$1" "\"$3\" is there $found times, not $2 times" "${command[@]}"
}

# mpi_runs openmpi|mpich one|two|lossy: the exchange and mpi4py's tests on 2 and 4 ranks, each checked to use the provider.
mpi_runs() {
    local mpi=$1 place=$2 ranks name local_way parts=$mpi4py_parts
    local python=$mpi_dir/$mpi/bin/python sources
    sources=$(mpi4py_sources)
    build_program exchange "$mpi"
    for ranks in 2 4; do
        # The other parts take MPICH 45 s on a lossy wire.
        [ "$place$ranks" != lossy4 ] || parts=test_p2p
        # MPICH on two hosts also runs with its defaults, which use its own shared memory within each host.
        for local_way in over-weft $([ "$mpi$place$ranks" != mpichtwo4 ] || echo own); do
            declare -n env=${mpi}_env
            local variables=("${env[@]}")
            [ "$mpi$local_way" != mpichover-weft ] || variables+=("$mpich_no_shortcut")
            # Only on one host does Open MPI see that there are more ranks than cores; without this it spins through its time slices.
            [ "$mpi" != openmpi ] || variables+=(OMPI_MCA_mpi_yield_when_idle=1)
            name=$mpi-$place-$ranks$([ "$local_way" = over-weft ] || echo -$local_way)

            mpi_command "$mpi" "$place" "$ranks" "${variables[@]}" -- "$mpi_dir/$mpi/exchange"
            check "$name-exchange" 300 "${command[@]}"
            expect "$name-exchange" 1 "^exchange: $ranks ranks, 1 rounds: all as it should be$"
            used_fabric "$mpi" "$ranks" "$name-exchange"

            mpi_command "$mpi" "$place" "$ranks" "${variables[@]}" -- "$python" "$sources/test/main.py" --no-builddir -q -i "$parts"
            check "$name-mpi4py" 600 "${command[@]}"
            # Not only at the start of a line: the ranks write at once, and line ends come separately.
            expect "$name-mpi4py" "$ranks" 'Ran [0-9]{2,} tests in'
            expect "$name-mpi4py" "$ranks" 'OK'
            used_fabric "$mpi" "$ranks" "$name-mpi4py"
        done
    done
}
# used_fabric MPI RANKS NAME: checks that the MPI reports the provider. (Open MPI's pml cm and MPICH's netmod ofi have no other path,
# either.)
used_fabric() {
    case "$1" in
        openmpi) expect "$3" "$2" "mtl:ofi:provider: $fabric\$" ;;
        # Open MPI 4.1 names the provider's domain.
        debian) expect "$3" "$2" "mtl:ofi:provider: $([ "$fabric" = weft ] && echo weft0 || echo '[^ ]+')\$" ;;
        mpich) expect "$3" 1 "^libfabric provider: $fabric - " ;;
        intel) expect "$3" 1 "MPI startup\(\): libfabric provider: $fabric\$" ;;
    esac
}

# onesided one|two|lossy: Open MPI reads, writes and changes memory of other ranks over btl/ofi, on 2 and 4 ranks. `weft status` must report
# that peers have written, read and changed memory at each rank.
onesided() {
    local place=$1 ranks name seen
    local variables=("${openmpi_env[@]}" OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_osc=rdma "OMPI_MCA_btl=ofi,self")
    build_looker
    build_program onesided openmpi
    for ranks in 2 4; do
        name=onesided-$place-$ranks
        # The ranks that are visible from rank 0's host.
        seen=$([ "$place" = one ] && echo "$ranks" || echo $((ranks / 2)))
        mpi_command openmpi "$place" "$ranks" "${variables[@]}" -- "$mpi_dir/openmpi/onesided" "exec $mpi_tests/looks.sh $looker $seen"
        check "$name" 120 "${command[@]}"
        expect "$name" 1 "^onesided: $ranks ranks: all as it should be$"
        # The numbers differ between ranks.
        used_memory "$name" "$seen" '[0-9]{2,} writes \(.*\), [0-9]{2,} reads \(.*\), [0-9]{3,} atomic operations'
    done
    # `whole` covers these on one host.
    [ "$place" != one ] || return 0
    looking openmpi 1
    name=onesided-$place-2-mpi4py
    run_client openmpi "$place" 2 "$name" 300 "${look[@]}" "${variables[@]}" \
        -- "$mpi_dir/openmpi/bin/python" "$(mpi4py_sources)/test/main.py" --no-builddir -q -i 'test_(rma|win)'
    expect "$name" 2 'Ran [0-9]{2,} tests in'
    expect "$name" 2 'OK'
    used_memory "$name" 1 '[0-9]{2,} writes \(.*\), [0-9]{2,} reads \(.*\), [0-9]{2,} atomic operations'
}

# whole: all of mpi4py's tests on 2 ranks of Open MPI, with one-sided ones over btl/ofi, files and new processes. Except those of failures
# (ULFM), which its pml cm does not support.
whole() {
    local python=$mpi_dir/openmpi/bin/python variables=("${openmpi_env[@]}" OMPI_MCA_mpi_yield_when_idle=1)
    mpi_command openmpi one 2 "${variables[@]}" -- "$python" "$(mpi4py_sources)/test/main.py" --no-builddir -q -i 'test_(spawn|dynproc)'
    check whole-spawn 300 "${command[@]}"
    expect whole-spawn 2 'OK'
    mpi_command openmpi one 2 "${variables[@]}" OMPI_MCA_osc=rdma OMPI_MCA_btl=ofi,self \
        -- "$python" "$(mpi4py_sources)/test/main.py" --no-builddir -q -e 'test_(spawn|dynproc|ulfm)'
    check whole-mpi4py 600 "${command[@]}"
    expect whole-mpi4py 2 'Ran [0-9]{4} tests in'
    expect whole-mpi4py 2 'OK'
    used_fabric openmpi 2 whole-mpi4py
}

# pingpong one|two MODE: fi_pingpong over all its sizes (0 B to 6 MiB), with contents checked.
pingpong() {
    local place=$1 name=pingpong-$1-$2
    local options=(-p "$fabric" -e rdm -m "$2" -c -I 50 -S all)
    start_server "$place" "${options[@]}"
    command=(env "${fabric_env[@]}" fi_pingpong "${options[@]}" 127.0.0.1)
    [ "$place" = one ] || on_host 2 "${command[@]/127.0.0.1/$network.1}"
    check "$name" 180 "${command[@]}"
    wait "$server" || failed "$name" "the server ended with $?" "${command[@]}"
    expect "$name" 46 '^[0-9.]+[kmg]? +50 +=50 '
}
# job one|two: each launcher starts a program of weft-job, which must recognise it. One rank ends the others.
job() {
    local place=$1 mpi by ranks name status program=${CARGO_TARGET_DIR:-$root/target}/release/examples/ranks
    cargo build --release --locked -p weft-job --example ranks
    for mpi in mpich openmpi debian $(! has_intel || echo intel); do
        by=PMI
        [[ $mpi != openmpi && $mpi != debian ]] || by=PMIx
        for ranks in 2 6; do
            name=job-$mpi-$place-$ranks
            mpi_command "$mpi" "$place" "$ranks" -- "$program"
            check "$name" 60 "${command[@]}"
            expect "$name" 1 "^ranks: $ranks ranks by $by: all as it should be$"
        done
        name=job-$mpi-$place-exit status=0
        mpi_command "$mpi" "$place" 4 -- "$program" exit 3
        timeout --kill-after 5 60 "${command[@]}" >"$logs/$name.log" 2>&1 || status=$?
        [ "$status" -eq 3 ] || failed "$name" "ended with $status, and not with the status of the rank, 3" "${command[@]}"
        printf '  %-34s\n' "$name"
    done
}
# start_server one|two OPTION...: starts the listening fi_pingpong, and sets `server` to its process.
start_server() {
    local place=$1
    shift
    command=(env "${fabric_env[@]}" fi_pingpong "$@")
    [ "$place" = one ] || on_host 1 "${command[@]}"
    "${command[@]}" >"$logs/server.log" 2>&1 &
    server=$!
    sleep 0.5
}

# killed one|two: a server of fi_pingpong is killed during the exchange. The client must exit with an error in time, and nothing may be
# left. Both run in namespaces, whose sockets belong to nobody else.
killed() {
    local place=$1 client began took status=0 host=1 left log=$logs/killed-$1.log
    local options=(-p "$fabric" -e rdm -I 1000000000 -S 64)
    [ "$place" = one ] || host=2
    start_server two "${options[@]}"
    on_host "$host" env "${fabric_env[@]}" fi_pingpong "${options[@]}" "$network.1"
    timeout --kill-after 1 20 "${command[@]}" >"$log" 2>&1 &
    client=$!
    sleep 1.5
    kill -0 "$client" 2>/dev/null || failed "killed-$place" "the client ended before the server was killed" "${command[@]}"
    kill -KILL "$server"
    began=$(now_ms)
    { wait "$server" || true; } 2>/dev/null
    wait "$client" || status=$?
    took=$(($(now_ms) - began))
    [ "$status" -ne 124 ] && [ "$took" -le $((suspicion + grace)) ] ||
        failed "killed-$place" "the client took $took ms to notice, more than $((suspicion + grace)) ms" "${command[@]}"
    [ "$status" -ne 0 ] || failed "killed-$place" "the client ended as if all were well" "${command[@]}"
    left=$(ip netns pids "$MPI_HOSTS-1"; ip netns pids "$MPI_HOSTS-2")
    [ -z "$left" ] || failed "killed-$place" "processes are left: ${left//$'\n'/ }" "${command[@]}"
    left=$(for host in 1 2; do ip netns exec "$MPI_HOSTS-$host" grep weft /proc/net/unix || true; done)
    [ -z "$left" ] || failed "killed-$place" "sockets are left: $left" "${command[@]}"
    left=$(comm -13 <(printf '%s\n' "$shm_before") <(ls /dev/shm) | grep -i weft || true)
    [ -z "$left" ] || failed "killed-$place" "files are left in /dev/shm: $left" "${command[@]}"
    printf '  %-34s %7d ms  (ended with %d: %s)\n' "killed-$place" "$took" "$status" "$(tail -n1 "$log")"
}

# bench_rows NAME [hpcc] OPTION...: `weft bench mpi` measures each MPI over each transport, or hpcc, for a moment each.
bench_rows() {
    local name=$1 weft=${CARGO_TARGET_DIR:-$root/target}/release/weft rows=()
    shift
    [ "${1-}" != hpcc ] || { rows=(hpcc) && shift && set -- --only hpcc --quick "$@"; }
    cargo build --release --locked -p weft-cli --bin weft
    command=("$weft" bench mpi --rounds 1 --ms 2 --json "$logs/$name.json" "$@")
    check "$name" 300 "${command[@]}"
    check "$name-rows" 20 /usr/bin/python3 "$mpi_tests/rows.py" "$logs/$name.json" "${rows[@]}"
}
bench_two() {
    bench_rows bench-two --hosts
    bench_rows bench-two-hpcc hpcc --hosts
}
# bench_one: the same on one host. Its program must detect corrupted data.
bench_one() {
    bench_rows bench
    bench_rows bench-hpcc hpcc
    "$mpi_dir/openmpi/bin/mpicc" -DSPOIL -std=c11 -O2 -Wall -Wextra -Werror -o "$mpi_dir/openmpi/spoilt" bench/mpi/*.c -lm
    mpi_command openmpi one 2 "${openmpi_env[@]}" -- "$mpi_dir/openmpi/spoilt" 0,1 1 rtt:8
    ! "${command[@]}" >"$logs/bench-spoilt.log" 2>&1 || failed bench-spoilt "it ended as if all were well" "${command[@]}"
    expect bench-spoilt 1 'measure: a message, 8 B: what arrived is not what was sent'
}

run_step() {
    local what=$1 place=one with=()
    case "$1" in
        *-two) what=${1%-two} place=two with=(with_hosts) ;;
        *-lossy) what=${1%-lossy} place=lossy with=(with_wire) ;;
    esac
    case "$what" in
        info) # libfabric's headers say what the provider takes them to say; it finds the provider, and one way to use it
            command=(cc -fsyntax-only "$mpi_tests/abi.c")
            check abi 20 "${command[@]}"
            command=(env "${fabric_env[@]}" fi_info -p "$fabric")
            check info 20 "${command[@]}"
            expect info 1 "^provider: $fabric\$" ;;
        pingpong)
            "${with[@]}" pingpong "$place" msg
            "${with[@]}" pingpong "$place" tagged ;;
        killed) with_hosts killed "$place" ;;
        openmpi | mpich) "${with[@]}" mpi_runs "$what" "$place" ;;
        debian) "${with[@]}" exchanges debian "$place" ;;
        bench) "bench_$place" ;;
        whole | crowd) "$what" ;;
        *) "${with[@]}" "$what" "$place" ;;
    esac
}
with_hosts() {
    hosts_up
    "$@"
    hosts_down
}
# with_wire COMMAND...: the same through a wire that loses one frame in a hundred in each direction.
with_wire() {
    local wire log=$logs/$step.log counts=$logs/$step.json
    build_looker
    hosts_up wire
    rm -f "$counts"
    command=(ip netns exec "$MPI_HOSTS-wire" "$looker" wire to-1 to-2 --loss 1% --seed 7 --json "$counts")
    "${command[@]}" >"$log" 2>&1 &
    wire=$!
    until grep -q 'forwarding between' "$log"; do
        kill -0 "$wire" 2>/dev/null || failed "$step" "there is no wire" "${command[@]}"
        sleep 0.05
    done
    "$@"
    kill -TERM "$wire"
    wait "$wire" || failed "$step" "the wire ended with $?" "${command[@]}"
    hosts_down
    cat "$counts" >>"$log"
    expect "$step" 2 '"lost": [0-9]{2,}'
}
# The reason why a step cannot run here, if there is one.
obstacle() {
    if [[ $1 = *-two || $1 = *-lossy || $1 = killed ]] && [ "$(id -u)" -ne 0 ]; then
        echo "needs root, for network namespaces"
    elif [[ $1 = intel* ]] && ! has_intel; then
        echo "needs an x86-64 processor, for Intel MPI"
    fi
}

if [ $# -eq 0 ]; then
    scripts/setup.sh --for mpi
    set -- "${steps[@]}"
fi
for step in "$@"; do
    [[ " ${steps[*]} " = *" $step "* ]] || die "no step $step; there are: ${steps[*]}"
done
find_toolchain || die "no Rust $(msrv) or newer here: run scripts/setup.sh --for mpi"
start=$SECONDS
mkdir -p "$logs"
# Without the second trap, bash would exit at a signal and leave the namespaces.
trap 'jobs -p | xargs -r kill 2>/dev/null || true; hosts_down' EXIT
trap 'exit 143' TERM INT HUP
shm_before=$(ls /dev/shm)
build_provider
install_mpi openmpi
install_mpi mpich
[[ ! " $* " =~ \ (intel|crowd|job) ]] || ! has_intel || install_intel
say "all is built and installed: $((SECONDS - start)) s"

left_out=()
for step in "$@"; do
    obstacle=$(obstacle "$step")
    if [ -n "$obstacle" ]; then
        [ -z "${CI-}" ] || die "step $step $obstacle"
        say "LEFT OUT: step $step $obstacle"
        left_out+=("$step")
        continue
    fi
    say "step $step"
    began=$SECONDS
    run_step "$step"
    say "step $step: $((SECONDS - began)) s"
done
say "all MPI steps: $((SECONDS - start)) s${left_out[*]:+; LEFT OUT: ${left_out[*]}}"
