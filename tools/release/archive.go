package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// platforms are the platforms of numaform; numaform-agent runs only on Linux.
var platforms = []string{"linux_amd64", "linux_arm64", "darwin_amd64", "darwin_arm64"}

// entry is a file of an archive.
type entry struct {
	name    string
	mode    int64
	content []byte
}

// archives packs numaform with its man pages for each platform, and numaform-agent for each
// platform of Linux.
func (c *config) archives() error {
	pages, err := c.manPages()
	if err != nil {
		return err
	}
	for _, platform := range platforms {
		if err := c.archive("numaform", platform, pages, "LICENSE"); err != nil {
			return err
		}
		if !strings.HasPrefix(platform, "linux_") {
			continue
		}
		if err := c.archive("numaform-agent", platform, nil, "LICENSE", "packaging/numaform-agent.yaml", "packaging/numaform-agent.service",
			"packaging/numaform-agent-publish.service", "packaging/numaform-agent-publish.timer"); err != nil {
			return err
		}
	}
	return nil
}

// archiveName returns the name of a program's archive.
func (c *config) archiveName(program, platform string) string {
	return program + "_" + c.version + "_" + platform + ".tar.gz"
}

// manPages returns the man pages of numaform's commands.
func (c *config) manPages() ([]entry, error) {
	paths, err := filepath.Glob(filepath.Join(c.programs, "man", "*.1")) // sorted
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s contains no man page: run make release", filepath.Join(c.programs, "man"))
	}
	var pages []entry
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		pages = append(pages, entry{name: "man/man1/" + filepath.Base(path), mode: 0o644, content: content})
	}
	return pages, nil
}

// archive packs a program, with more entries and other files of the repository, into an
// archive.
func (c *config) archive(program, platform string, more []entry, others ...string) error {
	content, err := os.ReadFile(filepath.Join(c.programs, platform, program))
	if err != nil {
		return err
	}
	entries := []entry{{name: program, mode: 0o755, content: content}}
	for _, other := range others {
		content, err := os.ReadFile(filepath.Join(c.root, filepath.FromSlash(other)))
		if err != nil {
			return err
		}
		entries = append(entries, entry{name: path.Base(other), mode: 0o644, content: content})
	}
	packed, err := tarGzip(append(entries, more...), c.epoch)
	if err != nil {
		return err
	}
	return c.write(c.archiveName(program, platform), packed)
}

// tarGzip packs files, all with the same time and owner.
func tarGzip(entries []entry, at time.Time) ([]byte, error) {
	var packed bytes.Buffer
	compressed, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	archive := tar.NewWriter(compressed)
	for _, e := range entries {
		header := &tar.Header{Format: tar.FormatPAX, Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Size: int64(len(e.content)), ModTime: at}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(e.content); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(archive.Close(), compressed.Close()); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}

// maxChart limits the size of an unpacked chart. It is much larger than real charts.
const maxChart = 16 << 20

// untarGzip returns the files of an archive, in its order. It returns an error if an entry
// is not a regular file.
func untarGzip(packed []byte) ([]entry, error) {
	compressed, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	var entries []entry
	archive := tar.NewReader(io.LimitReader(compressed, maxChart))
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, err
		}
		if header.Typeflag != tar.TypeReg {
			return nil, fmt.Errorf("%s is not a regular file", header.Name)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry{name: header.Name, mode: 0o644, content: content})
	}
}

// sha256Of returns the checksum of a file, in hex.
func sha256Of(path string) (string, error) {
	opened, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer opened.Close() //nolint:errcheck // only read
	hash := sha256.New()
	if _, err := io.Copy(hash, opened); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
