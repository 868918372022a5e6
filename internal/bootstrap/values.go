package bootstrap

import (
	"strconv"

	"github.com/numaform/numaform/fleet"
)

// Values are the data of templates. Using an unknown name, or a missing key of a map, is
// an error.
type Values struct {
	Metadata   Metadata
	Network    Network
	Resources  Resources
	Kubernetes Kubernetes
	// Values are the user's own values: the keys of the Secret in valuesRef.
	Values map[string]any
}

// String returns whose values they are, without the values: they include a join token.
func (v Values) String() string { return "values of " + v.Metadata.Hostname }

// GoString returns String.
func (v Values) GoString() string { return v.String() }

// Metadata identifies the VM.
type Metadata struct {
	// Hostname is the name of the VM and of its Node.
	Hostname string
	// InstanceID is the VMID. VMIDs are reused.
	InstanceID string
	// InstanceUUID is the VM's key as a UUID, which is never reused.
	InstanceUUID string
	InstanceType string
	// ProviderID is Kubernetes' ID of the VM: proxmox://REGION/VMID.
	ProviderID string
	// Region is the Proxmox cluster and Zone the host.
	Region, Zone string
	// Tags are the user's tags of the VM.
	Tags      []string
	NodeClass string
}

// Network is the guest's network configuration. Without interfaces, the guest uses DHCP
// on all of its interfaces. numaform assigns no addresses, so ValuesOf leaves it empty;
// it exists for templates that use it.
type Network struct {
	Interfaces []Interface
	DNSServers []string
	// SearchDomains are tried for names without a dot.
	SearchDomains []string
}

// Interface is a network interface of the guest.
type Interface struct {
	// Name is the interface's name, or a pattern such as "en*".
	Name string
	// MAC identifies the interface, if it is known; Name is then only a label.
	MAC          string
	DHCP4, DHCP6 bool
	// Addresses include the prefix length: 192.168.0.7/24.
	Addresses          []string
	Gateway4, Gateway6 string
	// MTU is 0 for the default.
	MTU int
}

// Resources are the VM's resources.
type Resources struct {
	// CPU is the number of vCPUs.
	CPU       int
	MemoryMiB int64
	// DiskGiB is the boot disk's size, or 0 if only the template knows it.
	DiskGiB int64
	// NUMANodes is the number of NUMA nodes that the guest sees, at least 1.
	NUMANodes int
	// HugePages2Mi and HugePages1Gi are the numbers of huge pages that the guest's kernel
	// must reserve before kubelet starts, so that the Node has them.
	HugePages2Mi, HugePages1Gi int64
}

// Kubernetes is the cluster to join.
type Kubernetes struct {
	// Version is the API server's version, such as v1.36.3.
	Version string
	// RootCA contains the certificates of the API server's CA in PEM.
	RootCA string
	// APIServer is its URL: https://HOST:PORT.
	APIServer string
	// Token is the credential for kubelet's certificate request, valid only for this
	// node, in the class's form.
	Token string
	// BootstrapToken is the same as ID.SECRET, or empty if the class does not use
	// bootstrap tokens; see UsesBootstrapToken.
	BootstrapToken string
	// KubeletConfiguration is a kubelet.config.k8s.io/v1beta1 object, set by Configure.
	KubeletConfiguration map[string]any
	// KubeletArgs are the flags that cannot be in it, set by Configure.
	KubeletArgs []string
	// Labels and Taints are the Node's initial ones, set by Configure, without labels
	// that a kubelet may not set itself.
	Labels map[string]any
	Taints []Taint
}

// Taint is a taint of a Node.
type Taint struct{ Key, Value, Effect string }

// String returns the taint in the form of kubelet's and k3s' flags: KEY=VALUE:EFFECT.
func (t Taint) String() string { return t.Key + "=" + t.Value + ":" + t.Effect }

// ValuesOf returns the values that derive from a VM. The caller adds the cluster's.
func ValuesOf(vm *fleet.VM) Values {
	uuid := string(vm.Key)
	if len(uuid) == 32 {
		uuid = uuid[:8] + "-" + uuid[8:12] + "-" + uuid[12:16] + "-" + uuid[16:20] + "-" + uuid[20:]
	}
	return Values{
		Metadata: Metadata{
			Hostname: vm.Name, InstanceID: strconv.Itoa(int(vm.VMID)), InstanceUUID: uuid,
			InstanceType: vm.InstanceType, ProviderID: fleet.ProviderID(vm.Host.Region, vm.VMID),
			Region: string(vm.Host.Region), Zone: string(vm.Host.Host), Tags: vm.Tags, NodeClass: vm.NodeClass,
		},
		Resources: Resources{
			CPU: vm.VCPUs, MemoryMiB: vm.MemoryMiB, DiskGiB: max(vm.DiskGiB, vm.Source.DiskGiB), NUMANodes: max(len(vm.Cells), 1),
		},
	}
}

// anyMap returns a map in the form that sprig's functions take.
func anyMap(texts map[string]string) map[string]any {
	values := make(map[string]any, len(texts))
	for key, text := range texts {
		values[key] = text
	}
	return values
}
