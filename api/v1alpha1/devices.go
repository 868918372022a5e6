package v1alpha1

import (
	"fmt"
	"regexp"
)

// PCIDevice is a PCI device of the host, named by its resource mapping: Datacenter,
// Resource Mappings in Proxmox. It needs the privilege Mapping.Use there.
type PCIDevice struct {
	// Mapping is the name of the resource mapping. Of the devices that it has on a host,
	// Proxmox takes the first that is free.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z][A-Za-z0-9_-]+$`
	Mapping string `json:"mapping"`

	// MDev is the type of the mediated device, such as nvidia-63, that is made of it. Left
	// out, the node has the whole device.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9][A-Za-z0-9_-]*)?$`
	MDev string `json:"mdev,omitempty"`

	// PCIe puts the device on a PCI Express port. The template's machine must be q35.
	// +optional
	PCIe bool `json:"pcie,omitempty"`

	// XVGA makes the device the node's primary graphics card.
	// +optional
	XVGA bool `json:"xvga,omitempty"`
}

// mostDevices is how many PCI devices a class may have.
const mostDevices = 6

func validateDevices(devices []PCIDevice, report reporter) {
	if len(devices) > mostDevices {
		report("pciDevices", "has %d devices: %d are allowed", len(devices), mostDevices)
	}
	mapping := regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{1,63}$`)
	kind := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
	primary := 0
	for i, d := range devices {
		field := fmt.Sprintf("pciDevices[%d].", i)
		if !mapping.MatchString(d.Mapping) {
			report(field+"mapping", "%q is not a resource mapping's name: Datacenter, Resource Mappings in Proxmox lists them", d.Mapping)
		}
		if d.MDev != "" && !kind.MatchString(d.MDev) {
			report(field+"mdev", "%q is not a type of mediated device: write one such as nvidia-63", d.MDev)
		}
		if d.XVGA {
			primary++
		}
	}
	if primary > 1 {
		report("pciDevices", "a VM has one primary graphics card: set xvga for one device only")
	}
}
