#!/usr/bin/env bash
# Builds the documents as a book into target/book, with mdBook: scripts/book.sh. Installs mdBook below target/tools if it is missing. It is
# a tool, not a dependency of weft.
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."
. scripts/lib.sh

# The last version of 0.4, which builds with the oldest Rust that builds weft.
version=0.4.48
tools=$root/target/tools
mdbook=$tools/bin/mdbook

if [ "$("$mdbook" --version 2>/dev/null)" != "mdbook v$version" ]; then
    find_toolchain || die "no Rust $(msrv) or newer here: run scripts/setup.sh"
    say "installs mdbook $version below $tools, which takes some minutes"
    cargo install --quiet --locked --no-default-features --root "$tools" --version "$version" mdbook ||
        die "mdbook could not be installed; the pages can be read without it, beginning with docs/SUMMARY.md"
fi
# Warnings are about missing pages and broken links.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$mdbook" build docs 2>&1 | tee "$log"
! grep -E 'WARN|ERROR' "$log" || die "the book was built with the faults above"
say "the book: target/book/index.html"
