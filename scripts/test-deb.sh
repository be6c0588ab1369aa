#!/usr/bin/env bash
# As root: builds the package, and installs, runs and removes it in a fresh Debian or Ubuntu from debootstrap: scripts/test-deb.sh.
# Afterwards every file of that system must be as before. Takes a minute or two and the network, so `make soak` runs it.
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."
. scripts/lib.sh

[ "$(id -u)" -eq 0 ] || die "debootstrap and chroot need root: sudo scripts/test-deb.sh"
if ! command -v debootstrap >/dev/null; then
    say "installs debootstrap"
    DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-remove --no-install-recommends debootstrap >/dev/null ||
        die "no debootstrap here, and apt-get could not install it (see above)"
fi
package=$(scripts/deb.sh | tail -n1)
codename=$(. /etc/os-release && printf '%s' "$VERSION_CODENAME")
mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' "Codename: $codename" "Created-By: Packages" | head -n1)}
system=$(mktemp -d "${TMPDIR:-/tmp}/weft-deb.XXXXXX")
# Mounts inside it end with the mount namespace of each command, so it may be removed as it is.
trap 'rm -rf "$system"' EXIT

say "debootstrap of $codename ..."
debootstrap --variant=minbase "$codename" "$system" "$mirror" >"$system.log" 2>&1 || {
    tail -n 5 "$system.log" >&2
    die "debootstrap failed; another mirror: MIRROR=http://... scripts/test-deb.sh"
}
rm -f "$system.log"

# All files with their contents, except dpkg's own records.
contents() {
    (cd "$system" && find . -xdev -not -path './var/lib/dpkg/*' -not -path './var/log/*' -not -path './tmp/*' \
        \( -type f -exec md5sum {} + -o -not -type f -printf '%y %p\n' \) | LC_ALL=C sort)
}
inside() {
    unshare --mount --propagation private bash -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' "$system" \
        env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@"
}

before=$(contents)
cp "$package" "$system/tmp/weft.deb"
inside dpkg -i /tmp/weft.deb
inside weft --version
inside weft demo --no-bench --workers 2 | tail -n 2
inside test -s /usr/share/man/man1/weft.1.gz
inside test -s /usr/share/man/man8/weftd.8.gz
inside weftd --check
inside test -s /etc/weftd/weftd.toml
inside test -s /usr/lib/systemd/system/weftd.socket
inside grep -q '^ExecStart=/usr/bin/weftd ' /usr/lib/systemd/system/weftd.service
# A daemon, and a program on it. Both end with the shell.
inside sh -c 'weftd --socket /tmp/weftd/socket 2>/tmp/weftd.log & daemon=$!
    until grep -q serves /tmp/weftd.log; do kill -0 $daemon && sleep 0.1 || exit 1; done
    WEFT_NI=/tmp/weftd/socket weft demo --no-bench --workers 2 | tail -n 1; kill $daemon; wait $daemon'
inside bash -n /usr/share/bash-completion/completions/weft
if ! inside ldd /usr/lib/weft/libweft-fi.so >/dev/null; then
    die "the provider lacks a library"
fi
[ -z "$(inside dpkg --verify weft)" ] || die "dpkg --verify finds other files than were packed"
inside dpkg -P weft
after=$(contents)
diff <(printf '%s\n' "$before") <(printf '%s\n' "$after") || die "the package left the above behind"
say "the package installs, runs and goes without a trace"
