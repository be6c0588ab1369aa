#!/usr/bin/env bash
# Installs what `make build` built, or removes it again: scripts/install.sh install|uninstall
#
# From the environment: PREFIX (/usr/local), DESTDIR (empty: a folder in front of all paths, for packages), ZSHDIR (where zsh
# looks, below PREFIX). Builds nothing and asks nobody. What was installed is listed in PREFIX/share/weft/installed, and
# uninstall removes that, and the directories that are empty then and are weft's own.
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."
. scripts/lib.sh

prefix=${PREFIX:-/usr/local} zshdir=${ZSHDIR:-share/zsh/site-functions}
[[ $prefix = /* ]] || die "PREFIX must begin with a slash: it is $prefix"
top=${DESTDIR-}$prefix
list=$top/share/weft/installed
built=${CARGO_TARGET_DIR:-target}/release

# put MODE FROM TO: TO is below the prefix.
put() {
    install -D -m "$1" "$2" "$top/$3" || die "cannot write $top/$3; choose another PREFIX, or type \`sudo make install\`"
    printf '%s\n' "$3" >>"$made"
}

case "${1-}" in
    install)
        [ -x "$built/weft" ] || die "nothing is built yet: type \`make build\` first"
        work=$(mktemp -d)
        trap 'rm -rf "$work"' EXIT
        made=$work/made
        strip -o "$work/weft" "$built/weft"
        put 755 "$work/weft" bin/weft
        if [ -e "$built/libweft_fi.so" ]; then
            strip -o "$work/libweft-fi.so" "$built/libweft_fi.so"
            put 644 "$work/libweft-fi.so" lib/weft/libweft-fi.so
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
        for doc in README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT docs/*.md docs/*/*.md; do
            put 644 "$doc" "share/doc/weft/$doc"
        done
        printf '%s\n' share/weft/installed >>"$made"
        install -D -m 644 "$made" "$list"
        say "installed $(wc -l <"$made") files below $top; to remove them: make uninstall PREFIX=$prefix${DESTDIR:+ DESTDIR=$DESTDIR}"
        ;;
    uninstall)
        [ -r "$list" ] || die "nothing of weft is installed below $top: there is no $list. Name the PREFIX that it was installed with"
        mapfile -t files <"$list"
        for file in "${files[@]}"; do
            [[ /$file/ != */../* ]] || die "$list names $file, which is not below $top"
            rm -f "$top/$file" || die "cannot remove $top/$file; type \`sudo make uninstall\`"
        done
        for dir in share/doc/weft/docs/{design,measurements,notes} share/doc/weft/docs share/doc/weft lib/weft share/weft; do
            [ ! -d "$top/$dir" ] || rmdir --ignore-fail-on-non-empty "$top/$dir"
        done
        say "removed what was installed below $top"
        ;;
    *) die "usage: scripts/install.sh install|uninstall" ;;
esac
