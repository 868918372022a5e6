package fleet

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/numaform/numaform/topology"
)

// MaxPoolName is the maximum length of a NodePool's name. The name and the VMID form the name
// of a VM and its Node, a DNS label of at most 63 characters.
const MaxPoolName = 63 - len("-999999999")

// MaxVMID is the largest VMID that Proxmox accepts.
const MaxVMID VMID = 999999999

// MinVMID is the smallest VMID that Proxmox accepts.
const MinVMID VMID = 100

var (
	dnsLabel  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	clusterID = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)
)

// CheckClusterID returns an error if a cluster ID is invalid. The ID is part of tags,
// state names and markers, so it must be a short DNS label.
func CheckClusterID(id string) error {
	if clusterID.MatchString(id) {
		return nil
	}
	return fmt.Errorf("clusterID %q: must have 1 to 32 characters a-z, 0-9 and -, and begin and end with a letter or digit", id)
}

// CheckPool returns an error if a NodePool's name cannot be the prefix of VM names.
func CheckPool(pool string) error {
	if len(pool) <= MaxPoolName && dnsLabel.MatchString(pool) {
		return nil
	}
	return fmt.Errorf("nodepool %q: the names of its VMs begin with this name, so it must have at most %d characters a-z, 0-9 and -, "+
		"and begin and end with a letter or digit", pool, MaxPoolName)
}

// NodeName returns the name of a VM and of its Node.
func NodeName(pool string, vmid VMID) string {
	return pool + "-" + strconv.Itoa(int(vmid))
}

// AdoptableName reports whether a VM with this name can be adopted: the name becomes part of
// the VM's file and addresses.
func AdoptableName(name string) bool { return len(name) <= 63 && dnsLabel.MatchString(name) }

// providerIDScheme is the scheme that the Proxmox cloud controller manager uses.
const providerIDScheme = "proxmox://"

// ProviderID returns a VM's Kubernetes provider ID: proxmox://<region>/<vmid>.
func ProviderID(region topology.RegionName, vmid VMID) string {
	return fmt.Sprintf("%s%s/%d", providerIDScheme, region, vmid)
}

// ParseProviderID is the inverse of ProviderID.
func ParseProviderID(id string) (topology.RegionName, VMID, error) {
	rest, ok := strings.CutPrefix(id, providerIDScheme)
	region, number, cut := strings.Cut(rest, "/")
	vmid, err := strconv.Atoi(number)
	if !ok || !cut || region == "" || err != nil ||
		VMID(vmid) < MinVMID || VMID(vmid) > MaxVMID || strconv.Itoa(vmid) != number {
		return "", 0, fmt.Errorf("parsing providerID %q: must have the form %s<region>/<vmid>", id, providerIDScheme)
	}
	return topology.RegionName(region), VMID(vmid), nil
}
