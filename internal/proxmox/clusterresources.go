package proxmox

// resource is an element of /cluster/resources: a host, guest, storage or pool.
type resource struct {
	Type     string `json:"type"`
	Node     string `json:"node"`
	Name     string `json:"name"`
	Status   string `json:"status"`
	VMID     number `json:"vmid"`
	Template number `json:"template"`
	Lock     string `json:"lock"`
	Tags     string `json:"tags"`
	Pool     string `json:"pool"`
	HAState  string `json:"hastate"`
	MaxCPU   number `json:"maxcpu"`
	MaxMem   number `json:"maxmem"`
	// CPU is the part of the CPUs that is in use, from 0 to 1, and Mem the memory in use. They
	// are missing without Sys.Audit on the host.
	CPU    *number `json:"cpu"`
	Mem    *number `json:"mem"`
	Uptime number  `json:"uptime"`
	// CPUs is set instead of MaxCPU in a host's own list of guests.
	CPUs       number `json:"cpus"`
	Storage    string `json:"storage"`
	PluginType string `json:"plugintype"`
	Shared     number `json:"shared"`
	Content    string `json:"content"`
	Disk       number `json:"disk"`
	MaxDisk    number `json:"maxdisk"`
}
