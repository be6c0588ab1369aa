#!/usr/bin/env bash
# Installs what `make build` built, or removes it again: scripts/install.sh install|uninstall
#
# From the environment: PREFIX (/usr/local), DESTDIR (empty: a folder in front of all paths, for packages), ZSHDIR (where zsh
# looks, below PREFIX). Builds nothing and asks nobody. PREFIX/share/weft/installed lists the installed files, and the folders
# that install made (these end in a slash). Uninstall removes the files, then those of the folders that are empty.
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."
. scripts/lib.sh

prefix=${PREFIX:-/usr/local} zshdir=${ZSHDIR:-share/zsh/site-functions}
[[ $prefix = /* ]] || die "PREFIX must begin with a slash: it is $prefix"
top=${DESTDIR-}$prefix
list=$top/share/weft/installed
built=${CARGO_TARGET_DIR:-target}/release

# note_folders PATH: lists the folders from the prefix down to PATH that are not there yet, the prefix as "./".
note_folders() {
    local folder=$1
    while [ ! -d "$top/$folder" ]; do
        printf '%s\n' "$folder/" >>"$folders"
        [ "$folder" != . ] || break
        folder=$(dirname "$folder")
    done
}

# put MODE FROM TO: TO is below the prefix.
put() {
    note_folders "$(dirname "$3")"
    install -D -m "$1" "$2" "$top/$3" || die "cannot write $top/$3; choose another PREFIX, or type \`sudo make install\`"
    printf '%s\n' "$3" >>"$made"
}

# Updates the dynamic linker's cache. Without that, programs do not find a library below /usr/local. A package leaves this to the
# system that installs it.
refresh_linker() {
    [ -n "${DESTDIR-}" ] || [ "$(id -u)" -ne 0 ] || ! command -v ldconfig >/dev/null || ldconfig
}

case "${1-}" in
    install)
        [ -x "$built/weft" ] || die "nothing is built yet: type \`make build\` first"
        work=$(mktemp -d)
        trap 'rm -rf "$work"' EXIT
        made=$work/made folders=$work/folders
        # A second install needs the list of the folders that the first one made.
        : >"$folders"
        [ ! -r "$list" ] || sed -n '\|/$|p' "$list" >"$folders"
        strip -o "$work/weft" "$built/weft"
        put 755 "$work/weft" bin/weft
        if [ -e "$built/libweft_fi.so" ]; then
            strip -o "$work/libweft-fi.so" "$built/libweft_fi.so"
            put 644 "$work/libweft-fi.so" lib/weft/libweft-fi.so
        fi
        if [ -e "$built/libweft_c.so" ]; then
            strip --strip-unneeded -o "$work/libweft.so.0" "$built/libweft_c.so"
            put 644 "$work/libweft.so.0" lib/libweft.so.0
            ln -sfn libweft.so.0 "$top/lib/libweft.so"
            printf '%s\n' lib/libweft.so >>"$made"
            put 644 "$built/libweft_c.a" lib/libweft.a
            for header in weft.h am.h am_spmd.h; do
                put 644 "crates/weft-capi/include/$header" "include/$header"
                put 644 "crates/weft-capi/man/$header.3" "share/man/man3/$header.3"
            done
            while read -r function header; do
                printf '.so man3/%s.3\n' "$header" >"$work/$function.3"
                put 644 "$work/$function.3" "share/man/man3/$function.3"
            done <crates/weft-capi/man/redirects.txt
            version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
            for file in pkgconfig/weft.pc cmake/weft/weft-config.cmake; do
                sed "s|@prefix@|$prefix|; s|@version@|$version|" "contrib/c/$(basename "$file")" >"$work/$(basename "$file")"
                put 644 "$work/$(basename "$file")" "lib/$file"
            done
        fi
        if [ -x "$built/weftd" ]; then
            strip -o "$work/weftd" "$built/weftd"
            put 755 "$work/weftd" bin/weftd
            "$built/weftd" --man >"$work/weftd.8"
            put 644 "$work/weftd.8" share/man/man8/weftd.8
            put 644 crates/weftd/weftd.toml share/doc/weft/weftd.toml
            for unit in weftd.service weftd.socket; do
                sed "s|/usr/bin/weftd|$prefix/bin/weftd|" "contrib/systemd/$unit" >"$work/$unit"
                put 644 "$work/$unit" "lib/systemd/system/$unit"
            done
        fi
        mkdir "$work/man"
        "$built/weft" man --dir "$work/man"
        for page in "$work"/man/*.1; do
            put 644 "$page" "share/man/man1/$(basename "$page")"
        done
        for shell in bash zsh fish; do
            "$built/weft" completions "$shell" >"$work/$shell"
        done
        put 644 "$work/bash" share/bash-completion/completions/weft
        put 644 "$work/zsh" "$zshdir/_weft"
        put 644 "$work/fish" share/fish/vendor_completions.d/weft.fish
        for doc in README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT docs/*.md docs/*/*.md docs/*/*.svg; do
            put 644 "$doc" "share/doc/weft/$doc"
        done
        note_folders share/weft
        printf '%s\n' share/weft/installed >>"$made"
        count=$(wc -l <"$made")
        LC_ALL=C sort -ru "$folders" >>"$made"
        install -D -m 644 "$made" "$list"
        refresh_linker
        say "installed $count files below $top; to remove them: make uninstall PREFIX=$prefix${DESTDIR:+ DESTDIR=$DESTDIR}"
        case "$prefix" in
            /usr | /usr/local) ;;
            *)
                say "for shells, compilers and programs to find it:"
                say "  export PATH=$prefix/bin:\$PATH PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib"
                ;;
        esac
        ;;
    uninstall)
        [ -r "$list" ] || die "nothing of weft is installed below $top: there is no $list. Name the PREFIX that it was installed with"
        mapfile -t files <"$list"
        # Lists of earlier versions name no folders. These are weft's own.
        own=(share/doc/weft/docs/{design,measurements,notes}/ share/doc/weft/docs/ share/doc/weft/ lib/weft/ share/weft/)
        for file in "${files[@]}"; do
            [[ /$file/ != */../* ]] || die "$list names $file, which is not below $top"
            [[ $file != */ ]] || continue
            rm -f "$top/$file" || die "cannot remove $top/$file; type \`sudo make uninstall\`"
        done
        for folder in "${own[@]}" "${files[@]}"; do
            [[ $folder = */ ]] || continue
            folder=$top/${folder%/}
            folder=${folder%/.}
            if [ -d "$folder" ] && [ ! -L "$folder" ]; then
                rmdir --ignore-fail-on-non-empty "$folder" || die "cannot remove $folder; type \`sudo make uninstall\`"
            fi
        done
        refresh_linker
        say "removed what was installed below $top"
        ;;
    *) die "usage: scripts/install.sh install|uninstall" ;;
esac
