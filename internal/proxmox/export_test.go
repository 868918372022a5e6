package proxmox

// PathTemplate is pathTemplate: which paths a client asks for depends on what it
// finds, and a test of what they become needs all kinds.
func PathTemplate(path string) string { return pathTemplate(path) }
