package fleet

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/numaform/numaform/topology"
)

// MaxPoolName is how long a NodePool's name may be: with its VMID behind it, it
// names a VM and a Node, which are DNS labels of at most 63 characters.
const MaxPoolName = 63 - len("-999999999")

// MaxVMID is the largest VMID that Proxmox accepts.
const MaxVMID VMID = 999999999

// MinVMID is the smallest VMID that Proxmox accepts.
const MinVMID VMID = 100

var (
	dnsLabel  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	clusterID = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)
)

// CheckClusterID says what is wrong with a clusterID. It stands in tags, state
// names and markers, so it is a short DNS label.
func CheckClusterID(id string) error {
	if clusterID.MatchString(id) {
		return nil
	}
	return fmt.Errorf("clusterID %q: want 1 to 32 of a-z, 0-9 and -, beginning and ending with a letter or digit", id)
}

// CheckPool says what is wrong with a NodePool's name as the head of VM names.
func CheckPool(pool string) error {
	if len(pool) <= MaxPoolName && dnsLabel.MatchString(pool) {
		return nil
	}
	return fmt.Errorf("nodepool %q: its name begins the names of VMs: "+
		"want at most %d of a-z, 0-9 and -, beginning and ending with a letter or digit", pool, MaxPoolName)
}

// NodeName returns the name of a VM and of its Node.
func NodeName(pool string, vmid VMID) string {
	return pool + "-" + strconv.Itoa(int(vmid))
}

// providerIDScheme is the one the Proxmox cloud controller manager writes.
const providerIDScheme = "proxmox://"

// ProviderID returns a VM's id as Kubernetes knows it: proxmox://<region>/<vmid>.
func ProviderID(region topology.RegionName, vmid VMID) string {
	return fmt.Sprintf("%s%s/%d", providerIDScheme, region, vmid)
}

// ParseProviderID is the reverse of ProviderID.
func ParseProviderID(id string) (topology.RegionName, VMID, error) {
	rest, ok := strings.CutPrefix(id, providerIDScheme)
	region, number, cut := strings.Cut(rest, "/")
	vmid, err := strconv.Atoi(number)
	if !ok || !cut || region == "" || err != nil ||
		VMID(vmid) < MinVMID || VMID(vmid) > MaxVMID || strconv.Itoa(vmid) != number {
		return "", 0, fmt.Errorf("parsing providerID %q: want %s<region>/<vmid>", id, providerIDScheme)
	}
	return topology.RegionName(region), VMID(vmid), nil
}
