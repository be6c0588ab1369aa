#!/bin/sh
# One rank of hpcc, the programs of the HPC Challenge: hpcc.sh CPU,CPU MILLISECONDS hpcc:N
# N is the number of equations. hpcc measures each kernel once, however long it takes. Rank 0 prints the lines that measure.c prints, after
# it has seen that hpcc's own checks pass. `weft bench mpi` has this script beside hpccinf.txt, in a folder where it may write.
set -eu
rank=${OMPI_COMM_WORLD_RANK:?"no rank of Open MPI"}
cpu=${1%,*} size=${3#hpcc:}
[ "$rank" = 0 ] || cpu=${1#*,}
folder=$(dirname "$0")/hpcc
mkdir -p "$folder"
cd "$folder"
[ "$rank" = 0 ] || exec taskset -c "$cpu" hpcc

wrong() {
    echo "measure: hpcc of $size: $1" >&2
    exit 3
}

libraries=${LD_LIBRARY_PATH%%:*} root=${libraries%/lib}
# Open MPI says "Open MPI v5.0.11" first.
"$root/bin/ompi_info" --version | sed -n '1s/^/library /p'
echo "begin hpcc $size"
sed -e "s/^[0-9]* *Ns$/$size Ns/" -e 's/^[0-9]* *NBs$/64 NBs/' ../hpccinf.txt >hpccinf.txt
rm -f hpccoutf.txt
taskset -c "$cpu" hpcc

# value NAME: what hpcc says behind NAME=.
value() { sed -n "s/^$1=//p" hpccoutf.txt; }
[ "$(value Success)" = 1 ] || wrong "it does not say Success=1"
[ "$(value CommWorldProcs)" = 2 ] || wrong "it did not run on two ranks"
# Of the matrices that it adds transposed, and of the equations.
[ "$(grep -c ' 0 tests completed and failed residual checks' hpccoutf.txt)" = 2 ] || wrong "a residual check failed"
[ "$(value MPIRandomAccess_Errors)" = 0 ] || wrong "random updates were lost"
awk -v error="$(value MPIFFT_maxErr)" 'BEGIN { exit !(error != "" && error + 0 < 1e-10) }' || wrong "the Fourier transform is not exact"

# result NAME KEY FACTOR: one sample, in units and not in thousands of millions of them.
result() {
    awk -v name="$1" -v size="$size" -v value="$(value "$2")" -v factor="$3" 'BEGIN {
        value *= factor
        if (value > 0) printf "result hpcc.%s %d %.6g %.6g %.6g 1\n", name, size, value, value, value
    }'
}
result hpl HPL_Tflops 1e12
result transpose PTRANS_GBs 1e9
result random MPIRandomAccess_GUPs 1e9
result fft MPIFFT_Gflops 1e9
echo end
