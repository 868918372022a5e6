#!/bin/sh
# Prints the promtool that tests the alerts; $1 is the path of a copy. If there is none, the
# script gets one with apt on Debian or a derivative; otherwise it fails and prints what to
# install. It does not install Prometheus, which would start a service.
set -u

copy=$1

if [ -x "$copy" ]; then
	echo "promtool: $copy"
	exit 0
fi
if command -v promtool >/dev/null; then
	echo "promtool: $(command -v promtool)"
	exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
	echo "no promtool: install Prometheus (Debian: apt-get install prometheus; Fedora: dnf install golang-github-prometheus; macOS: brew install prometheus)" >&2
	exit 1
fi
echo "downloading promtool with apt"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir -p "$(dirname "$copy")" || exit 1
copy=$(cd "$(dirname "$copy")" && pwd)/$(basename "$copy")
cd "$work" || exit 1
apt-get download prometheus >/dev/null 2>&1 || { apt-get update >/dev/null && apt-get download prometheus >/dev/null; } || exit 1
dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool || exit 1
mv usr/bin/promtool "$copy" && echo "promtool: $copy"
