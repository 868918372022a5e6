#!/bin/sh
# Creates a VM template for numaform on the Proxmox host on which it runs, as root:
#
#   ./make-template.sh VMID NAME STORAGE
#
# Run it on each host with the same NAME and another VMID, outside of vmid_range. It leaves
# a finished template unchanged, and re-creates an unfinished one.
#
#   DISTRO=debian-13       or debian-12, ubuntu-24.04
#   NODE=kubeadm           packages for numaform's own seeds; or k3s, for examples/k3s
#   KUBERNETES=v1.36       minor version of kubelet and kubeadm, or K3S=v1.36.1+k3s1
#   BRIDGE=vmbr0           bridge of the network device
#   IMAGES=/var/lib/vz/template/numaform   directory of images
#
# It requires virt-customize (apt-get update; apt-get install libguestfs-tools) and curl.
set -eu

if [ $# -ne 3 ]; then
	sed -n '2,/^set -eu/{/^#/s/^# \{0,1\}//p;}' "$0" >&2
	exit 2
fi
vmid=$1 name=$2 storage=$3
distro=${DISTRO:-debian-13} node=${NODE:-kubeadm} bridge=${BRIDGE:-vmbr0}
kubernetes=${KUBERNETES:-v1.36} k3s=${K3S:-}
images=${IMAGES:-/var/lib/vz/template/numaform}
unfinished=unfinished-template # the tag until the template is finished

fail() {
	echo "make-template: $*" >&2
	exit 1
}

# Do not use Debian's genericcloud: its kernel has no driver for ide2, the seed's drive.
case $distro in
debian-12) url=https://cloud.debian.org/images/cloud/bookworm/latest/debian-12-generic-amd64.qcow2 ;;
debian-13) url=https://cloud.debian.org/images/cloud/trixie/latest/debian-13-generic-amd64.qcow2 ;;
ubuntu-24.04) url=https://cloud-images.ubuntu.com/noble/current/noble-server-cloudimg-amd64.img ;;
*) fail "DISTRO is $distro: set debian-12, debian-13 or ubuntu-24.04" ;;
esac
case $node in
kubeadm | k3s) ;;
*) fail "NODE is $node: set kubeadm or k3s" ;;
esac
for tool in qm virt-customize curl; do
	command -v "$tool" >/dev/null || fail "$tool not found: run this on a Proxmox host, after apt-get update; apt-get install libguestfs-tools curl"
done

# 1. Check the VMID.
if config=$(qm config "$vmid" 2>/dev/null); then
	echo "$config" | grep -qx "name: $name" || fail "VMID $vmid belongs to another VM: choose a free one"
	if echo "$config" | grep -qx 'template: 1'; then
		echo "template $name (VMID $vmid) already exists: for a new one, choose another VMID"
		exit 0
	fi
	echo "$config" | grep -qx "tags: $unfinished" || fail "VM $vmid is named $name but was not created by this script: choose another VMID"
	qm destroy "$vmid" --purge 1
fi

# 2. Build the image with the guest software, once, as $image.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/install.sh" <<'INSTALL'
#!/bin/sh
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends qemu-guest-agent ca-certificates curl gpg

# The seed is on an IDE CD-ROM, which must be available when cloud-init looks for it.
printf '%s\n' ata_piix ahci sr_mod isofs >>/etc/initramfs-tools/modules
update-initramfs -u -k all
printf 'datasource_list: [NoCloud, None]\n' >/etc/cloud/cloud.cfg.d/99-numaform.cfg

# kubelet does not start if swap is enabled.
sed -i '/[[:space:]]swap[[:space:]]/d' /etc/fstab
INSTALL
if [ "$node" = kubeadm ]; then
	cat >>"$work/install.sh" <<INSTALL
install -d -m 0755 /etc/apt/keyrings
repository=https://pkgs.k8s.io/core:/stable:/$kubernetes/deb/
curl -fsSL "\${repository}Release.key" | gpg --dearmor --yes -o /etc/apt/keyrings/kubernetes.gpg
echo "deb [signed-by=/etc/apt/keyrings/kubernetes.gpg] \$repository /" >/etc/apt/sources.list.d/kubernetes.list
apt-get update
apt-get install -y containerd kubelet kubeadm
apt-mark hold kubelet kubeadm
systemctl disable kubelet # the seed starts it after writing its configuration
install -d /etc/containerd
containerd config default | sed 's|SystemdCgroup = false|SystemdCgroup = true|; s|/usr/lib/cni|/opt/cni/bin|' >/etc/containerd/config.toml
grep -q 'SystemdCgroup = true' /etc/containerd/config.toml
INSTALL
else
	cat >>"$work/install.sh" <<INSTALL
curl -fsSL https://get.k3s.io | INSTALL_K3S_EXEC=agent INSTALL_K3S_SKIP_ENABLE=true INSTALL_K3S_VERSION='$k3s' sh -
command -v k3s
INSTALL
fi
cat >>"$work/install.sh" <<'INSTALL'

# Remove everything that clones must not share, and the remains of earlier joins.
apt-get clean
rm -rf /etc/kubernetes/kubelet.conf /var/lib/kubelet/pki /etc/ssh/ssh_host_*
cloud-init clean --logs --seed
INSTALL

image=$images/$distro-$node-$(sha256sum "$work/install.sh" | cut -c1-12).qcow2
if [ ! -e "$image" ]; then
	mkdir -p "$images"
	part=$(mktemp "$images/.part-XXXXXX")
	trap 'rm -rf "$work" "$part"' EXIT
	curl -fL --retry 3 -o "$part" "$url"
	virt-customize -a "$part" --run "$work/install.sh" --truncate /etc/machine-id
	mv "$part" "$image"
fi

# 3. Create the template: with guest agent and a boot disk in the boot order, but without a
# cloud-init drive and options that only root@pam may set, such as hookscript or affinity.
qm create "$vmid" --name "$name" --tags "$unfinished" --ostype l26 --cpu host --cores 2 --memory 2048 \
	--agent enabled=1 --scsihw virtio-scsi-single --serial0 socket --vga serial0 --net0 "virtio,bridge=$bridge"
qm set "$vmid" --scsi0 "$storage:0,import-from=$image,discard=on"
qm set "$vmid" --boot order=scsi0
qm template "$vmid"
qm set "$vmid" --delete tags
echo "template $name (VMID $vmid) is ready; next: numaform init, or numaform doctor if you have a numaform.yaml"
