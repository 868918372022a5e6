package proxmox

// PathTemplate exports pathTemplate: which paths a client requests depends on what it
// finds, and its test needs all kinds.
func PathTemplate(path string) string { return pathTemplate(path) }
