package state

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hashicorp/terraform-exec/tfexec"
)

// header identifies a state and its version.
type header struct {
	Version int    `json:"version"`
	Lineage string `json:"lineage"`
	Serial  uint64 `json:"serial"`
	// Encrypted replaces version and resources in a state that OpenTofu encrypted.
	Encrypted string `json:"encrypted_data"`
}

// saveErrored pushes a state that could not be saved, or sets it aside.
func (w *Workspace) saveErrored(ctx context.Context, recovery *Recovery) error {
	name := w.errored()
	content, local, err := w.readErrored(ctx, name)
	if err != nil {
		return err
	}
	pulled, err := w.pull(ctx)
	if err != nil {
		return err
	}
	remote, outgrown, err := w.weigh(content, local, pulled, recovery)
	var lineage *LineageError
	if errors.As(err, &lineage) {
		lineage.File = name
	}
	if err != nil {
		return err
	}
	if outgrown {
		return w.setAside(name, local, recovery)
	}
	if err := w.push(ctx, content, local); err != nil {
		return err
	}
	recovery.Pushed = true
	w.outside = append(w.outside, fmt.Sprintf("saved the state of %s that the backend had not taken: serial %d over %d, lineage %s",
		w.config.Dir, local.Serial, remote.Serial, local.Lineage))
	if err := os.Remove(name); err != nil {
		return fmt.Errorf("removing %s: %w", name, err)
	}
	return nil
}

// weigh compares an unsaved state with the backend's. It reports whether the backend's
// state is newer, and then which resources only the unsaved one has.
func (w *Workspace) weigh(content []byte, local header, pulled string, recovery *Recovery) (remote header, outgrown bool, err error) {
	if pulled == "" {
		return remote, false, nil
	}
	if err := json.Unmarshal([]byte(pulled), &remote); err != nil {
		return remote, false, fmt.Errorf("reading state of %s: %w", w.config.Dir, err)
	}
	if remote.Lineage == "" { // OpenTofu prints this if there is no state at all
		return remote, false, nil
	}
	if local.Lineage != "" && remote.Lineage != local.Lineage {
		return remote, false, &LineageError{Local: local.Lineage, Remote: remote.Lineage}
	}
	made, foreign, err := w.difference(content, []byte(pulled))
	if err != nil {
		return remote, false, fmt.Errorf("reading state of %s: %w", w.config.Dir, err)
	}
	// The very first state has no lineage if even reading the backend failed.
	if local.Lineage != "" && remote.Serial < local.Serial && len(foreign) == 0 {
		return remote, false, nil
	}
	recovery.Lost = made
	return remote, true, nil
}

// setAside moves a state that is older than the backend's to the superseded states.
func (w *Workspace) setAside(name string, local header, recovery *Recovery) error {
	serial := strconv.FormatUint(local.Serial, 10)
	aside := w.superseded("superseded-" + serial + ".tfstate")
	for n := 2; ; n++ {
		_, err := os.Lstat(aside)
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		if err != nil {
			return fmt.Errorf("setting %s aside: %w", name, err)
		}
		aside = w.superseded("superseded-" + serial + "-" + strconv.Itoa(n) + ".tfstate")
	}
	if err := os.Rename(name, aside); err != nil {
		return fmt.Errorf("setting %s aside: %w", name, err)
	}
	recovery.SetAside = aside
	return nil
}

// superseded returns the path for a state that is older than the backend's: the directory
// for errored states, or the private part of a directory that the caller owns.
func (w *Workspace) superseded(name string) string {
	if w.config.Errored != "" {
		return filepath.Join(filepath.Dir(w.config.Errored), name)
	}
	return w.private(name)
}

// difference returns the resources that only the unsaved state has, and the backend's
// resources that this workspace neither created nor was going to delete: another client
// created them meanwhile, and pushing would lose them.
func (w *Workspace) difference(errored, remote []byte) (made, foreign []string, err error) {
	ours, err := w.recall()
	if err != nil {
		return nil, nil, err
	}
	local, err := addressesOf(errored)
	if err != nil {
		return nil, nil, err
	}
	others, err := addressesOf(remote)
	if err != nil {
		return nil, nil, err
	}
	if ours == nil {
		ours = &known{Addresses: local}
	}
	return without(local, others), without(without(others, ours.Addresses), ours.Deleting), nil
}

// push saves a state to the backend.
func (w *Workspace) push(ctx context.Context, content []byte, local header) (err error) {
	if local.Lineage == "" {
		if content, err = withLineage(content); err != nil {
			return fmt.Errorf("saving the state of %s: %w", w.config.Dir, err)
		}
	}
	name := w.private("push.tfstate")
	if err := os.WriteFile(name, content, 0o600); err != nil {
		return fmt.Errorf("saving the state of %s: %w", w.config.Dir, err)
	}
	defer func() { err = errors.Join(err, removeFile(name)) }()
	return w.locking(ctx, "saving the state of", func(ctx context.Context) error {
		_, err := w.command(ctx, "saving the state of", true, func(tf *tfexec.Terraform) error { return tf.StatePush(ctx, name) })
		return err
	})
}

// withLineage adds a lineage to a state that has none.
func withLineage(content []byte) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(content, &fields); err != nil {
		return nil, err
	}
	lineage, err := json.Marshal(rand.Text())
	if err != nil {
		return nil, err
	}
	fields["lineage"] = lineage
	return json.Marshal(fields)
}

// readErrored reads an unsaved state and decrypts it.
func (w *Workspace) readErrored(ctx context.Context, name string) ([]byte, header, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, header{}, fmt.Errorf("reading state: %w", err)
	}
	var h header
	if err := json.Unmarshal(content, &h); err != nil {
		return nil, header{}, fmt.Errorf("reading state %s: %w: it was cut off; move it away, and import what it made", name, err)
	}
	if h.Encrypted != "" {
		if content, err = w.decrypt(ctx, content); err == nil {
			h = header{}
			err = json.Unmarshal(content, &h)
		}
		if err != nil {
			return nil, header{}, fmt.Errorf("decrypting state %s: %w", name, err)
		}
	}
	if h.Version != 4 {
		return nil, header{}, fmt.Errorf("reading state %s: not a state of format 4: move it away, and import what it made", name)
	}
	return content, h, nil
}

// decrypt decrypts a state with OpenTofu, which decrypts states in a backend, but not in
// a file to be pushed.
func (w *Workspace) decrypt(ctx context.Context, content []byte) (plain []byte, err error) {
	dir, err := os.MkdirTemp(w.private(), "decrypt-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.WriteFile(filepath.Join(dir, "terraform.tfstate"), content, 0o600); err != nil {
		return nil, err
	}
	client, err := tfexec.NewTerraform(dir, cmp.Or(w.config.Engine.Helper, w.config.Engine.Path))
	if err != nil {
		return nil, err
	}
	if err := client.SetEnv(w.env.engine); err != nil {
		return nil, err
	}
	out, err := client.StatePull(ctx)
	if err != nil {
		return nil, w.failure(ctx, "reading the state of", err, "")
	}
	return []byte(out), nil
}

// pull returns the backend's state, or "" if there is none.
func (w *Workspace) pull(ctx context.Context) (string, error) {
	out, err := w.command(ctx, "reading the state of", false, func(tf *tfexec.Terraform) error {
		_, err := tf.StatePull(ctx)
		return err
	})
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(out.stdout.String()), nil
}
