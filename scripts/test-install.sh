#!/usr/bin/env bash
# Installs what was built into an empty folder, uses it from there, and removes it: nothing may be left. scripts/test-install.sh
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."
. scripts/lib.sh

find_toolchain || die "no Rust $(msrv) or newer here: run scripts/setup.sh"

# The largest size of the installed command.
most=$((12 << 20))

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export DESTDIR=$folder PREFIX=/opt/weft
top=$folder$PREFIX

if scripts/install.sh uninstall 2>"$folder.said"; then die "uninstall found something in an empty folder"; fi
grep -q PREFIX "$folder.said" || die "uninstall does not say what to do when nothing is there"
rm "$folder.said"

for _ in first again; do
    scripts/install.sh install
done
size=$(stat -c %s "$top/bin/weft")
[ "$size" -le "$most" ] || die "bin/weft has $size bytes, at most $most are allowed"
say "bin/weft: $size bytes, at most $most are allowed"
[ "$("$top/bin/weft" --version)" = "weft $(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n1)" ] || die "another version was installed"
"$top/bin/weft" demo --no-bench --workers 2 README.md >/dev/null
bash -n "$top/share/bash-completion/completions/weft"
for file in share/man/man1/weft.1 share/man/man1/weft-bench-report.1 share/doc/weft/README.md share/doc/weft/docs/concepts.md share/doc/weft/docs/design/ring.md \
    lib/libweft.so.0 lib/libweft.so lib/libweft.a include/weft.h include/am.h include/am_spmd.h share/man/man3/am.h.3 share/man/man3/AM_Poll.3 lib/pkgconfig/weft.pc lib/cmake/weft/weft-config.cmake \
    bin/weftd share/man/man8/weftd.8 share/doc/weft/weftd.toml lib/systemd/system/weftd.service lib/systemd/system/weftd.socket; do
    [ -s "$top/$file" ] || die "$file was not installed"
done
# A C program is built with what was installed, as docs/c.md says, and runs: with the shared library, with the archive, by CMake.
cat >"$folder/first.c" <<'END'
#include <am.h>
#include <weft.h>
int main(void) { return AM_Init() || AM_Terminate() || am_check_version(AM_VERSION) || weft_version() == 0; }
END
export PKG_CONFIG_PATH=$top/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$folder
# shellcheck disable=SC2046
(cd "$folder" && cc -o first first.c $(pkg-config --cflags --libs weft) && LD_LIBRARY_PATH=$top/lib ./first)
# shellcheck disable=SC2046
(cd "$folder" && cc -o first first.c $(pkg-config --cflags weft) "$top/lib/libweft.a" -lgcc_s -lutil -lrt -lpthread -lm -ldl && ./first)
if command -v cmake >/dev/null; then
    cat >"$folder/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.13)
project(first C)
find_package(weft REQUIRED)
add_executable(first first.c)
target_link_libraries(first weft::weft)
END
    (cd "$folder" && cmake -S . -B made -DCMAKE_PREFIX_PATH="$top" >/dev/null && cmake --build made >/dev/null && made/first)
    rm -r "$folder/made" "$folder/CMakeLists.txt"
fi
unset PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR
# Below /usr/local, as root, programs find the library without any setting. /usr/local and /etc are copies here, which end with the shell.
in_copies() {
    mkdir "$folder/etc"
    cp -a /etc/. "$folder/etc"
    unshare --mount bash -euc '
        mount --bind "$1/etc" /etc
        mount -t tmpfs none /usr/local
        DESTDIR= PREFIX=/usr/local scripts/install.sh install
        cc -o "$1/first" "$1/first.c" $(pkg-config --cflags --libs weft)
        "$1/first"
        DESTDIR= PREFIX=/usr/local scripts/install.sh uninstall
        if "$1/first" 2>/dev/null; then exit 1; fi' bash "$folder"
    rm -r "$folder/etc"
}
if [ "$(id -u)" -eq 0 ] && unshare --mount true; then
    in_copies || die "a C program does not find the library that was installed below /usr/local, or still after it was removed"
else
    say "LEFT OUT: installing below /usr/local, which only root may try"
fi
rm "$folder/first" "$folder/first.c"
if command -v man >/dev/null; then
    for page in man1/weft.1 man8/weftd.8 man3/weft.h.3 man3/am.h.3 man3/am_spmd.h.3; do
        warnings=$(MANROFFSEQ='' man --warnings -E UTF-8 -l -Tutf8 -Z "$top/share/man/$page" 2>&1 >/dev/null)
        [ -z "$warnings" ] || die "$page: $warnings"
    done
fi
"$top/bin/weftd" --check --config "$top/share/doc/weft/weftd.toml" >/dev/null
grep -q "^ExecStart=$PREFIX/bin/weftd " "$top/lib/systemd/system/weftd.service" || die "the unit starts another weftd"
# The command alone, in the same build as the rest.
cargo install --locked --path crates/weft-cli --offline --root "$folder/alone" --quiet
"$folder/alone/bin/weft" --version >/dev/null
cargo uninstall --root "$folder/alone" --quiet weft-cli
[ ! -e "$folder/alone/bin/weft" ] || die "cargo uninstall left the command"
rm -r "$folder/alone"
touch "$top/share/doc/weft/somebody-elses"
scripts/install.sh uninstall
left=$(cd "$folder" && find . ! -type d)
[ "$left" = ./opt/weft/share/doc/weft/somebody-elses ] || die "uninstall left, or took what is not weft's: $left"
left=$(cd "$top" && find . -mindepth 1 -type d | LC_ALL=C sort | tr '\n' ' ')
[ "$left" = "./share ./share/doc ./share/doc/weft " ] || die "uninstall left folders, or took one with a file in it: $left"

# The folders that install made are removed; the others stay, empty or not.
rm -r "$top"
scripts/install.sh install
scripts/install.sh uninstall
[ ! -e "$top" ] || die "uninstall left folders: $(find "$top" | tr '\n' ' ')"
mkdir -p "$top/share/man"
scripts/install.sh install
scripts/install.sh uninstall
[ -d "$top/share/man" ] || die "uninstall took folders that were there before"
left=$(cd "$top" && find . -mindepth 1 | LC_ALL=C sort | tr '\n' ' ')
[ "$left" = "./share ./share/man " ] || die "uninstall left folders: $left"
say "what was installed ran, and went without a trace"
