#!/usr/bin/env bash
# Runs test programs as `cargo test --no-fail-fast` does, but two at a time: scripts/programs.sh [--by RUNNER] ARGUMENT...
#
# The arguments are those of `cargo test` that select what to build. RUNNER is a script that is called with each program. Most programs wait
# more than they compute, so running them one after the other would leave cores idle. A program's output is printed when it has ended.
# Documentation tests are not included: `cargo test --doc`.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

# Programs that count system calls, wakeups, descriptors, memory or instructions, compare times, or make all processes of the host do
# something. They run alone, after the others.
alone=(
    weft/costs        # system calls, wake-ups, memory and instructions
    weft/hosts_counts # system calls and instructions between hosts
    weft/wait         # the wakeups of waiting processes
    weft/helper       # wakeups of a helper; a look at its process wakes it too
    weft/deaths       # descriptors of processes; looking at a process adds one to it
    weft/fork         # the same
    weft/status       # the same
    weft/strangers    # memory that a process keeps for attackers, measured during attacks
    weft-shm/distance # how far a consumer lets a producer run ahead
    weft-cli/idle     # the wake-ups of commands that wait
    weft-cli/stages   # stages against the round trips of a ping; has all processes of the host stamp requests
    weft-cli/trace    # makes all processes of the host report their messages
    weft-cli/wire     # a wire that loses nothing when it is served in time
)
# The slowest programs, which start first.
first=(weft/hosts tests/commands weft-sim/rows)

by=()
if [ "${1-}" = --by ]; then
    by=(bash "$root/$2")
    shift 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Background processes do not get Ctrl-C.
trap 'trap "" TERM; kill 0; exit 130' INT

# The programs, one in each line: the package's folder, where it runs; PACKAGE/NAME; its file.
cargo test "$@" --no-run --message-format json-render-diagnostics |
    sed -n 's|.*"manifest_path":"\([^"]*\)/Cargo.toml".*"name":"\([^"]*\)","src_path".*"test":true},"features".*"executable":"\([^"]*\)".*|\1\t\2\t\3|p' |
    awk -F '\t' -v OFS='\t' '{ at = $1; sub(".*/", "", at); print $1, at "/" $2, $3 }' >"$work/programs"
[ -s "$work/programs" ] || die "cargo named no test program"

# Programs with some names, in that order. Programs with other names are left out.
named() { for name in "$@"; do awk -F '\t' -v name="$name" '$2 == name' "$work/programs"; done; }
others() { awk -F '\t' -v names=" $* " 'index(names, " " $2 " ") == 0' "$work/programs"; }

# If all programs are built, every name in the lists must exist.
if [[ " $* " = *" --workspace "* && " $* " != *" --test "* ]]; then
    for name in "${alone[@]}" "${first[@]}"; do
        [ -n "$(named "$name")" ] || die "there is no test program $name: take it out of scripts/programs.sh"
    done
fi

# Runs a program, and prints its output at the end.
program() {
    local folder=$1 name=$2 file=$3 said began=$SECONDS status=0
    said=$work/said.$BASHPID
    (cd "$folder" && "${by[@]}" "$file") >"$said" 2>&1 || status=$?
    {
        flock 9
        printf '     Running %s (%s): %d s\n' "$name" "${file#"$root/"}" $((SECONDS - began))
        cat "$said"
        if [ "$status" -ne 0 ]; then
            printf 'error: %s ends with %d; to repeat it: %s\n' "$name" "$status" "${by[*]}${by:+ }$file"
            printf '%s\n' "$name" >>"$work/failed"
        fi
    } 9>"$work/turn"
    rm "$said"
}

# Runs the listed programs, so many at a time.
lanes() {
    local lanes=$1 busy=0 line list folder name file
    mapfile -t list
    for line in "${list[@]}"; do
        if [ "$busy" -eq "$lanes" ]; then
            wait -n
            busy=$((busy - 1))
        fi
        IFS=$'\t' read -r folder name file <<<"$line"
        program "$folder" "$name" "$file" &
        busy=$((busy + 1))
    done
    wait
}

{ named "${first[@]}"; others "${first[@]}" "${alone[@]}"; } | lanes 2
named "${alone[@]}" | lanes 1
[ ! -e "$work/failed" ] || die "these test programs failed: $(xargs <"$work/failed")"
