#!/bin/sh
# Builds the documentation site from docs/ in the directory $2, and tests its search. VitePress, of the versions in
# tools/site/package-lock.json, is installed below the directory $1. If there is no Node.js
# 18 or later with npm, the script installs it when run as root on Debian or a derivative;
# otherwise it fails and prints what to install.
set -eu

tools=$1 out=$2
cd "$(dirname "$0")/site"

find_node() {
	command -v npm >/dev/null && [ "$(node -p 'parseInt(process.versions.node) >= 18' 2>/dev/null)" = true ]
}

find_node || {
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		echo "no Node.js 18 or later with npm for the documentation site: install it (Debian: apt-get install nodejs npm; Fedora: dnf install nodejs-npm; macOS: brew install node)" >&2
		exit 1
	fi
	echo "installing Node.js and npm with apt-get"
	export DEBIAN_FRONTEND=noninteractive
	apt-get install -y --no-install-recommends nodejs npm >/dev/null ||
		{ apt-get update >/dev/null && apt-get install -y --no-install-recommends nodejs npm >/dev/null; }
	find_node || { echo "apt-get installed no Node.js 18 or later" >&2; exit 1; }
}

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
