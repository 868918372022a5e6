#!/bin/sh
# Creates a VM template without an operating system on the Proxmox host on which it runs, as
# root. Its clones boot from the network until their disk has a boot loader:
#
#   ./make-template.sh VMID NAME STORAGE [BRIDGE]
#
# Run it on each host with the same NAME and another VMID, outside of vmid_range.
set -eu

if [ $# -lt 3 ] || [ $# -gt 4 ]; then
	sed -n '2,/^set -eu/{/^#/s/^# \{0,1\}//p;}' "$0" >&2
	exit 2
fi
vmid=$1 name=$2 storage=$3 bridge=${4:-vmbr0}

qm create "$vmid" --name "$name" --ostype l26 --memory 2048 --scsihw virtio-scsi-single \
	--scsi0 "$storage:1" --net0 "virtio,bridge=$bridge" --boot 'order=scsi0;net0' --agent 1 --serial0 socket
qm template "$vmid"
