#!/usr/bin/env bash
# Runs a command the way an ordinary user of a hardened machine would: scripts/ordinary-user.sh COMMAND [ARGUMENT...]
#
#   - without root: if root starts it, as user 65532, who owns nothing (not nobody: that one is the kernel's overflow user);
#   - in user and network namespaces of its own (`unshare -Urn`): called root in there, with none of root's rights outside, and
#     no network but a loopback interface;
#   - with `ulimit -l 0`: no locked memory;
#   - with process_vm_readv and process_vm_writev refused, by tests/tools/refuse-process-vm.c, which tries both and says so;
#   - with an empty directory of its own as HOME and TMPDIR, removed at the end: the only place it may write to.
#
# The command runs in place, also in a clone below /root (scripts/reachable.sh). For scripts/test.sh, stage `ordinary`, this is
# called once for each test program.
set -euo pipefail
umask 022
. "$(dirname "$0")/lib.sh"

user=65532
[ $# -gt 0 ] || die "usage: scripts/ordinary-user.sh COMMAND [ARGUMENT...]"

tool=$root/target/tools/refuse-process-vm
if [ ! "$tool" -nt "$root/tests/tools/refuse-process-vm.c" ]; then
    mkdir -p "$(dirname "$tool")"
    # Written under another name first, because other processes may start the same at this moment.
    cc -O1 -Wall -Wextra -Werror -o "$tool.$$" "$root/tests/tools/refuse-process-vm.c"
    mv "$tool.$$" "$tool"
fi

home=$(mktemp -d /tmp/weft-user.XXXXXX)
trap 'rm -rf "$home"' EXIT

as_user=()
if [ "$(id -u)" -eq 0 ]; then
    chown "$user:$user" "$home"
    # Paths that the command needs: the repository, cargo's output, and the toolchain (a test runs `cargo metadata`).
    needed=("$root" "$(rustc --print sysroot)")
    [ -z "${CARGO_TARGET_DIR-}" ] || needed+=("$(realpath "$CARGO_TARGET_DIR")")
    as_user=("$root/scripts/reachable.sh" "$user" "${needed[@]}" -- setpriv --reuid "$user" --regid "$user" --clear-groups)
fi
"${as_user[@]}" test -r "$root/Cargo.toml" ||
    die "user $user cannot read $root: no mount namespace here (see above), or files made under umask 077 (chmod -R go+rX them)"

namespaces=(unshare --user --map-root-user --net)
if ! "${as_user[@]}" "${namespaces[@]}" true; then
    why="an ordinary user gets no user namespace here (a container, a chroot, or Ubuntu's"
    why="$why sysctl kernel.apparmor_restrict_unprivileged_userns)"
    [ -z "${CI-}" ] || die "$why"
    say "LEFT OUT: namespaces: $why" >&2
    namespaces=()
fi
# The inner shell gives up locked memory, not this one, which may be root and so not bound by the limit.
"${as_user[@]}" env -u XDG_RUNTIME_DIR HOME="$home" TMPDIR="$home" "${namespaces[@]}" \
    bash -c 'ulimit -l 0 && if [ -n "$1" ]; then ip link set lo up; fi && shift && exec "$@"' \
    bash "${namespaces[*]}" "$tool" "$@"
