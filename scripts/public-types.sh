#!/usr/bin/env bash
# Checks that users can name every type that weft's reference shows: scripts/public-types.sh
#
# The reference of the other crates must exist (`cargo doc --workspace --no-deps`): rustdoc links a type of another crate to the reference
# of that crate, and this script searches for such links.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
[ -d "$target/doc/weft_core" ] || { echo "error: there is no reference of weft-core; make it: cargo doc --workspace --no-deps" >&2; exit 2; }

# Built again, after the other crates, because rustdoc only makes links to existing pages. The flag has no other use than to force that.
RUSTDOCFLAGS="-D warnings --cfg once_more" cargo doc -p weft --no-deps --locked --quiet

foreign='href="[^"]*/weft_[a-z]+/[a-z_/]*(struct|enum|union|trait|type|fn|constant)\.[A-Za-z_]+\.html'
if found=$(grep -rnoE "$foreign" "$target/doc/weft" --include='*.html'); then
    echo "error: weft's reference shows what its users cannot name; say \`pub use\` in crates/weft/src/lib.rs, or \`doc(hidden)\`:" >&2
    sed -E 's/:[0-9]+:href="/: /' <<<"$found" | sort -u >&2
    exit 1
fi
echo "every type that weft's reference shows can be named by its users"
