// Package modules carries the OpenTofu and Terraform modules that node files
// call, so that a fleet can be written without a network. proxmox-template, which
// lies beside them, is for people's own roots and is not carried. It decides
// nothing: start at Files and Hash.
package modules

import (
	"crypto/sha256"
	"embed"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
)

// embedded holds the modules without their tests.
//
//go:embed proxmox-node/*.tf proxmox-security-groups/*.tf
var embedded embed.FS

// The names of the modules.
const (
	// NodeModule makes one node.
	NodeModule = "proxmox-node"
	// GroupsModule gives a node its firewall security groups.
	GroupsModule = "proxmox-security-groups"
)

// hashBytes is how much of a SHA-256 names the modules.
const hashBytes = 8

// Names returns the names of all modules, sorted.
func Names() []string { return []string{NodeModule, GroupsModule} }

// Files returns the files of all modules by their paths, such as
// "proxmox-node/main.tf".
func Files() map[string][]byte {
	files := map[string][]byte{}
	for _, module := range Names() {
		entries, err := fs.ReadDir(embedded, module)
		if err != nil {
			panic(fmt.Sprintf("reading embedded module %s: %v", module, err))
		}
		for _, entry := range entries {
			name := path.Join(module, entry.Name())
			if files[name], err = fs.ReadFile(embedded, name); err != nil {
				panic(fmt.Sprintf("reading embedded module %s: %v", module, err))
			}
		}
	}
	return files
}

// Hash returns the name of the modules that are carried. One name is for all of
// them, so that it says of a VM which modules its file calls.
func Hash() string { return HashOf(Files()) }

// HashOf returns the name of modules by their files: it changes with each byte of
// a path or a content, and with nothing else.
func HashOf(files map[string][]byte) string {
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for _, part := range [][]byte{[]byte(name), files[name]} {
			sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
			sum.Write(part)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)[:hashBytes])
}
