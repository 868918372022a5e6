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
	Uptime   number `json:"uptime"`
	// CPUs is set instead of MaxCPU in a host's own list of guests.
	CPUs       number `json:"cpus"`
	Storage    string `json:"storage"`
	PluginType string `json:"plugintype"`
	Shared     number `json:"shared"`
	Content    string `json:"content"`
	Disk       number `json:"disk"`
	MaxDisk    number `json:"maxdisk"`
}
