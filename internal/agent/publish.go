package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/numaform/numaform/internal/sysfs"
)

// maxNotes is how long Proxmox lets a host's notes be.
const maxNotes = 65536

// Pvesh runs Proxmox' own command with these arguments, and returns what it prints.
type Pvesh func(ctx context.Context, args ...string) ([]byte, error)

// RunPvesh is the Pvesh of a Proxmox host.
func RunPvesh(ctx context.Context, args ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, "/usr/bin/pvesh", args...) //nolint:gosec // arguments are ours, and no shell reads them
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("running pvesh %s %s: %w: %s", args[0], args[1], err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// Publish writes the exact topology of this host into its notes in Proxmox, where
// numaform reads it, and reports whether that was needed. What else stands there stays.
func Publish(ctx context.Context, root, host string, pvesh Pvesh) (bool, error) {
	file, err := sysfs.Collect(os.DirFS(root))
	if err != nil {
		return false, err
	}
	path := "/nodes/" + host + "/config"
	text, err := pvesh(ctx, "get", path, "--output-format", "json")
	if err != nil {
		return false, fmt.Errorf("reading the notes of %s: %w", host, err)
	}
	var config struct {
		Description string `json:"description"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return false, fmt.Errorf("reading the notes of %s: %w", host, err)
	}
	notes, err := file.PublishIn(config.Description)
	if err != nil {
		return false, err
	}
	if strings.TrimSpace(notes) == strings.TrimSpace(config.Description) {
		return false, nil
	}
	if len(notes) > maxNotes {
		return false, fmt.Errorf("publishing topology: the notes of %s would have %d bytes of %d: shorten them, or use "+
			"`numaform topology collect` and machines in numaform.yaml", host, len(notes), maxNotes)
	}
	if _, err := pvesh(ctx, "set", path, "--description", notes); err != nil {
		return false, fmt.Errorf("writing the notes of %s: %w", host, err)
	}
	return true, nil
}
