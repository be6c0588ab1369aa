#!/usr/bin/env bash
# Checks that each new commit's subject has the form that CONTRIBUTING.md asks for: scripts/subjects.sh [REPOSITORY [COMMIT]]
#
# Checks the commits since COMMIT, except merges. Without a repository (a source package), or without the commit (a shallow clone), it
# prints that it checked nothing.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
# Makes ${#subject} count characters, not bytes.
export LC_ALL=C.UTF-8

repository=${1-$root}
since=${2-5c6fda627858f2db80f948e4b0617c3732de2f2c}
longest=72
# `area: imperative`, with commas between several areas.
form='^[a-z0-9./-]+(, [a-z0-9./-]+)*: ([a-z0-9][^ ]*)( .*[^.])?$'
# Endings that no imperative has, and imperatives with such endings.
other='(ed|ing|[^s]s)$'
imperative='^(embed|feed|need|seed|shed|speed|exceed|proceed|succeed|bring|ping|ring|string|bias|canvas|focus)$'

git() { command git -C "$repository" "$@"; }
# Not a repository further up that contains this folder.
if ! top=$(git rev-parse --show-toplevel 2>/dev/null) || [ "$top" != "$(cd "$repository" && pwd -P)" ]; then
    say "LEFT OUT: commit subjects: $repository is no git repository, so no commit was looked at"
    exit 0
fi
if ! git merge-base --is-ancestor "$since" HEAD 2>/dev/null; then
    say "LEFT OUT: commit subjects: $since is not in this history (a shallow clone?), so no commit was looked at"
    exit 0
fi

# fault SUBJECT: prints its fault, if it has one.
fault() {
    if [ ${#1} -gt $longest ]; then
        echo "has ${#1} characters, at most $longest are allowed"
        return
    fi
    if [[ ! $1 =~ $form ]]; then
        echo "is not of the form \`area: imperative\`, in small letters and without a full stop"
        return
    fi
    local verb=${BASH_REMATCH[2]}
    if [[ $verb =~ $other && ! $verb =~ $imperative ]]; then
        echo "does not begin with an imperative: \`$verb\`"
    fi
}

count=0 faults=0
while IFS=' ' read -r commit subject; do
    [ -n "$commit" ] || continue
    count=$((count + 1))
    wrong=$(fault "$subject")
    [ -z "$wrong" ] || {
        faults=$((faults + 1))
        printf '%s\n' "$commit \"$subject\" $wrong" >&2
    }
done < <(git log --no-merges --format='%h %s' "$since..HEAD")
[ "$faults" -eq 0 ] || die "$faults of $count commits need another subject: git rebase --interactive $since"
say "the subjects of $count commits are as they must be"
