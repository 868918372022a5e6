package fleet

// PCIDevice is a host device passed through to a VM, named by its Proxmox resource
// mapping. If the mapping names several devices, Proxmox picks one when the VM starts.
type PCIDevice struct {
	Mapping string `json:"mapping"`
	// MDev is the type of the mediated device created on it; empty passes the whole
	// device through.
	MDev string `json:"mdev,omitempty"`
	// PCIe attaches it to a PCI Express port, which only machine type q35 has.
	PCIe bool `json:"pcie,omitempty"`
	// XVGA makes it the VM's primary graphics card.
	XVGA bool `json:"xvga,omitempty"`
}
