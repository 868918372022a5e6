#!/bin/sh
# Builds a disk image for VM templates from Debian packages only, on any Debian machine:
#
#   ./make-image.sh IMAGE.qcow2
#
# The result starts with SeaBIOS, reads numaform's seed, and has containerd, kubelet, CNI
# plugins and the QEMU guest agent.
#
#   SUITE=trixie           Debian release
#   KUBERNETES=v1.36       minor version of the kubelet from pkgs.k8s.io
#   KUBELET=               path of a kubelet to copy instead
#   FILES=                 directory whose content is copied over the image's file system;
#                          usr/share/container-images/*.tar are loaded into containerd at
#                          the first boot
#   PACKAGES=              further packages
#   SIZE=3G                size of the disk; guests grow the file system to a larger one
#
# It requires mmdebstrap, mke2fs, sfdisk and qemu-img; curl and gpg, unless KUBELET is set;
# and fakeroot and user namespaces, unless run as root.
set -eu

fail() {
	echo "make-image: $*" >&2
	exit 1
}

[ $# -eq 1 ] || {
	sed -n '2,/^set -eu/{/^#/s/^# \{0,1\}//p;}' "$0" >&2
	exit 2
}
image=$1 suite=${SUITE:-trixie} kubernetes=${KUBERNETES:-v1.36} kubelet=${KUBELET:-} files=${FILES:-} size=${SIZE:-3G}
export PATH="$PATH:/usr/sbin:/sbin"

as=
[ "$(id -u)" = 0 ] || as=fakeroot
download=
[ -n "$kubelet" ] || download="curl gpg"
for tool in mmdebstrap mke2fs sfdisk qemu-img $download $as; do
	command -v "$tool" >/dev/null || fail "$tool not found: apt-get install mmdebstrap e2fsprogs fdisk qemu-utils curl gpg fakeroot"
done
[ -z "$kubelet" ] || [ -x "$kubelet" ] || fail "KUBELET is $kubelet, which is not an executable file"
work=$(mktemp -d "$(dirname "$image")/.make-image-XXXXXX")
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"

# Prepares the image before its packages are installed: no documentation, and an initramfs
# with drivers for the virtual hardware of Proxmox, because the seed's CD-ROM must be
# available when cloud-init looks for it.
cat >"$work/before.sh" <<'EOS'
set -eu
mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/etc/dpkg/dpkg.cfg.d" "$1/usr/sbin"
echo 'MODULES=list' >"$1/etc/initramfs-tools/conf.d/numaform"
printf '%s\n' virtio_pci virtio_scsi virtio_blk virtio_net sd_mod sr_mod ata_piix ahci ext4 isofs >"$1/etc/initramfs-tools/modules"
EOS

# Configures the image after its packages are installed.
cat >"$work/after.sh" <<'EOS'
set -eu
printf 'datasource_list: [NoCloud, None]\nlocale: false\n' >/etc/cloud/cloud.cfg.d/99-numaform.cfg
printf 'LABEL=root / ext4 errors=remount-ro 0 1\n' >/etc/fstab
systemctl enable systemd-networkd qemu-guest-agent containerd
systemctl disable kubelet 2>/dev/null || true # the seed starts it after writing its configuration
systemctl mask apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer dpkg-db-backup.timer \
	grub-common.service systemd-networkd-wait-online.service
systemctl set-default multi-user.target

mkdir -p /etc/containerd /opt/cni/bin
cp -a /usr/lib/cni/. /opt/cni/bin/
containerd config default | sed 's|SystemdCgroup = false|SystemdCgroup = true|; s|/usr/lib/cni|/opt/cni/bin|; s|registry.k8s.io/pause:[0-9.]*|registry.k8s.io/pause:3.10.1|' >/etc/containerd/config.toml
grep -q 'SystemdCgroup = true' /etc/containerd/config.toml

cat >/etc/systemd/system/container-images.service <<'UNIT'
[Unit]
Description=Load container images from /usr/share/container-images
After=containerd.service
Requires=containerd.service
Before=kubelet.service
ConditionPathExistsGlob=/usr/share/container-images/*.tar
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'for image in /usr/share/container-images/*.tar; do ctr --namespace k8s.io images import "$image" && rm "$image"; done'
[Install]
WantedBy=multi-user.target
UNIT
systemctl enable container-images

# The same units as in the kubelet package, for a kubelet without its package.
chmod 755 /usr/bin/kubelet
if ! [ -e /usr/lib/systemd/system/kubelet.service ]; then
	mkdir -p /usr/lib/systemd/system/kubelet.service.d
	cat >/usr/lib/systemd/system/kubelet.service <<'UNIT'
[Unit]
Description=kubelet: The Kubernetes Node Agent
Wants=network-online.target
After=network-online.target
[Service]
ExecStart=/usr/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=10
[Install]
WantedBy=multi-user.target
UNIT
	cat >/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf <<'UNIT'
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
UNIT
fi

# GRUB for a disk whose first partition is the root file system. The kernel's links
# remain after an upgrade.
mkdir -p /boot/grub
cat >/boot/grub/grub.cfg <<'GRUB'
linux /vmlinuz root=LABEL=root ro console=tty0 console=ttyS0,115200
initrd /initrd.img
boot
GRUB
grub-mkimage -O i386-pc -p '(hd0,msdos1)/boot/grub' -o /boot/grub/core.img biosdisk part_msdos ext2 normal configfile linux boot
cp /usr/lib/grub/i386-pc/boot.img /boot/grub/boot.img

# Remove everything that clones must not share.
rm -rf /etc/machine-id /var/lib/dbus/machine-id /etc/ssh/ssh_host_* /etc/hostname /var/lib/apt/lists/* /var/cache/apt/*
echo uninitialized >/etc/machine-id
passwd -l root
touch /etc/.updated /var/.updated # the first boot need not update caches of /usr
EOS

# netplan is needed because cloud-init's own renderer writes the name of a device's entry
# instead of a pattern such as en* in the seed's network-config, and so configures no device.
packages=linux-image-amd64,initramfs-tools,systemd-sysv,systemd-resolved,udev,dbus,kmod,iproute2,iptables,conntrack,ethtool,ca-certificates
packages=$packages,cloud-init,cloud-guest-utils,netplan.io,fdisk,e2fsprogs,qemu-guest-agent,containerd,runc,containernetworking-plugins,grub-pc-bin${PACKAGES:+,$PACKAGES}
set -- --variant=apt --include="$packages" --setup-hook="sh '$work/before.sh' \"\$1\"" \
	--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*'
if [ -n "$kubelet" ]; then
	set -- "$@" --customize-hook="upload '$kubelet' /usr/bin/kubelet"
else
	repository=https://pkgs.k8s.io/core:/stable:/$kubernetes/deb/
	curl -fsSL "${repository}Release.key" | gpg --dearmor >"$work/kubernetes.gpg" || fail "cannot read $repository: set KUBELET=PATH to use a kubelet from this machine"
	set -- "$@" --include=kubelet,kubeadm \
		--setup-hook="mkdir -p \"\$1/etc/apt/sources.list.d\" && echo 'deb [signed-by=$work/kubernetes.gpg] $repository /' >\"\$1/etc/apt/sources.list.d/kubernetes.list\""
	# mmdebstrap's apt reads the key from this machine; the image needs its own copy.
	set -- "$@" --customize-hook='mkdir -p "$1/etc/apt/keyrings"' --customize-hook="upload '$work/kubernetes.gpg' /etc/apt/keyrings/kubernetes.gpg" \
		--customize-hook="chmod 644 \"\$1/etc/apt/keyrings/kubernetes.gpg\"" \
		--customize-hook="sed -i 's|signed-by=[^]]*|signed-by=/etc/apt/keyrings/kubernetes.gpg|' \"\$1/etc/apt/sources.list.d/kubernetes.list\""
fi
[ -z "$files" ] || set -- "$@" --customize-hook="sync-in '$files' /"
set -- "$@" --customize-hook="upload '$work/after.sh' /tmp/after.sh" --customize-hook='chroot "$1" sh /tmp/after.sh' \
	--customize-hook='rm "$1/tmp/after.sh"'
mmdebstrap "$@" --format=tar "$suite" "$work/root.tar" || fail "mmdebstrap failed: it needs Debian's packages of $suite from a mirror"

# The disk: GRUB before the first partition, and the root file system in it.
truncate -s "$size" "$work/disk.raw"
echo 'start=2048, type=83, bootable' | sfdisk -q "$work/disk.raw"
export work
$as sh -eu <<'EOS'
mkdir "$work/root"
tar -x --numeric-owner -C "$work/root" -f "$work/root.tar"
rm "$work/root.tar"
blocks=$(( ($(stat -c %s "$work/disk.raw") - 1048576) / 4096 ))
mke2fs -q -t ext4 -b 4096 -L root -E offset=1048576,lazy_itable_init=1 -d "$work/root" "$work/disk.raw" "$blocks"
dd if="$work/root/boot/grub/boot.img" of="$work/disk.raw" bs=440 count=1 conv=notrunc status=none
dd if="$work/root/boot/grub/core.img" of="$work/disk.raw" bs=512 seek=1 conv=notrunc status=none
EOS
qemu-img convert -O qcow2 "$work/disk.raw" "$work/image.qcow2"
mv "$work/image.qcow2" "$image"
echo "image: $image, $(du -h "$image" | cut -f1)"
