#!/bin/sh
# Prints the PostgreSQL server that the tests use. If there is none, the script installs it
# when run as root on Debian or a derivative; otherwise it fails and prints what to install.
set -u

find_postgres() {
	for server in "$(command -v postgres)" /usr/lib/postgresql/*/bin/postgres; do
		[ -x "$server" ] || continue
		[ -x "$(dirname "$(readlink -f "$server")")/initdb" ] || continue
		echo "postgresql: $server"
		return 0
	done
	return 1
}

find_postgres && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "no PostgreSQL server: install one (Debian: apt-get install postgresql; Fedora: dnf install postgresql-server; macOS: brew install postgresql)" >&2
	exit 1
fi
echo "installing PostgreSQL with apt-get"
export DEBIAN_FRONTEND=noninteractive
apt-get install -y --no-install-recommends postgresql >/dev/null ||
	{ apt-get update >/dev/null && apt-get install -y --no-install-recommends postgresql >/dev/null; } || exit 1
find_postgres
