#!/bin/sh
# Prints the QEMU and the kernel that the tests of the host agent use; $1 is the path of
# the kernel. If the kernel is missing, the script gets it with apt-get on Debian or a derivative;
# otherwise it fails and prints what to copy.
set -u

kernel=$1

sh "$(dirname "$0")/system.sh" qemu || exit 1

if [ -s "$kernel" ]; then
	echo "kernel: $kernel"
	exit 0
fi
mkdir -p "$(dirname "$kernel")" || exit 1
for own in /boot/vmlinuz-*-amd64; do # Debian kernels, 6.1 or later
	case "$own" in */vmlinuz-[1-5].* | */vmlinuz-6.0.*) continue ;; esac
	if [ -r "$own" ]; then
		cp "$own" "$kernel.part" && mv "$kernel.part" "$kernel" || exit 1
		echo "kernel: $kernel, copied from $own"
		exit 0
	fi
done
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
	echo "no kernel for test VMs: copy a kernel for amd64, version 6.1 or later, to $kernel (often /boot/vmlinuz-*)" >&2
	exit 1
fi
echo "downloading a kernel with apt"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
kernel=$(cd "$(dirname "$kernel")" && pwd)/$(basename "$kernel")
package() { apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[^ ]*\)/\1/p' | head -n 1; }
[ -n "$(package)" ] || apt-get update >/dev/null || exit 1
(cd "$work" && apt download "$(package)") || exit 1
dpkg-deb --fsys-tarfile "$work"/linux-image-*.deb | tar -x -C "$work" --wildcards './boot/vmlinuz-*' || exit 1
mv "$work"/boot/vmlinuz-* "$kernel" && echo "kernel: $kernel"
