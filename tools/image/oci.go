package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// platformImage is the image of an architecture.
type platformImage struct {
	arch  string
	image v1.Image
}

// image returns the image of an architecture. It contains no timestamps.
func (c *config) image(arch string, files []file) (v1.Image, error) {
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.ConfigFile(base, &v1.ConfigFile{
		OS: "linux", Architecture: arch, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User:       fmt.Sprintf("%d:%d", user, user),
			Entrypoint: []string{"/usr/local/bin/numaform"},
			WorkingDir: "/var/lib/numaform",
			Env:        []string{"HOME=/var/lib/numaform", "PATH=/usr/local/bin"},
			Labels: map[string]string{
				"org.opencontainers.image.licenses": "Apache-2.0 AND MPL-2.0",
				"org.opencontainers.image.source":   "https://github.com/numaform/numaform",
				"org.opencontainers.image.title":    "numaform",
				"org.opencontainers.image.version":  c.version,
			},
		},
	})
	if err != nil {
		return nil, err
	}
	all := withParents(slices.Clone(files))
	for layer := range layers {
		of := slices.DeleteFunc(slices.Clone(all), func(f file) bool { return f.layer != layer })
		made, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return pack(of), nil }, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return nil, err
		}
		if image, err = mutate.AppendLayers(image, made); err != nil {
			return nil, err
		}
	}
	return image, nil
}

// pack returns a reader that generates the tar of a layer.
func pack(files []file) io.ReadCloser {
	reader, writer := io.Pipe()
	go func() { writer.CloseWithError(writeLayer(writer, files)) }()
	return reader
}

func writeLayer(to io.Writer, files []file) error {
	archive := tar.NewWriter(to)
	for _, f := range files {
		if err := addFile(archive, f); err != nil {
			return fmt.Errorf("packing %s: %w", f.path, err)
		}
	}
	return archive.Close()
}

func addFile(archive *tar.Writer, f file) error {
	header := &tar.Header{Format: tar.FormatUSTAR, Name: f.path, Mode: int64(f.mode.Perm()), Uid: f.owner, Gid: f.owner}
	if f.mode&fs.ModeSticky != 0 {
		header.Mode |= 0o1000
	}
	if f.mode.IsDir() {
		header.Typeflag, header.Name = tar.TypeDir, f.path+"/"
		return archive.WriteHeader(header)
	}
	header.Typeflag = tar.TypeReg
	content, size, err := f.open()
	if err != nil {
		return err
	}
	defer content.Close() //nolint:errcheck // only read
	header.Size = size
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(archive, content)
	return err
}

// open returns a file's content and its size.
func (f *file) open() (io.ReadCloser, int64, error) {
	if f.source == "" {
		return io.NopCloser(bytes.NewReader(f.content)), int64(len(f.content)), nil
	}
	opened, err := os.Open(f.source)
	if err != nil {
		return nil, 0, err
	}
	info, err := opened.Stat()
	if err != nil {
		return nil, 0, err
	}
	return opened, info.Size(), nil
}

// write packs the images as one OCI layout into the tar file.
func (c *config) write(images []platformImage) error {
	index := v1.ImageIndex(mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	for _, platform := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        platform.image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: platform.arch}},
		})
	}
	dir, err := os.MkdirTemp(filepath.Dir(c.out), ".layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := to.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          c.name + ":" + c.version,
		"org.opencontainers.image.ref.name": c.version,
	})); err != nil {
		return err
	}
	return packDirectory(dir, c.out)
}

// packDirectory writes a tar of a directory to a temporary file, then renames it to out.
func packDirectory(dir, out string) error {
	var files []file
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if entry.IsDir() {
			mode = fs.ModeDir | 0o755
		}
		files = append(files, file{path: filepath.ToSlash(name), mode: mode, source: path})
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.path, b.path) })
	partial, err := os.Create(out + ".partial")
	if err != nil {
		return err
	}
	if err := writeLayer(partial, files); err != nil {
		return err
	}
	if err := partial.Close(); err != nil {
		return err
	}
	return os.Rename(partial.Name(), out)
}
