// Package modules embeds the OpenTofu and Terraform modules that node files call, in every
// released version, so that a fleet can be written offline. The engine uses no other
// modules, except proxmox-template, which the files of templates call, and which users can
// also call from their own root modules. Start at Files, Hash and Released.
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

// template contains the module of templates without its tests.
//
//go:embed proxmox-template/*.tf
var template embed.FS

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
	// TemplateModule creates a VM template from a disk image. Node files do not call it.
	TemplateModule = "proxmox-template"
)

// Adopted is the hash of the modules that the files of adopted VMs call: its NodeModule is
// proxmox-adopted, which writes nothing but the description and the tags of a VM that
// another tool created. It is a released version like any other, so that it is not part of
// the modules of new VMs.
const Adopted = "d10aed4b9976bdd2"

// hashBytes is the number of bytes of the SHA-256 in a version's name.
const hashBytes = 8

// Names returns the names of all modules that node files call, sorted.
func Names() []string { return []string{NodeModule, GroupsModule} }

// Files returns the files of all modules by their paths, such as
// "proxmox-node/main.tf".
func Files() map[string][]byte { return below(embedded, ".") }

// TemplateFiles returns the files of the module of templates by their paths.
func TemplateFiles() map[string][]byte { return read(template, ".", TemplateModule) }

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

// below returns the files of all modules of nodes in a directory of an embedded tree, by
// path relative to that directory.
func below(tree embed.FS, dir string) map[string][]byte {
	files := map[string][]byte{}
	for _, module := range Names() {
		maps.Copy(files, read(tree, dir, module))
	}
	return files
}

// read returns the files of one module.
func read(tree embed.FS, dir, module string) map[string][]byte {
	files := map[string][]byte{}
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
