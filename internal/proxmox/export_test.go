package proxmox

// PathTemplate exports pathTemplate, because its test requires all kinds of paths, and
// a client requests only some.
func PathTemplate(path string) string { return pathTemplate(path) }
