package fleet

// PCIDevice is a device of its host that a VM gets, by the name of the resource mapping
// that Proxmox finds it under. Which one of several it is, Proxmox decides at the start.
type PCIDevice struct {
	Mapping string `json:"mapping"`
	// MDev is the type of the mediated device that is made of it; empty means that the VM
	// has the device for itself.
	MDev string `json:"mdev,omitempty"`
	// PCIe puts it on a PCI Express port, which only machine type q35 has.
	PCIe bool `json:"pcie,omitempty"`
	// XVGA makes it the VM's primary graphics card.
	XVGA bool `json:"xvga,omitempty"`
}
