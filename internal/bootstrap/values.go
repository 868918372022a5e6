package bootstrap

import (
	"maps"
	"strconv"

	"github.com/numaform/numaform/fleet"
)

// Values are what templates may name. A name that is not here, or a key that is not
// in a map, is an error where it is used.
type Values struct {
	Metadata   Metadata
	Network    Network
	Resources  Resources
	Kubernetes Kubernetes
	// Values are the user's own: the keys of the Secret that valuesRef names.
	Values map[string]string
}

// String says whose values they are and none of them: they hold a join token.
func (v Values) String() string { return "values of " + v.Metadata.Hostname }

// GoString is String.
func (v Values) GoString() string { return v.String() }

// Metadata says which VM it is.
type Metadata struct {
	// Hostname is the name of the VM and of its Node.
	Hostname string
	// InstanceID is the VMID. VMIDs come back.
	InstanceID string
	// InstanceUUID is the VM's key as a UUID, which no other VM ever has.
	InstanceUUID string
	InstanceType string
	// ProviderID is what Kubernetes calls the VM: proxmox://REGION/VMID.
	ProviderID string
	// Region is the Proxmox cluster and Zone the host.
	Region, Zone string
	// Tags are the user's tags of the VM.
	Tags      []string
	NodeClass string
}

// Network is how the guest shall set up its network. Without interfaces it asks for
// addresses by DHCP on all that it has. numaform gives out no addresses, so ValuesOf
// leaves it empty; it is there for templates that ask for it.
type Network struct {
	Interfaces []Interface
	DNSServers []string
	// SearchDomains are tried for names without a dot.
	SearchDomains []string
}

// Interface is a network interface of the guest.
type Interface struct {
	// Name is the interface's, or a pattern such as "en*".
	Name string
	// MAC finds the interface, where it is known, and Name is only a label then.
	MAC          string
	DHCP4, DHCP6 bool
	// Addresses have the length of their prefix: 192.168.0.7/24.
	Addresses          []string
	Gateway4, Gateway6 string
	// MTU is 0 for the default.
	MTU int
}

// Resources are the VM's.
type Resources struct {
	// CPU is the number of vCPUs.
	CPU       int
	MemoryMiB int64
	// DiskGiB is the boot disk's size, or 0 where the template alone knows it.
	DiskGiB int64
	// NUMANodes is how many NUMA nodes the guest sees, 1 at least.
	NUMANodes int
	// HugePages2Mi and HugePages1Gi are how many huge pages of a size the guest's kernel
	// has to reserve before kubelet starts, for the Node is to have them.
	HugePages2Mi, HugePages1Gi int64
}

// Kubernetes is the cluster to join.
type Kubernetes struct {
	// Version is the API server's, such as v1.36.3.
	Version string
	// RootCA holds the certificates of the API server's CA in PEM.
	RootCA string
	// APIServer is its URL: https://HOST:PORT.
	APIServer string
	// Token is what kubelet asks for its certificate with, good for this node alone, in
	// the form that the class names.
	Token string
	// BootstrapToken is the same as ID.SECRET, or empty if the class asks for no
	// bootstrap token; see UsesBootstrapToken.
	BootstrapToken string
	// KubeletConfiguration is a kubelet.config.k8s.io/v1beta1 object, made by Configure.
	KubeletConfiguration map[string]any
	// KubeletArgs are the flags that have no place in it, made by Configure.
	KubeletArgs []string
	// Labels and Taints are those that the Node is to have when it appears, made by
	// Configure: without those labels that a kubelet may not set itself.
	Labels map[string]string
	Taints []Taint
}

// Taint is a taint of a Node.
type Taint struct{ Key, Value, Effect string }

// String returns the taint as kubelet's and k3s' flags have it: KEY=VALUE:EFFECT.
func (t Taint) String() string { return t.Key + "=" + t.Value + ":" + t.Effect }

// ValuesOf returns what is known of a VM by itself. What its cluster tells is to be
// added.
func ValuesOf(vm *fleet.VM) Values {
	return Values{
		Metadata: Metadata{
			Hostname: vm.Name, InstanceID: strconv.Itoa(int(vm.VMID)), InstanceUUID: uuid(vm.Key),
			InstanceType: vm.InstanceType, ProviderID: fleet.ProviderID(vm.Host.Region, vm.VMID),
			Region: string(vm.Host.Region), Zone: string(vm.Host.Host), Tags: vm.Tags, NodeClass: vm.NodeClass,
		},
		Resources: Resources{
			CPU: vm.VCPUs, MemoryMiB: vm.MemoryMiB, DiskGiB: max(vm.DiskGiB, vm.Source.DiskGiB), NUMANodes: max(len(vm.Cells), 1),
		},
	}
}

// uuid writes the 32 hex digits of a key in groups.
func uuid(key fleet.Key) string {
	if len(key) != 32 {
		return string(key)
	}
	return string(key[:8] + "-" + key[8:12] + "-" + key[12:16] + "-" + key[16:20] + "-" + key[20:])
}

// view is Values as templates see them: sprig's functions take maps of anything.
type view struct {
	Metadata   Metadata
	Network    Network
	Resources  Resources
	Kubernetes kubernetesView
	Values     map[string]any
}

type kubernetesView struct {
	Kubernetes
	Labels map[string]any
}

func viewOf(values *Values) view {
	config := maps.Clone(values.Kubernetes.KubeletConfiguration)
	v := view{
		Metadata: values.Metadata, Network: values.Network, Resources: values.Resources,
		Kubernetes: kubernetesView{Kubernetes: values.Kubernetes, Labels: anyMap(values.Kubernetes.Labels)},
		Values:     anyMap(values.Values),
	}
	v.Kubernetes.KubeletConfiguration = config
	return v
}

func anyMap(texts map[string]string) map[string]any {
	values := make(map[string]any, len(texts))
	for key, text := range texts {
		values[key] = text
	}
	return values
}
