#!/bin/sh
# Packages numaform-agent for Debian: build.sh VERSION ARCH PROGRAM OUT
set -eu
version=$1 arch=$2 program=$3 out=$4
here=$(cd "$(dirname "$0")" && pwd)
root=$(mktemp -d)
chmod 755 "$root"
trap 'rm -rf "$root"' EXIT

# git describe prints v1.2.3-4-gabcdef. A Debian version begins with a digit, and a suffix
# after a tilde sorts before the release.
version=$(printf %s "$version" | sed 's/^v//; s/-\([0-9]*\)-g\([0-9a-f]*\)/+\1.g\2/; s/-/~/; s/-/./g')
case $version in [0-9]*.[0-9]*) ;; *) version=0~$version ;; esac

install -D -m 755 "$program" "$root/usr/bin/numaform-agent"
install -D -m 644 "$here/../numaform-agent.yaml" "$root/etc/numaform-agent.yaml"
for unit in numaform-agent.service numaform-agent-publish.service numaform-agent-publish.timer; do
	install -D -m 644 "$here/../$unit" "$root/lib/systemd/system/$unit"
done
install -D -m 644 "$here/../../LICENSE" "$root/usr/share/doc/numaform-agent/copyright"
install -d -m 755 "$root/DEBIAN"
for script in postinst prerm postrm; do
	install -m 755 "$here/$script" "$root/DEBIAN/$script"
done
# The size in KiB, independent of the file system.
size=$(find "$root" -type f -printf '%s\n' | awk '{ kib += int(($1 + 1023) / 1024) } END { print kib }')
echo /etc/numaform-agent.yaml >"$root/DEBIAN/conffiles"
cat >"$root/DEBIAN/control" <<EOF
Package: numaform-agent
Version: $version
Architecture: $arch
Maintainer: numaform <numaform@users.noreply.github.com>
Section: admin
Priority: optional
Homepage: https://github.com/numaform/numaform
Installed-Size: $size
Description: CPU pins of VMs on a Proxmox VE host
 Pins the vCPUs of VMs to the CPUs that their descriptions declare, and reports
 other guests on these CPUs or keeps them off. Part of numaform, a Kubernetes node
 autoscaler for Proxmox VE; it needs neither network access nor credentials.
EOF
mkdir -p "$out"
chmod 644 "$root/DEBIAN/conffiles" "$root/DEBIAN/control"

# With SOURCE_DATE_EPOCH, the same programs yield the same package, independent of the clock
# and the number of processors.
if [ -n "${SOURCE_DATE_EPOCH:-}" ]; then
	find "$root" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
fi
dpkg-deb --root-owner-group -Zxz --threads-max=1 --build "$root" "$out/numaform-agent_${version}_$arch.deb"
