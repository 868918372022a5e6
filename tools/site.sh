#!/bin/sh
# Builds the documentation site from docs/ in the directory $2, and tests its search. VitePress, of the versions in
# tools/site/package-lock.json, is installed below the directory $1.
set -eu

tools=$1 out=$2
cd "$(dirname "$0")/site"

sh ../system.sh node

key=$({ node --version; cat package-lock.json; } | git hash-object --stdin)
installed=$tools/site/$key
if [ ! -d "$installed" ]; then
	echo "installing VitePress with npm (cached until tools/site/package-lock.json changes)"
	mkdir -p "$tools/site"
	work=$(mktemp -d "$tools/site/.installing.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	cp package.json package-lock.json "$work/"
	# The packages need no scripts.
	(cd "$work" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null) || {
		echo "npm could not install the packages of tools/site/package-lock.json: the documentation site needs access to an npm registry" >&2
		exit 1
	}
	# If two makes run at once, the first to finish wins.
	mv -T "$work" "$installed" 2>/dev/null || test -d "$installed"
fi
rm -rf node_modules
ln -s "$installed/node_modules" node_modules

export SITE_OUT="$out" SITE_CACHE="$installed/cache"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
{ node_modules/.bin/vitepress build . && node --test site.test.mjs; } >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
echo "site: $out/index.html"
