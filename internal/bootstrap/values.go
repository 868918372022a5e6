package bootstrap

import (
	"strconv"

	"github.com/numaform/numaform/fleet"
)

// Values are the data of templates. An unknown name or a missing map key is an error.
type Values struct {
	Metadata   Metadata
	Network    Network
	Resources  Resources
	Kubernetes Kubernetes
	// Values are the user's own values: the keys of the Secret in valuesRef.
	Values map[string]any
}

// String names the VM instead of printing the values, which include a join token.
func (v Values) String() string { return "values of " + v.Metadata.Hostname }

// GoString returns the same as String.
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
	// ProviderID is the provider ID of the Node: proxmox://REGION/VMID.
	ProviderID string
	// Region is the Proxmox cluster and Zone the host.
	Region, Zone string
	// Tags are the user's tags of the VM.
	Tags      []string
	NodeClass string
}

// Network is the guest's network configuration. Without interfaces, the guest uses DHCP on
// all of its interfaces. ValuesOf leaves it empty, because numaform assigns no addresses;
// templates written for other tools may read it.
type Network struct {
	Interfaces []Interface
	DNSServers []string
	// SearchDomains are the DNS search domains.
	SearchDomains []string
}

// Interface is a network interface of the guest.
type Interface struct {
	// Name is the interface's name, or a pattern such as "en*".
	Name string
	// MAC identifies the interface. If it is empty, Name does.
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
	// DiskGiB is the size of the boot disk, or 0 if it is unknown.
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
	// APIServer is the API server's URL: https://HOST:PORT.
	APIServer string
	// Token is the credential for kubelet's certificate request. It is valid only for this
	// node.
	Token string
	// BootstrapToken is Token in the form ID.SECRET if the class uses bootstrap tokens,
	// otherwise empty. See UsesBootstrapToken.
	BootstrapToken string
	// KubeletConfiguration is a kubelet.config.k8s.io/v1beta1 object, set by Configure.
	KubeletConfiguration map[string]any
	// KubeletArgs are the flags without a field in KubeletConfiguration, set by Configure.
	KubeletArgs []string
	// Labels and Taints are the initial labels and taints of the Node, set by Configure. They
	// omit labels that kubelet may not set.
	Labels map[string]any
	Taints []Taint
}

// Taint is a taint of a Node.
type Taint struct{ Key, Value, Effect string }

// String returns the taint in the form of the flags of kubelet and k3s: KEY=VALUE:EFFECT.
func (t Taint) String() string { return t.Key + "=" + t.Value + ":" + t.Effect }

// ValuesOf returns the values of a VM. The caller sets the values of the cluster.
func ValuesOf(vm *fleet.VM) Values {
	uuid := string(vm.Key)
	if len(uuid) == 32 {
		uuid = uuid[:8] + "-" + uuid[8:12] + "-" + uuid[12:16] + "-" + uuid[16:20] + "-" + uuid[20:]
	}
	return Values{
		Metadata: Metadata{
			Hostname:     vm.Name,
			InstanceID:   strconv.Itoa(int(vm.VMID)),
			InstanceUUID: uuid,
			InstanceType: vm.InstanceType,
			ProviderID:   fleet.ProviderID(vm.Host.Region, vm.VMID),
			Region:       string(vm.Host.Region),
			Zone:         string(vm.Host.Host),
			Tags:         vm.Tags,
			NodeClass:    vm.NodeClass,
		},
		Resources: Resources{
			CPU:       vm.VCPUs,
			MemoryMiB: vm.MemoryMiB,
			DiskGiB:   max(vm.DiskGiB, vm.Source.DiskGiB),
			NUMANodes: max(len(vm.Cells), 1),
		},
	}
}

// anyMap converts a map to the type that sprig's functions accept.
func anyMap(texts map[string]string) map[string]any {
	values := make(map[string]any, len(texts))
	for key, text := range texts {
		values[key] = text
	}
	return values
}
