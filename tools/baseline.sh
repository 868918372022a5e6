#!/bin/sh
# Builds the baseline for the tests of upgrades and of hostile fleets: the program and the
# chart of the commit in tools/baseline/commit, in the directory of that commit below $1.
set -eu

cd "$(dirname "$0")/.."
commit=$(cat tools/baseline/commit)
out=$1/$commit
test -x "$out/numaform" && exit 0

if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
	echo "the baseline, commit $commit, is not in this clone" >&2
	if test "$(git rev-parse --is-shallow-repository)" = true; then
		echo "To fix: git fetch --unshallow (in CI: check out the full history, fetch-depth: 0)" >&2
	else
		echo "To fix: git fetch origin $commit" >&2
	fi
	exit 1
fi

echo "building the baseline numaform of $commit (cached until tools/baseline/commit changes)"
mkdir -p "$1"
work=$(mktemp -d "$(cd "$1" && pwd)/.building.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/source" "$work/done"
git archive --output "$work/source.tar" "$commit"
tar -xf "$work/source.tar" -C "$work/source"
(cd "$work/source" && GOWORK=off CGO_ENABLED=0 go build -trimpath -buildvcs=false \
	-ldflags '-s -w -X main.version=baseline' -o "$work/done/numaform" ./cmd/numaform)
mv "$work/source/charts" "$work/done/charts"
# If two makes run at once, the first to finish wins.
mv -T "$work/done" "$out" 2>/dev/null || test -x "$out/numaform"
