#!/bin/sh
# Finds the programs that the tests need and make does not build: postgres, node, chromium, gcc,
# qemu and guest, which makes the disk of a guest, as named by the arguments. Missing ones are
# installed with apt-get by root on Debian or a derivative. Otherwise the script prints how to
# install all of them, and fails.
set -u

find_postgres() {
	for server in "$(command -v postgres)" /usr/lib/postgresql/*/bin/postgres; do
		[ -x "$server" ] && [ -x "$(dirname "$(readlink -f "$server")")/initdb" ] && echo "$server" && return 0
	done
	return 1
}

find_node() {
	command -v npm >/dev/null && [ "$(node -p 'parseInt(process.versions.node) >= 18' 2>/dev/null)" = true ] && command -v node
}

find_chromium() {
	command -v chromium || command -v chromium-browser || command -v google-chrome
}

find_gcc() { command -v "${CC:-gcc}"; }

find_qemu() { command -v qemu-system-x86_64; }

find_guest() {
	for tool in mmdebstrap qemu-img sfdisk mke2fs fakeroot; do
		PATH=$PATH:/usr/sbin:/sbin command -v "$tool" || return 1
	done
	[ -e /usr/share/keyrings/debian-archive-keyring.gpg ]
}

# What each program is, and its packages: Debian's, Fedora's and Homebrew's.
about() {
	case $1 in
	postgres) echo 'the PostgreSQL server|postgresql|postgresql-server|postgresql' ;;
	node) echo 'Node.js 18 or later with npm|nodejs npm|nodejs-npm|node' ;;
	chromium) echo 'Chromium|chromium fonts-dejavu-core|chromium dejavu-sans-fonts|--cask chromium' ;;
	gcc) echo 'a C compiler|gcc libc6-dev|gcc|gcc' ;;
	qemu) echo 'QEMU for x86-64|qemu-system-x86|qemu-system-x86-core|qemu' ;;
	guest) echo 'the programs that make the disk of a Debian guest|mmdebstrap qemu-utils fdisk e2fsprogs fakeroot debian-archive-keyring|mmdebstrap qemu-img util-linux e2fsprogs fakeroot debian-keyring|qemu' ;;
	*) return 1 ;;
	esac
}

missing=
for name; do
	about "$name" >/dev/null || { echo "system.sh: unknown program $name" >&2; exit 2; }
	if found=$("find_$name"); then
		echo "$name:" $found
	else
		missing="$missing $name"
	fi
done
[ -n "$missing" ] || exit 0

# packages prints a system's packages of the missing programs.
packages() {
	for name in $missing; do about "$name" | cut -d'|' -f"$1"; done | tr '\n' ' '
}

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	echo "installing with apt-get: $(packages 2)"
	export DEBIAN_FRONTEND=noninteractive
	# shellcheck disable=SC2046 # a list
	apt-get install -y --no-install-recommends $(packages 2) >/dev/null 2>&1 ||
		{ apt-get update >/dev/null && apt-get install -y --no-install-recommends $(packages 2) >/dev/null; } || exit 1
	for name in $missing; do
		"find_$name" >/dev/null || { echo "apt-get installed no usable $name" >&2; exit 1; }
	done
	exit 0
fi
{
	echo "Programs for the tests are missing:"
	for name in $missing; do echo "  $(about "$name" | cut -d'|' -f1)"; done
	echo "Install them, as root:"
	echo "  Debian, Ubuntu: apt-get install --no-install-recommends $(packages 2)"
	echo "  Fedora:         dnf install $(packages 3)"
	echo "  macOS:          brew install $(packages 4)"
	echo "Or run all other tests: make test WITHOUT='$(echo $missing)'"
} >&2
exit 1
