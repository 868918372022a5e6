package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// apt writes an apt repository with the Debian packages of the release. Without an OpenPGP
// key, the repository is unsigned. A web server can serve the directory as is.
func (c *config) apt() error {
	packages, err := filepath.Glob(filepath.Join(c.out, "*.deb"))
	if err != nil || len(packages) == 0 {
		return fmt.Errorf("%s contains no Debian package (%w): run make release", c.out, err)
	}
	lists := map[string]*strings.Builder{}
	var archs []string
	for _, path := range packages {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		control, err := exec.Command("dpkg-deb", "--field", path).Output() //nolint:gosec // a package of this release
		if err != nil {
			return fmt.Errorf("reading %s: %w", path, err)
		}
		arch := field(control, "Architecture")
		if lists[arch] == nil {
			lists[arch] = &strings.Builder{}
			archs = append(archs, arch) // Glob sorts
		}
		name := "pool/main/n/numaform-agent/" + filepath.Base(path)
		fmt.Fprintf(lists[arch], "%sFilename: %s\nSize: %d\nSHA256: %s\n\n", control, name, len(content), digestOf(content))
		if err := c.write("apt/"+name, content); err != nil {
			return err
		}
	}

	var sums strings.Builder
	for _, arch := range archs {
		name := "main/binary-" + arch + "/Packages"
		list := []byte(lists[arch].String())
		fmt.Fprintf(&sums, " %s %d %s\n", digestOf(list), len(list), name)
		if err := c.write("apt/dists/stable/"+name, list); err != nil {
			return err
		}
	}
	release := []byte("Origin: numaform\nLabel: numaform\nSuite: stable\nCodename: stable\nDate: " + strings.Replace(c.epoch.Format(time.RFC1123), "UTC", "+0000", 1) +
		"\nArchitectures: " + strings.Join(archs, " ") + "\nComponents: main\nDescription: numaform's agent for Proxmox VE hosts\nSHA256:\n" + sums.String())
	if err := c.write("apt/dists/stable/Release", release); err != nil {
		return err
	}
	if c.signer == nil || c.signer.apt == nil {
		return nil
	}
	signed, err := c.signer.inRelease(release, c.epoch)
	if err != nil {
		return err
	}
	var public bytes.Buffer
	if err := c.signer.apt.Serialize(&public); err != nil {
		return err
	}
	if err := c.write("apt/numaform.gpg", public.Bytes()); err != nil {
		return err
	}
	return c.write("apt/dists/stable/InRelease", signed)
}

// field returns a field of a control file, or "" if the file does not have it.
func field(control []byte, name string) string {
	for line := range strings.Lines(string(control)) {
		if value, ok := strings.CutPrefix(line, name+": "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
