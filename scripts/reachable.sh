#!/usr/bin/env bash
# As root: runs a command as a user who cannot reach directories, such as a clone below /root: reachable.sh USER DIR... -- COMMAND...
#
# Where USER cannot pass a directory above a DIR, a mount namespace of the command's own covers it with an empty one, and binds
# the DIRs, read-only, at their old places. Nothing is copied and no permission changes; the mounts go with the namespace.
# If anything fails here, nothing may be removed below a bind mount, so this script removes nothing at all.
set -euo pipefail
umask 022
. "$(dirname "$0")/lib.sh"

again=("$0" "$@")
user=$1 dirs=()
shift
while [ "$1" != -- ]; do
    dirs+=("$1")
    shift
done
shift

# The first directory above a path that the user cannot enter; fails if there is none.
closed_above() {
    local part at=
    while read -r -d / part; do
        at=$at${part:+/$part}
        setpriv --reuid "$user" --regid "$user" --clear-groups test -x "${at:-/}" || { printf '%s\n' "$at" && return 0; }
    done <<<"$(dirname "$1")/"
    return 1
}

any_closed() {
    local dir
    for dir in "${dirs[@]}"; do
        ! closed_above "$dir" >/dev/null || return 0
    done
    return 1
}

# First binds all directories aside, then covers the closed ones, then binds the directories back.
open_the_way() {
    local aside=/mnt closed i
    mount -t tmpfs weft "$aside"
    for i in "${!dirs[@]}"; do
        mkdir "$aside/$i"
        mount --bind --options ro "${dirs[i]}" "$aside/$i"
    done
    for i in "${!dirs[@]}"; do
        # Needed only where a cover hides it; elsewhere it exists.
        mkdir -p "${dirs[i]}"
        while closed=$(closed_above "${dirs[i]}"); do
            mount -t tmpfs --options mode=0755 weft "$closed"
            mkdir -p "${dirs[i]}"
        done
        mount --bind --options ro "$aside/$i" "${dirs[i]}"
    done
    umount --lazy "$aside"
}

if [ -n "${WEFT_OWN_MOUNTS-}" ]; then
    unset WEFT_OWN_MOUNTS
    here=$PWD
    open_the_way
    cd "$here"
elif any_closed; then
    WEFT_OWN_MOUNTS=yes exec unshare --mount --propagation private "${again[@]}"
fi
exec "$@"
