// Package bootstrap renders the documents that a new VM reads at its first boot, from
// templates and the VM's data: user-data, meta-data, network-config and vendor-data for
// cloud-init's NoCloud source. It does no I/O and uses no clock. The documents contain
// secrets; the caller writes them. Start at Render.
package bootstrap

import (
	"fmt"
	"slices"
)

// The names of the documents, in template Secrets and in the seed.
const (
	UserData      = "user-data"
	MetaData      = "meta-data"
	NetworkConfig = "network-config"
	VendorData    = "vendor-data"
	// JoinCommand is not a document: it is the script that a guest agent runs.
	JoinCommand = "join-command"
)

// Templates are the unrendered documents. See Functions for the functions they may call,
// and Values for their data.
type Templates struct {
	UserData, MetaData, NetworkConfig, VendorData string
	// JoinCommand has no default.
	JoinCommand string
}

// Documents are rendered templates. They contain a join token: never print them.
type Documents struct {
	UserData, MetaData, NetworkConfig []byte
	// VendorData is empty if there is none.
	VendorData []byte
}

// Files returns the documents by their file names in the seed.
func (d Documents) Files() map[string][]byte {
	files := map[string][]byte{UserData: d.UserData, MetaData: d.MetaData, NetworkConfig: d.NetworkConfig}
	if len(d.VendorData) > 0 {
		files[VendorData] = d.VendorData
	}
	return files
}

// String returns the sizes of the documents, without their content.
func (d Documents) String() string {
	return fmt.Sprintf("documents of %d bytes", len(slices.Concat(d.UserData, d.MetaData, d.NetworkConfig, d.VendorData)))
}

// GoString returns String.
func (d Documents) GoString() string { return d.String() }
