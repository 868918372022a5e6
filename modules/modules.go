// Package modules embeds the OpenTofu and Terraform modules that node files call, in every
// released version, so that a fleet can be written offline. The engine uses no other
// modules. The module proxmox-template, in the same directory, is for users' root modules
// and is not embedded. Start at Files, Hash and Released.
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

// embedded contains the modules without their tests.
//
//go:embed proxmox-node/*.tf proxmox-security-groups/*.tf
var embedded embed.FS

// released contains every released version of the modules, each in a directory named by its
// hash. A version is never changed or deleted, because node files may call it. make verify
// compares the directory with the branch main.
//
//go:embed released
var released embed.FS

// releasedDir is the directory embedded in released.
const releasedDir = "released"

// The names of the modules.
const (
	// NodeModule creates the VM of one node.
	NodeModule = "proxmox-node"
	// GroupsModule sets a node's firewall security groups.
	GroupsModule = "proxmox-security-groups"
)

// hashBytes is the number of bytes of the SHA-256 in a version's name.
const hashBytes = 8

// Names returns the names of all modules, sorted.
func Names() []string { return []string{NodeModule, GroupsModule} }

// Files returns the files of all modules by their paths, such as
// "proxmox-node/main.tf".
func Files() map[string][]byte { return below(embedded, ".") }

// Released returns the files of a version of the modules by its hash, with paths as in
// Files, and false if this numaform does not embed that version.
func Released(hash string) (map[string][]byte, bool) {
	if !slices.Contains(Hashes(), hash) {
		return nil, false
	}
	return below(released, path.Join(releasedDir, hash)), true
}

// Hashes returns the hashes of all released versions, sorted.
func Hashes() []string {
	entries, err := fs.ReadDir(released, releasedDir)
	if err != nil {
		panic(fmt.Sprintf("reading embedded modules: %v", err))
	}
	hashes := make([]string, len(entries))
	for i, entry := range entries {
		hashes[i] = entry.Name()
	}
	return hashes
}

// below returns the files of all modules in a directory of an embedded tree, by path
// relative to that directory.
func below(tree embed.FS, dir string) map[string][]byte {
	files := map[string][]byte{}
	for _, module := range Names() {
		entries, err := fs.ReadDir(tree, path.Join(dir, module))
		if err != nil {
			panic(fmt.Sprintf("reading embedded module %s: %v", module, err))
		}
		for _, entry := range entries {
			name := path.Join(module, entry.Name())
			if files[name], err = fs.ReadFile(tree, path.Join(dir, name)); err != nil {
				panic(fmt.Sprintf("reading embedded module %s: %v", module, err))
			}
		}
	}
	return files
}

// Hash returns the version of the embedded modules. One hash covers all of them, so that
// it identifies the modules that a VM's file calls.
func Hash() string { return HashOf(Files()) }

// HashOf returns the hash of modules. It depends only on the paths and contents of their
// files.
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
