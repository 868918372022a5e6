package fleet

import (
	"fmt"
	"regexp"
	"strconv"
)

// AnySeedStorage as a Spec's SeedStorage is the first active storage of the VM's
// host that takes ISO images.
const AnySeedStorage = "*"

// generationLength is how much of a VM's key tells its seed from that of another
// VM of the same number.
const generationLength = 8

// seedPattern is strict because what it matches is written over and deleted.
var seedPattern = regexp.MustCompile(
	`^([A-Za-z][A-Za-z0-9_.-]*):iso/numaform-([a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?)-([1-9][0-9]{2,8})-([0-9a-f]{8})\.iso$`,
)

// SeedVolume returns the volume of a VM's seed, the ISO image that its guest reads
// at its first boot. It returns "" without a storage.
func SeedVolume(storage, clusterID string, vmid VMID, key Key) string {
	if storage == "" {
		return ""
	}
	return fmt.Sprintf("%s:iso/numaform-%s-%d-%s.iso", storage, clusterID, vmid, generation(key))
}

func generation(key Key) string { return string(key[:min(len(key), generationLength)]) }

// Seed is what the name of a seed's volume says.
type Seed struct {
	// Volume is the whole name, as Proxmox knows it.
	Volume    string
	Storage   string
	ClusterID string
	VMID      VMID
	// Generation is the beginning of the VM's key.
	Generation string
}

// ParseSeed is the reverse of SeedVolume. It reports false for a volume that is no
// seed of any numaform.
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

// Of reports whether the seed is the VM's with this number and key.
func (s Seed) Of(vmid VMID, key Key) bool {
	return s.VMID == vmid && s.Generation == generation(key)
}
