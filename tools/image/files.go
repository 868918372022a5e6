package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is numaform's user ID, in the image and in the chart.
const user = 65532

// The layers, from rarely changed to changed in every version.
const (
	layerBase = iota
	layerEngine
	layerNumaform
	layers
)

// file is a file or directory of the image. It belongs to root unless owner is set.
type file struct {
	path  string // without the leading slash
	mode  fs.FileMode
	owner int
	layer int
	// content is the file's content, or source the file to read it from.
	content []byte
	source  string
}

// program is a program built by make.
type program struct {
	name string
	// path is its path in the image.
	path  string
	layer int
}

func (c *config) programs(arch string) []program {
	provider := "terraform-provider-proxmox"
	mirror := fmt.Sprintf("usr/share/terraform/plugins/registry.opentofu.org/bpg/proxmox/%s/linux_%s/", c.providerVersion, arch)
	return []program{
		{"tofu", "usr/local/bin/tofu", layerEngine},
		{provider, mirror + provider + "_v" + c.providerVersion, layerEngine},
		{"numaform", "usr/local/bin/numaform", layerNumaform},
	}
}

// files returns the files of the image of an architecture, without their parent
// directories.
func (c *config) files(arch string) ([]file, error) {
	files := []file{
		{path: "etc/passwd", mode: 0o644, content: fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\nnumaform:x:%d:%d:numaform:/var/lib/numaform:/sbin/nologin\n", user, user)},
		{path: "etc/group", mode: 0o644, content: fmt.Appendf(nil, "root:x:0:\nnumaform:x:%d:\n", user)},
		{path: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: authorities()},
		{path: "etc/numaform", mode: fs.ModeDir | 0o755},
		{path: "tmp", mode: fs.ModeDir | fs.ModeSticky | 0o777},
		{path: "var/lib/numaform", mode: fs.ModeDir | 0o755, owner: user},
	}
	for _, p := range c.programs(arch) {
		source := filepath.Join(c.dir, arch, p.name)
		if err := checkProgram(source, arch); err != nil {
			return nil, err
		}
		files = append(files, file{path: p.path, mode: 0o755, layer: p.layer, source: source})
	}
	carried, err := c.provider(arch)
	if err != nil {
		return nil, err
	}
	files = append(files, file{path: "usr/share/numaform/providers.json", mode: 0o644, layer: layerEngine, content: carried})
	texts, err := c.licenseFiles()
	return append(files, texts...), err
}

// provider describes the image's provider in the form that numaform reads: by the hash of
// its files, as in the engines' lock files. Its directory contains the program only.
func (c *config) provider(arch string) ([]byte, error) {
	name := "terraform-provider-proxmox"
	content, err := os.ReadFile(filepath.Join(c.dir, arch, name))
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%x  %s\n", sha256.Sum256(content), name+"_v"+c.providerVersion))
	return json.MarshalIndent(map[string]any{"providers": []map[string]string{{
		"address": "registry.opentofu.org/bpg/proxmox", "version": c.providerVersion, "platform": "linux_" + arch,
		"hash": "h1:" + base64.StdEncoding.EncodeToString(sum[:]),
	}}}, "", "  ")
}

// licenseFiles returns the license texts of the programs. It is an error if there are none.
func (c *config) licenseFiles() ([]file, error) {
	found, err := filepath.Glob(filepath.Join(c.licenses, "*", "*"))
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s contains no license: add PROGRAM/LICENSE for each program", c.licenses)
	}
	files := make([]file, 0, len(found))
	for _, path := range found {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		name := filepath.Join("usr/share/licenses", filepath.Base(filepath.Dir(path)), filepath.Base(path))
		files = append(files, file{path: name, mode: 0o644, content: content})
	}
	return files, nil
}

// authorities returns Mozilla's root certificates in PEM, from the pinned version of the
// module. It omits roots with constraints, because a PEM file cannot express constraints.
func authorities() []byte {
	var text bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			text.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return text.Bytes()
}
