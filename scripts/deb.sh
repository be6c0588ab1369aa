#!/usr/bin/env bash
# Packs what `make build` built as a Debian package: scripts/deb.sh. Its last line is the package's path.
#
# The package holds the files of `make install PREFIX=/usr`, weftd's configuration, and no scripts that run at installation or removal:
# users start weftd themselves. The same commit and the same programs give the same bytes.
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."
. scripts/lib.sh

for tool in dpkg-deb objdump gzip; do
    command -v "$tool" >/dev/null || die "no $tool here: a package is made on Debian or Ubuntu, with dpkg and binutils"
done
target=${CARGO_TARGET_DIR:-target}
tree=$target/deb/tree
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
arch=$(dpkg --print-architecture)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

rm -rf "$tree"
DESTDIR=$PWD/$tree PREFIX=/usr ZSHDIR=share/zsh/vendor-completions scripts/install.sh install >/dev/null
# dpkg keeps its own list.
rm -r "$tree/usr/share/weft"
gzip -9n "$tree"/usr/share/man/man[138]/*.[138]
mkdir -p "$tree/etc/weftd"
mv "$tree/usr/share/doc/weft/weftd.toml" "$tree/etc/weftd/"
{
    printf '%s\n\n' "weft $version, licensed under MIT or Apache-2.0, at your choice. The Apache licence is in /usr/share/common-licenses/Apache-2.0."
    cat LICENSE-MIT
} >"$tree/usr/share/doc/weft/copyright"
rm "$tree/usr/share/doc/weft/LICENSE-MIT" "$tree/usr/share/doc/weft/LICENSE-APACHE"

# The newest version of the C library that any symbol needs.
libc=$(objdump -T "$tree"/usr/bin/* "$tree"/usr/lib/weft/*.so "$tree"/usr/lib/libweft.so.0 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n1)
mkdir "$tree/DEBIAN"
printf '%s\n' /etc/weftd/weftd.toml >"$tree/DEBIAN/conffiles"
(cd "$tree" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
cat >"$tree/DEBIAN/control" <<EOF
Package: weft
Version: $version
Architecture: $arch
Maintainer: The weft developers <weft@localhost>
Section: net
Priority: optional
Depends: libc6 (>= ${libc#GLIBC_}), libgcc-s1
Installed-Size: $(du -k --apparent-size -s "$tree/usr" "$tree/etc" | awk '{ sum += $1 } END { print sum }')
Description: fast, protected communication between ordinary Linux processes
 Endpoints with names and keys form virtual networks: messages between
 processes of one host go from memory to memory, those to another host over
 UDP. No privilege, no daemon. With the command weft (demonstration,
 benchmarks, status), a provider for libfabric in /usr/lib/weft, the library
 libweft for C and C++, and weftd, a daemon for hosts whose users share one
 network interface.
EOF
package=$target/deb/weft_${version}_$arch.deb
dpkg-deb --root-owner-group -b "$tree" "$package" >/dev/null
printf '%s\n' "$package"
