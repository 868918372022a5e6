// Package bootstrap makes the documents that a new VM reads at its first boot, of
// templates and of what is known of the VM: user-data, meta-data, network-config
// and vendor-data of cloud-init's NoCloud source. It reaches nothing and knows no
// clock: what it makes holds secrets and is written by others. Start at Render.
package bootstrap

import (
	"fmt"
	"slices"
)

// The names of the documents, in Secrets of templates and on the seed.
const (
	UserData      = "user-data"
	MetaData      = "meta-data"
	NetworkConfig = "network-config"
	VendorData    = "vendor-data"
	// JoinCommand is no document: it is the script that a guest agent runs.
	JoinCommand = "join-command"
)

// Templates are the documents before values are put in. See Functions for what
// they may call, and Values for what they may name.
type Templates struct {
	UserData, MetaData, NetworkConfig, VendorData string
	// JoinCommand has no default.
	JoinCommand string
}

// Documents are rendered templates. They hold a join token: print them nowhere.
type Documents struct {
	UserData, MetaData, NetworkConfig []byte
	// VendorData is empty if there is none.
	VendorData []byte
}

// Files returns the documents by the names that the seed gives them.
func (d Documents) Files() map[string][]byte {
	files := map[string][]byte{UserData: d.UserData, MetaData: d.MetaData, NetworkConfig: d.NetworkConfig}
	if len(d.VendorData) > 0 {
		files[VendorData] = d.VendorData
	}
	return files
}

// String says how large the documents are and not what is in them.
func (d Documents) String() string {
	return fmt.Sprintf("documents of %d bytes", len(slices.Concat(d.UserData, d.MetaData, d.NetworkConfig, d.VendorData)))
}

// GoString is String.
func (d Documents) GoString() string { return d.String() }
