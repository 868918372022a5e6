package bootstrap

import (
	"strconv"

	"github.com/numaform/numaform/fleet"
)

// Values are the data of templates. An unknown name or a missing map key is an error. The
// names in JSON are the ones of karpenter-provider-proxmox, whose templates write all values
// to a file.
type Values struct {
	// Metadata and Network are embedded, so that templates also find their fields without a
	// prefix: in karpenter-provider-proxmox, meta-data and network-config have only these.
	Metadata   `json:"metadata"`
	Network    `json:"network"`
	Resources  Resources  `json:"resources"`
	Kubernetes Kubernetes `json:"kubernetes"`
	// Values are the user's own values: the keys of the Secret in valuesRef.
	Values map[string]any `json:"values"`
}

// String names the VM instead of printing the values, which include a join token.
func (v Values) String() string { return "values of " + v.Metadata.Hostname }

// GoString returns the same as String.
func (v Values) GoString() string { return v.String() }

// Metadata identifies the VM.
type Metadata struct {
	// Hostname is the name of the VM and of its Node.
	Hostname string `json:"hostname"`
	// InstanceID is the VMID. VMIDs are reused.
	InstanceID string `json:"instanceid"`
	// InstanceUUID is the VM's key as a UUID, which is never reused.
	InstanceUUID string `json:"instanceuuid"`
	InstanceType string `json:"instancetype"`
	// ProviderID is the provider ID of the Node: proxmox://REGION/VMID.
	ProviderID string `json:"providerid"`
	// Region is the Proxmox cluster and Zone the host.
	Region string `json:"region"`
	Zone   string `json:"zone"`
	// Tags are the user's tags of the VM.
	Tags      []string `json:"tags"`
	NodeClass string   `json:"nodeclass"`
}

// Network is the guest's network configuration. Without interfaces, the guest uses DHCP on
// all of its interfaces: ValuesOf sets it only for VMs with static addresses, whose devices
// all have a known MAC address.
type Network struct {
	Interfaces []Interface `json:"interfaces"`
	DNSServers []string    `json:"name_servers,omitempty"`
	// SearchDomains are the DNS search domains.
	SearchDomains []string `json:"search_domains,omitempty"`
}

// Interface is a network interface of the guest.
type Interface struct {
	// Name is the interface's name, or a pattern such as "en*".
	Name string `json:"name"`
	// MAC identifies the interface. If it is empty, Name does.
	MAC   string `json:"mac_address,omitempty"`
	DHCP4 bool   `json:"dhcp4,omitempty"`
	DHCP6 bool   `json:"dhcp6,omitempty"`
	// Addresses include the prefix length: 192.168.0.7/24.
	Addresses []string `json:"addresses,omitempty"`
	Gateway4  string   `json:"gateway4,omitempty"`
	Gateway6  string   `json:"gateway6,omitempty"`
	// MTU is 0 for the default.
	MTU int `json:"mtu,omitempty"`
}

// Resources are the VM's resources.
type Resources struct {
	// CPU is the number of vCPUs.
	CPU       int   `json:"cpu"`
	MemoryMiB int64 `json:"memorymib"`
	// DiskGiB is the size of the boot disk, or 0 if it is unknown.
	DiskGiB int64 `json:"diskgib,omitempty"`
	// NUMANodes is the number of NUMA nodes that the guest sees, at least 1.
	NUMANodes int `json:"numanodes"`
	// HugePages2Mi and HugePages1Gi are the numbers of huge pages that the guest's kernel
	// must reserve before kubelet starts, so that the Node has them.
	HugePages2Mi int64 `json:"hugepages2Mi,omitempty"`
	HugePages1Gi int64 `json:"hugepages1Gi,omitempty"`
}

// Kubernetes is the cluster to join.
type Kubernetes struct {
	// Version is the API server's version, such as v1.36.3.
	Version string `json:"version"`
	// RootCA contains the certificates of the API server's CA in PEM.
	RootCA string `json:"rootca"`
	// APIServer is the API server's URL: https://HOST:PORT.
	APIServer string `json:"apiserver"`
	// Token is the credential for kubelet's certificate request. It is valid only for this
	// node.
	Token string `json:"token"`
	// BootstrapToken is Token in the form ID.SECRET if the class uses bootstrap tokens,
	// otherwise empty. See UsesBootstrapToken.
	BootstrapToken string `json:"bootstraptoken"`
	// KubeletConfiguration is a kubelet.config.k8s.io/v1beta1 object, set by Configure.
	KubeletConfiguration map[string]any `json:"kubeletconfiguration"`
	// KubeletArgs are the flags without a field in KubeletConfiguration, set by Configure.
	KubeletArgs []string `json:"kubeletargs"`
	// Labels and Taints are the initial labels and taints of the Node, set by Configure. They
	// omit labels that kubelet may not set.
	Labels map[string]any `json:"labels"`
	Taints []Taint        `json:"taints"`
}

// Taint is a taint of a Node.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

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
		Network: networkOf(vm),
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
