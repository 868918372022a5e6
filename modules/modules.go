// Package modules carries the OpenTofu and Terraform modules that node files
// call, so that a fleet can be written without a network. It decides nothing:
// start at Files and Hash.
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

// FS holds the directory proxmox-node, without its tests.
//
//go:embed proxmox-node/*.tf
var FS embed.FS

// NodeModule is the name of the module that makes one node.
const NodeModule = "proxmox-node"

// hashBytes is how much of a SHA-256 names a module.
const hashBytes = 8

// Files returns the files of the node module by their names.
func Files() map[string][]byte {
	files := map[string][]byte{}
	entries, err := fs.ReadDir(FS, NodeModule)
	if err != nil {
		panic(fmt.Sprintf("reading embedded module %s: %v", NodeModule, err))
	}
	for _, entry := range entries {
		content, err := fs.ReadFile(FS, path.Join(NodeModule, entry.Name()))
		if err != nil {
			panic(fmt.Sprintf("reading embedded module %s: %v", NodeModule, err))
		}
		files[entry.Name()] = content
	}
	return files
}

// Hash returns the name of the node module that is carried.
func Hash() string { return HashOf(Files()) }

// HashOf returns the name of a module by its files: it changes with each byte
// of a name or a content, and with nothing else.
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
