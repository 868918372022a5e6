package fleet

import (
	"fmt"
	"regexp"
	"strconv"
)

// AnySeedStorage selects, as a Spec's SeedStorage, the first active storage for ISO
// images on the VM's host.
const AnySeedStorage = "*"

// generationLength is the number of key characters in a seed's name. They distinguish the
// seed from the seed of an earlier VM with the same VMID.
const generationLength = 8

// seedPattern is strict because numaform overwrites and deletes the volumes that it
// matches.
var seedPattern = regexp.MustCompile(
	`^([A-Za-z][A-Za-z0-9_.-]*):iso/numaform-([a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?)-([1-9][0-9]{2,8})-([0-9a-f]{8})\.iso$`,
)

// SeedVolume returns the volume ID of a VM's seed, the ISO image that its guest reads at
// its first boot. It returns "" if storage is empty.
func SeedVolume(storage, clusterID string, vmid VMID, key Key) string {
	if storage == "" {
		return ""
	}
	return fmt.Sprintf("%s:iso/numaform-%s-%d-%s.iso", storage, clusterID, vmid, generation(key))
}

func generation(key Key) string { return string(key[:min(len(key), generationLength)]) }

// Seed is a parsed seed volume ID.
type Seed struct {
	// Volume is the complete volume ID, as in Proxmox.
	Volume    string
	Storage   string
	ClusterID string
	VMID      VMID
	// Generation is the prefix of the VM's key.
	Generation string
}

// ParseSeed is the inverse of SeedVolume. It reports false if the volume is not the seed
// of any numaform installation.
func ParseSeed(volume string) (Seed, bool) {
	fields := seedPattern.FindStringSubmatch(volume)
	if fields == nil {
		return Seed{}, false
	}
	vmid, err := strconv.Atoi(fields[3])
	if err != nil {
		return Seed{}, false
	}
	return Seed{Volume: volume, Storage: fields[1], ClusterID: fields[2], VMID: VMID(vmid), Generation: fields[4]}, true
}

// Of reports whether the seed belongs to the VM with this VMID and key.
func (s Seed) Of(vmid VMID, key Key) bool {
	return s.VMID == vmid && s.Generation == generation(key)
}
