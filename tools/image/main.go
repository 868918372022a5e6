// Command image builds numaform's image for each architecture, without Docker: the tree of
// its files, and one OCI layout with the images of all architectures in a tar file. The
// images are reproducible: the same inputs give the same bytes. The command does not build
// programs: make image does.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// config is the input of the image build.
type config struct {
	// dir contains a directory of programs for each architecture, and receives the trees.
	dir string
	// archs are Go's names of the architectures.
	archs []string
	// licenses is the directory of the license texts, with a directory for each program.
	licenses string
	// providerVersion is part of the provider's path.
	providerVersion string
	// name and version are the name and version of the image.
	name, version string
	// out is the path of the tar file.
	out string
}

func main() {
	c, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if err := c.pack(); err != nil {
		fmt.Fprintf(os.Stderr, "packing the image: %v\n", err)
		os.Exit(1)
	}
}

func parse(args []string) (config, error) {
	var c config
	var archs string
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.StringVar(&c.dir, "dir", "", "directory with a directory of programs for each architecture")
	flags.StringVar(&archs, "archs", "amd64 arm64", "architectures")
	flags.StringVar(&c.licenses, "licenses", "", "directory with the programs' licenses")
	flags.StringVar(&c.providerVersion, "provider-version", "", "version of the Proxmox provider")
	flags.StringVar(&c.name, "name", "ghcr.io/numaform/numaform", "the image's name")
	flags.StringVar(&c.version, "version", "", "numaform's version, which becomes the tag")
	flags.StringVar(&c.out, "out", "", "tar file to write")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	c.archs = strings.Fields(archs)
	if c.dir == "" || c.licenses == "" || c.providerVersion == "" || c.version == "" || c.out == "" || flags.NArg() > 0 {
		return c, errors.New("image: -dir, -licenses, -provider-version, -version and -out are required, and arguments are not allowed: run make image")
	}
	return c, nil
}

// pack writes the trees and the tar file.
func (c *config) pack() error {
	images := make([]platformImage, 0, len(c.archs))
	for _, arch := range c.archs {
		files, err := c.files(arch)
		if err != nil {
			return err
		}
		if err := writeTree(filepath.Join(c.dir, arch, "rootfs"), files); err != nil {
			return fmt.Errorf("writing the tree of %s: %w", arch, err)
		}
		image, err := c.image(arch, files)
		if err != nil {
			return fmt.Errorf("building the image of %s: %w", arch, err)
		}
		images = append(images, platformImage{arch, image})
	}
	return c.write(images)
}
