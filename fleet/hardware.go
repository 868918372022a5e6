package fleet

// Hardware is the virtual hardware in which a VM differs from its template. An empty field
// means the template's.
type Hardware struct {
	Machine string `json:"machine,omitempty"`
	// Display is the type of the display, and DisplayMiB its memory.
	Display    string    `json:"display,omitempty"`
	DisplayMiB int       `json:"display_mib,omitempty"`
	Watchdog   *Watchdog `json:"watchdog,omitempty"`
	NoTablet   bool      `json:"no_tablet,omitempty"`
	// CPUFlags are added to the CPU type, as +flag, or removed from it, as -flag.
	CPUFlags []string `json:"cpu_flags,omitempty"`
}

// Watchdog is a virtual watchdog.
type Watchdog struct {
	Model  string `json:"model"`
	Action string `json:"action"`
}
