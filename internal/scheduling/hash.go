package scheduling

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
)

// ClassHashVersion is the version of ClassHash's algorithm. Hashes of different versions
// cannot be compared.
const ClassHashVersion = "v1"

// hashed are the fields of a class whose change replaces nodes, with defaults applied.
// Fields added later must be omitted when empty, so that hashes of classes without them
// do not change.
type hashed struct {
	Clone       v1alpha1.CloneKind             `json:"clone"`
	DiskGiB     int64                          `json:"disk_gib,omitempty"`
	Storage     string                         `json:"storage,omitempty"`
	CPUType     string                         `json:"cpu_type"`
	Policy      v1alpha1.PlacementPolicy       `json:"policy"`
	PinWith     v1alpha1.PinWith               `json:"pin_with,omitempty"`
	Overcommit  string                         `json:"overcommit"`
	Networks    []v1alpha1.Network             `json:"networks,omitempty"`
	Kubelet     *v1alpha1.KubeletConfiguration `json:"kubelet,omitempty"`
	SeedByCDROM bool                           `json:"seed_by_cdrom,omitempty"`
	HugePages   v1alpha1.HugePages             `json:"huge_pages,omitempty"`
	PCIDevices  []v1alpha1.PCIDevice           `json:"pci_devices,omitempty"`
	DataDisks   []fleet.DataDisk               `json:"data_disks,omitempty"`
}

// ClassHash returns the hash of the class's fields whose change replaces its nodes. It
// excludes where nodes may be placed and how they are spread, what they are grouped by,
// and what only new nodes read: region, hosts, sizing, tags, pool, security groups,
// seeds, token and memory overhead. It also excludes the template: a node is compared
// with what its host would clone now, however that template is selected.
func ClassHash(nc *v1alpha1.ProxmoxNodeClass) string {
	spec := nc.Spec.DeepCopy()
	h := hashed{
		Clone: cmp.Or(spec.Clone, v1alpha1.CloneFull), CPUType: cmp.Or(spec.CPUType, "host"),
		Policy: spec.Placement.EffectivePolicy(), PinWith: spec.Placement.PinWith,
		Networks: spec.Networks, Kubelet: spec.Kubelet,
		SeedByCDROM: nc.Seeded(), HugePages: spec.Placement.HugePages, PCIDevices: spec.PCIDevices,
	}
	// A class that Validate refuses has no VMs, so its hash is not used.
	h.DiskGiB, _ = spec.BootDevice.SizeGiB()
	if spec.BootDevice != nil {
		h.Storage = spec.BootDevice.Storage
	}
	h.DataDisks = dataDisks(spec.DataDisks)
	overcommit, _ := spec.Placement.OvercommitRatio()
	h.Overcommit = strconv.FormatFloat(overcommit, 'g', -1, 64)
	for i := range h.Networks {
		h.Networks[i].Model = cmp.Or(h.Networks[i].Model, "virtio")
		h.Networks[i].MACPrefix = strings.ToUpper(h.Networks[i].MACPrefix)
	}
	if k := h.Kubelet; k != nil {
		k.AllowedUnsafeSysctls = sortedCopy(k.AllowedUnsafeSysctls)
		if text, err := json.Marshal(k); err == nil && string(text) == "{}" {
			h.Kubelet = nil
		}
	}
	text, err := json.Marshal(h)
	if err != nil {
		return "" // strings, numbers and maps of these always marshal
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
