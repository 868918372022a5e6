package v1alpha1

import (
	"fmt"
	"regexp"
)

// DataDisk is an empty disk that a node has beside the one that it starts from. It is made
// with the node's VM and deleted with it.
type DataDisk struct {
	// Size is the disk's size, such as 100Gi; G and Gi are both 2^30 bytes, as in
	// Proxmox.
	// +kubebuilder:validation:MaxLength=11
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,7}[GT]i?$`
	Size string `json:"size"`

	// Storage takes the disk. Empty means the storage of the boot disk.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^([A-Za-z][A-Za-z0-9_.-]*)?$`
	Storage string `json:"storage,omitempty"`
}

// SizeGiB returns the size in GiB.
func (d *DataDisk) SizeGiB() (int64, error) { return sizeGiB(d.Size) }

// mostDisks is how many data disks a class may have.
const mostDisks = 6

func validateDataDisks(disks []DataDisk, report reporter) {
	if len(disks) > mostDisks {
		report("dataDisks", "has %d disks: %d are allowed", len(disks), mostDisks)
	}
	for i := range disks {
		field := fmt.Sprintf("dataDisks[%d].", i)
		if _, err := disks[i].SizeGiB(); err != nil {
			report(field+"size", "%v", err)
		}
		if name := disks[i].Storage; name != "" && !regexp.MustCompile(storagePattern).MatchString(name) {
			report(field+"storage", "%q is not a storage's name: pvesm status lists them", name)
		}
	}
}
