#!/bin/sh
# Builds the Gitea of tools/gitea, with SQLite, as bin/gitea in the directory $1, and copies
# the files that it serves to gitea/ there, unless they are from the same pins. SQLite
# requires a C compiler.
set -eu

tools=$1
program=$tools/bin/gitea
stamp=$tools/stamps/gitea
cd "$(dirname "$0")"

key=$({ go env GOVERSION; cat gitea/go.mod gitea/go.sum gitea.sh; } | git hash-object --stdin)
if [ -x "$program" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$key" ]; then
	echo "gitea: $program"
	exit 0
fi

sh system.sh gcc
echo "building gitea: minutes the first time, then not again until its pin changes"
mkdir -p "$tools/bin" "$tools/stamps" "$tools/gitea"
version=$(sed -n 's|.*code.gitea.io/gitea v\([^ ]*\).*|\1|p' gitea/go.mod)
cd gitea
GOOS='' GOARCH='' GOWORK=off CGO_ENABLED=1 go build -trimpath -tags 'sqlite sqlite_unlock_notify' \
	-ldflags "-s -w -X main.Version=$version" -o "$program.$$" code.gitea.io/gitea
mv -f "$program.$$" "$program"
source=$(GOWORK=off go list -m -f '{{.Dir}}' code.gitea.io/gitea)
rm -rf "$tools/gitea/templates" "$tools/gitea/options"
cp -R "$source/templates" "$source/options" "$tools/gitea/"
chmod -R u+w "$tools/gitea"
echo "$key" >"$stamp"
