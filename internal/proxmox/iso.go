package proxmox

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
)

const (
	// seedLabel is the volume label by which guests find a NoCloud seed.
	seedLabel = "cidata"
	// maxSeed far exceeds what guests need and is harmless for a host.
	maxSeed = 4 << 20
	// isoBlock is the block size of an ISO image, in bytes.
	isoBlock = 2048
)

// seedImage returns an ISO image with files in its root, which all kinds of guests read
// under their full names: with Rock Ridge, and with Joliet. Its temporary files are
// readable only by this user, and deleted when it returns.
func seedImage(files map[string][]byte) (image []byte, err error) {
	size := 0
	for _, content := range files {
		size += len(content)
	}
	if size > maxSeed {
		return nil, fmt.Errorf("making the seed: its documents have %d bytes together: shorten them to %d", size, maxSeed)
	}
	dir, err := os.MkdirTemp("", "numaform-seed-")
	if err != nil {
		return nil, fmt.Errorf("making the seed: %w: set TMPDIR to a directory that can be written", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	content, target := filepath.Join(dir, "content"), filepath.Join(dir, "seed.iso")
	if err := writeAll(content, files); err != nil {
		return nil, fmt.Errorf("making the seed: %w", err)
	}
	if err := writeImage(target, content); err != nil {
		return nil, fmt.Errorf("making the seed: %w", err)
	}
	if image, err = os.ReadFile(target); err != nil {
		return nil, fmt.Errorf("making the seed: %w", err)
	}
	// A drive has whole blocks: guests could not read an incomplete last one.
	return append(image, make([]byte, (isoBlock-len(image)%isoBlock)%isoBlock)...), nil
}

func writeAll(dir string, files map[string][]byte) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), files[name], 0o600); err != nil {
			return err
		}
	}
	return nil
}

func writeImage(target, content string) (err error) {
	out, err := os.OpenFile(target, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	image, err := iso9660.Create(file.New(out, false), 0, 0, isoBlock, content)
	if err != nil {
		return err
	}
	return image.Finalize(iso9660.FinalizeOptions{RockRidge: true, Joliet: true, VolumeIdentifier: seedLabel})
}
