# shellcheck shell=bash
# Real programs over weft, for test-mpi.sh: Intel MPI and its benchmarks; hpcc, OpenCoarrays, ScaLAPACK and LAMMPS over Debian's Open MPI;
# and crowds of ranks. Sourced after mpi.sh, never run.
# shellcheck disable=SC2154  # test-mpi.sh sets `logs`

looker=${CARGO_TARGET_DIR:-$root/target}/release/weft
build_looker() { cargo build --release --locked -p weft-cli --bin weft; }

# looking MPI SEEN: sets `look` to variables that make a program print `weft status` before it ends, once peers have written to or read from
# that many ranks.
looking() {
    build_preload look-at-end "$1"
    look=("LOOK_AT_END=exec $mpi_tests/looks.sh $looker $2" "LD_PRELOAD=$mpi_dir/$1/look-at-end.so")
}
# used_memory NAME SEEN PATTERN: checks that `weft status` reported such accesses by peers for that many ranks.
used_memory() {
    [ "$fabric" != weft ] || expect "$1" "$2" "by peers: $3"
}

# run_client MPI one|two|lossy RANKS NAME SECONDS NAME=VALUE... -- PROGRAM...: runs it, in `folder` if that is set, and checks that it used
# the provider.
run_client() {
    local mpi=$1 place=$2 ranks=$3 name=$4 limit=$5
    shift 5
    declare -n env=${mpi}_env
    mpi_command "$mpi" "$place" "$ranks" "${env[@]}" "$@"
    [ -z "${folder-}" ] || command=(env -C "$folder" "${command[@]}")
    check "$name" "$limit" "${command[@]}"
    used_fabric "$mpi" "$ranks" "$name"
}
# fresh_folder NAME: makes an empty folder, and sets `folder` to it.
fresh_folder() {
    folder=$mpi_dir/$1
    rm -rf "$folder"
    mkdir -p "$folder"
}

# exchanges MPI one|two|lossy: our own program on 2 and 4 ranks.
exchanges() {
    local mpi=$1 place=$2 ranks name
    build_program exchange "$mpi"
    for ranks in 2 4; do
        name=$mpi-$place-$ranks-exchange
        run_client "$mpi" "$place" "$ranks" "$name" 300 -- "$mpi_dir/$mpi/exchange"
        expect "$name" 1 "^exchange: $ranks ranks, 1 rounds: all as it should be$"
    done
}

# intel one|two|lossy: the ranks also write and read each other's memory. Of its benchmarks only IMB-MT checks what arrives.
intel() {
    local place=$1 ranks name seen program=$mpi_dir/intel/bin/IMB short=(-iter "20,10,20" -time 5)
    local log_most=17 counts=1,100,4096,4097,65536
    # Two cores carry only some 100 MB/s through a wire.
    [ "$place" != lossy ] || log_most=14 counts=1,99,100,4096,4097
    exchanges intel "$place"
    build_looker
    build_program onesided intel
    for ranks in 2 4; do
        seen=$([ "$place" = one ] && echo "$ranks" || echo $((ranks / 2)))
        name=intel-$place-$ranks
        run_client intel "$place" "$ranks" "$name-onesided" 300 \
            -- "$mpi_dir/intel/onesided" "exec $mpi_tests/looks.sh $looker $seen" called
        expect "$name-onesided" 1 "^onesided: $ranks ranks: all as it should be$"
        used_memory "$name-onesided" "$seen" '[0-9]{2,} writes \(.*\), [0-9]{3,} reads \('

        looking intel "$seen"
        run_client intel "$place" "$ranks" "$name-rma" 300 "${look[@]}" \
            -- "$program-RMA" -npmin "$ranks" -msglog "3:$log_most" "${short[@]}"
        # The two benchmarks that need a pair are not run on four ranks.
        expect "$name-rma" $((ranks == 2 ? 26 : 22)) '^# Benchmarking '
        expect "$name-rma" 1 '^# All processes entering MPI_Finalize'
        used_memory "$name-rma" "$seen" '[0-9]{4,} writes \(.*\), [0-9]{4,} reads \('
        [ "$place" != two ] || continue

        # Two threads of each rank at once.
        run_client intel "$place" "$ranks" "$name-mt" 300 OMP_NUM_THREADS=2 \
            -- "$program-MT" -thread_level multiple -check on -datatype int -count "$counts" -warmup 2 -repeat 20
        expect "$name-mt" 10 '^# #processes = [24] \(threads: 2\)'
        expect "$name-mt" 0 'CHECK FAILURES'
        [ "$place" = one ] || continue
        run_client intel one "$ranks" "$name-mpi1" 300 -- "$program-MPI1" -npmin "$ranks" -msgsize 0,1,1000,16384,16385,262144 "${short[@]}"
        expect "$name-mpi1" 19 '^# Benchmarking '
        expect "$name-mpi1" 1 '^# All processes entering MPI_Finalize'
        run_client intel one "$ranks" "$name-p2p" 300 -- "$program-P2P" -iter 10 -msglog 14:15
        expect "$name-p2p" $((ranks == 2 ? 6 : 7)) '^# *Benchmarking '
        expect "$name-p2p" 1 '^# All processes entering MPI_Finalize'
    done
}

# hpcc one|two|lossy: matrices, random updates of the ranks' memory, Fourier transforms and MPI's bandwidth, each with its own check.
hpcc() {
    local place=$1 ranks name folder
    for ranks in 2 4; do
        name=hpcc-$place-$ranks
        fresh_folder hpcc
        sed "s/^1 *Ps/$((ranks / 2)) Ps/" bench/mpi/hpccinf.txt >"$folder/hpccinf.txt"
        run_client debian "$place" "$ranks" "$name" 300 -- /usr/bin/hpcc
        cat "$folder/hpccoutf.txt" >>"$logs/$name.log"
        expect "$name" 1 '^Success=1$'
        expect "$name" 1 "^CommWorldProcs=$ranks$"
        # Of the sum of matrices, and of their equations.
        expect "$name" 1 ' 5 tests completed and passed residual checks'
        expect "$name" 1 ' 1 tests completed and passed residual checks'
        expect "$name" 2 ' 0 tests completed and failed residual checks'
        expect "$name" 2 '^MPIRandomAccess(_LCG)?_Errors=0$'
        expect "$name" 1 '^MPIFFT_maxErr=[0-9.]+e-1[4-9]$'
        expect "$name" 0 'FAILED'
    done
}

# coarrays one|two|lossy: OpenCoarrays' own programs. Within a host Open MPI accesses windows that it allocates through its own shared
# memory, so on one host only messages go over weft. Between hosts reads and atomic operations do too. There Open MPI 5 runs the programs,
# because btl/ofi of Open MPI 4.1 hangs in windows without memory, even over libfabric's sockets provider.
coarrays() {
    local place=$1 tests=(/usr/lib/*/open-coarrays/openmpi/bin/OpenCoarrays-*-tests) ranks name program
    local programs=(alloc_comp_send_convert_nums atomics get_with_vector_index strided_get)
    [ -x "${tests[0]}/atomics" ] || die "no programs of OpenCoarrays in ${tests[0]}"
    if [ "$place" = one ]; then
        for program in "${programs[@]}" co_broadcast_test co_reduce_test syncimages; do
            for ranks in 2 4; do
                name=coarrays-one-$ranks-$program
                run_client debian one "$ranks" "$name" 300 -- "${tests[0]}/$program"
                says_passed "$name"
            done
        done
        return
    fi
    build_looker
    # Only one rank's memory is used by the others.
    looking openmpi 1
    look+=("LD_LIBRARY_PATH=$mpi_dir/openmpi/lib" OMPI_MCA_osc=rdma "OMPI_MCA_btl=ofi,self" OMPI_MCA_mpi_yield_when_idle=1)
    for program in "${programs[@]}"; do
        name=coarrays-$place-2-$program
        run_client openmpi "$place" 2 "$name" 300 "${look[@]}" -- "${tests[0]}/$program"
        says_passed "$name"
        used_memory "$name" 1 '.*[0-9]+ reads? .*[0-9]+ atomic operations'
    done
}
# says_passed NAME: some programs print it once, others on each rank.
says_passed() {
    grep -aqi 'test passed' "$logs/$1.log" || failed "$1" "it does not say that it passed" "${command[@]}"
}

# scalapack one|two|lossy: its own tests on 4 ranks, unchanged, and those of the messages that it is built on.
scalapack() {
    local place=$1 program name said folder
    local tests=(/usr/lib/*/scalapack/openmpi-tests)
    [ -x "${tests[0]}/xdlu" ] || die "no tests of ScaLAPACK in ${tests[0]}"
    fresh_folder scalapack
    cp -L "${tests[0]}"/*.dat "$folder"
    for program in xdqr xdinv $([ "$place" != one ] || echo xdlu xdtrd); do
        name=scalapack-$place-$program
        run_client debian "$place" 4 "$name" 300 -- "${tests[0]}/$program"
        expect "$name" 1 '^ *[0-9]{3,} tests completed and passed residual checks'
        expect "$name" 1 '^ *0 tests completed and failed residual checks'
    done
    # Except its test of aborting.
    sed "s/^'T'\(.*Run AUX\)/'F'\1/; s/^5 /2 /; s/^'I' 'S' 'D'/'I' 'Z'/" "${tests[0]}/BLACS/bt.dat" >"$folder/bt.dat"
    cp -L "${tests[0]}"/BLACS/{bsbr,comb,sdrv}.dat "$folder"
    name=scalapack-$place-blacs
    run_client debian "$place" 4 "$name" 300 -- "${tests[0]}/BLACS/xCbtest"
    said='TESTS: *[0-9]+ TESTS; *[0-9]{2,} PASSED, *[0-9]+ SKIPPED, *'
    expect "$name" 10 "${said}0 FAILED"
    expect "$name" 10 "$said"
}

# lammps one|two|lossy: particles in a box. The numbers must equal those of the same run over Open MPI's TCP.
lammps() {
    local place=$1 ranks name folder
    for ranks in 2 4; do
        name=lammps-$place-$ranks
        fresh_folder lammps
        mpi_command debian one "$ranks" OMP_NUM_THREADS=1 OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self OMPI_MCA_mpi_yield_when_idle=1 \
            -- lmp -in "$mpi_tests/in.melt" -log "$folder/tcp.log"
        check "$name-tcp" 300 "${command[@]}"
        run_client debian "$place" "$ranks" "$name" 300 -- lmp -in "$mpi_tests/in.melt" -log "$folder/weft.log"
        expect "$name" 1 "^Loop time of .* on $ranks procs for 200 steps with 2048 atoms"
        table "$folder/tcp.log" >"$folder/tcp"
        table "$folder/weft.log" >"$folder/weft"
        [ "$(wc -l <"$folder/tcp")" -eq 11 ] || failed "$name" "the table of the run over TCP has not 11 lines" "${command[@]}"
        cmp "$folder/tcp" "$folder/weft" || failed "$name" "its numbers are not those of TCP" "${command[@]}"
    done
}
# table LOG: the lines of numbers that LAMMPS prints, between its "Step" and "Loop".
table() { sed -n '/^Step /,/^Loop /{/^[SL]/!p}' "$1"; }

# crowd: more ranks than processors, all to one and all to all, and threads of all ranks. Its time is not tested. (In Open MPI threads wait
# long for each other with any libfabric provider.)
crowd() {
    local mpi ranks name variables=()
    for mpi in openmpi mpich debian $(! has_intel || echo intel); do
        build_program crowd "$mpi"
        variables=()
        case "$mpi" in
            openmpi) variables=(OMPI_MCA_mpi_yield_when_idle=1) ;;
            mpich) variables=("$mpich_no_shortcut") ;;
        esac
        for ranks in 3 4 8; do
            name=crowd-$mpi-$ranks
            run_client "$mpi" one "$ranks" "$name" 300 "${variables[@]}" -- "$mpi_dir/$mpi/crowd"
            expect "$name" 1 "^crowd: $ranks ranks: all as it should be$"
        done
    done
}
