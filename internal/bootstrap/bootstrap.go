// Package bootstrap renders the documents that a new VM reads at its first boot, from
// templates and the VM's data: user-data, meta-data, network-config and vendor-data for
// cloud-init's NoCloud source. It does no I/O and uses no clock. The documents contain
// secrets; the caller writes them. Start at Render.
package bootstrap

import "fmt"

// The names of the documents, in template Secrets and in the seed.
const (
	UserData      = "user-data"
	MetaData      = "meta-data"
	NetworkConfig = "network-config"
	VendorData    = "vendor-data"
	// JoinCommand is not a document: it is the script that a guest agent runs.
	JoinCommand = "join-command"
)

// Templates are the unrendered documents and the join command, by name. See Functions for the
// functions they may call, and Values for their data.
type Templates map[string]string

// Documents are rendered templates by name, which is the file name in the seed. They contain a
// join token: never print them.
type Documents map[string][]byte

// String returns the sizes of the documents, without their content.
func (d Documents) String() string {
	size := 0
	for _, content := range d {
		size += len(content)
	}
	return fmt.Sprintf("documents of %d bytes", size)
}

// GoString returns String.
func (d Documents) GoString() string { return d.String() }
