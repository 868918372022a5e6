package state

import (
	"archive/zip"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/hashicorp/terraform-exec/tfexec"
	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/state/guard"
)

// PlanOptions are the options of one plan. The zero value is the fast path: plan
// everything, without refreshing from Proxmox.
type PlanOptions struct {
	// Refresh first reads the VMs in the state, or only the targets, from Proxmox and
	// reports drift.
	Refresh bool
	// RefreshOnly plans only to update the state from Proxmox.
	RefreshOnly bool
	// Unlocked plans without the state's lock, for a plan that will not be applied.
	Unlocked bool
	// Targets restricts the plan to these addresses.
	Targets []string
	// Files are added to Config.Files, if that is set. A plan with targets needs only the
	// files of its targets. Its cost then does not depend on the size of the root; with all
	// files, the engine would load and validate every module call.
	Files map[string][]byte
	// Imports are existing VMs that are missing from the state. If the guest agent of a
	// running VM is enabled in Proxmox, whatever the VM's file says, the provider waits up
	// to 15 minutes for the agent: give ctx a deadline, and retry.
	Imports []generator.Import
}

// Plan is a saved plan. It contains the state in clear text: keep JSON in memory.
type Plan struct {
	// JSON is the plan as the guard checks it.
	JSON *tfjson.Plan
	// Text is the engine's description for people, without secrets.
	Text string
	// SHA256 is the hash of the saved plan and identifies it.
	SHA256 string
	// Digest is the hash of the plan's changes. Planning again from the same files and
	// state gives the same Digest, so an approval remains valid.
	Digest string
	// Lineage and Serial identify the state that the plan was made from; both are zero if
	// there was none, or if the plan is encrypted.
	Lineage string
	Serial  int64
	// Changes reports whether there is anything to apply.
	Changes bool
	// Provider is the provider that made the plan; nil if the plan needs none.
	Provider *Provider
	// Lost are resources that this workspace left in the state but that are no longer in
	// it: import them if they exist.
	Lost []string

	file string
}

// Plan initializes the directory if necessary, plans, and saves the plan.
func (w *Workspace) Plan(ctx context.Context, options PlanOptions) (plan *Plan, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.files = options.Files
	if err := w.prepare(ctx); err != nil {
		return nil, err
	}
	w.plans++
	file := w.private(plansDir, strconv.Itoa(w.plans)+".tfplan")
	defer func() {
		if err != nil {
			if removeErr := removeFile(file); removeErr != nil {
				err = fmt.Errorf("%w; removing the plan: %w", err, removeErr)
			}
		}
	}()
	var text string
	changes := false
	err = w.importing(options.Imports, func() error {
		return w.locking(ctx, "planning", func(ctx context.Context) error {
			out, err := w.provided(ctx, "planning", func(tf *tfexec.Terraform, at *tfexec.ReattachOption) error {
				var err error
				changes, err = tf.Plan(ctx, append(planOptions(w.config, options, file), at)...)
				return err
			})
			if err == nil {
				text = out.stdout.String()
			}
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	if plan, err = w.read(ctx, file); err != nil {
		return nil, err
	}
	plan.Text, plan.Changes = w.hidden.Replace(planText(text)), changes
	if w.provider != nil {
		plan.Provider = w.provider.provider
	}
	if plan.Lost, err = w.compare(plan.JSON, len(options.Targets) == 0 && !changes); err != nil {
		return nil, err
	}
	return plan, nil
}

// planOptions converts a workspace's configuration and o to options of the engine's plan.
func planOptions(c Config, o PlanOptions, file string) []tfexec.PlanOption {
	options := []tfexec.PlanOption{
		tfexec.Out(file), tfexec.Refresh(o.Refresh || o.RefreshOnly), tfexec.RefreshOnly(o.RefreshOnly), tfexec.Parallelism(c.Parallelism),
		tfexec.Lock(!o.Unlocked), tfexec.LockTimeout(c.LockTimeout.String()),
	}
	for _, target := range o.Targets {
		options = append(options, tfexec.Target(target))
	}
	return options
}

// read reads a saved plan with the engine, and hashes it.
func (w *Workspace) read(ctx context.Context, file string) (*Plan, error) {
	const operation = "reading plan of"
	failed := func(err error) (*Plan, error) { return nil, fmt.Errorf("%s %s: %w", operation, w.config.Dir, err) }
	sum, err := fileSum(file)
	if err != nil {
		return failed(err)
	}
	out, err := w.provided(ctx, operation, func(tf *tfexec.Terraform, at *tfexec.ReattachOption) error {
		_, err := tf.ShowPlanFile(ctx, file, at)
		return err
	})
	if err != nil {
		return nil, err
	}
	plan := &Plan{SHA256: sum, file: file}
	if plan.JSON, err = guard.Decode(out.stdout.Bytes()); err != nil {
		return failed(err)
	}
	if plan.Digest, err = digestOf(plan.JSON); err != nil {
		return failed(err)
	}
	if plan.Lineage, plan.Serial, err = madeFrom(file); err != nil {
		return failed(err)
	}
	return plan, nil
}

func fileSum(name string) (string, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:]), nil
}

// digestOf hashes the plan's changes and the values that they start from. Unchanged
// resources and the engine do not count, so a plan of some of a host's VMs has the same
// digest as a plan of all of them.
func digestOf(plan *tfjson.Plan) (string, error) {
	type changed struct {
		Address         string
		PreviousAddress string
		DeposedKey      string
		Provider        string
		Actions         tfjson.Actions
		Importing       *tfjson.Importing
		Before, After   any
		Unknown         any
	}
	var changes []changed
	for _, rc := range plan.ResourceChanges {
		if rc == nil || rc.Change == nil {
			continue // the guard denies it
		}
		moved := rc.PreviousAddress != "" && rc.PreviousAddress != rc.Address
		if c := rc.Change; !c.Actions.NoOp() || c.Importing != nil || moved || rc.DeposedKey != "" {
			changes = append(changes, changed{
				Address: rc.Address, PreviousAddress: rc.PreviousAddress, DeposedKey: rc.DeposedKey, Provider: rc.ProviderName,
				Actions: c.Actions, Importing: c.Importing, Before: c.Before, After: c.After, Unknown: c.AfterUnknown,
			})
		}
	}
	slices.SortFunc(changes, func(a, b changed) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.DeposedKey, b.DeposedKey))
	})
	content, err := json.Marshal([]any{changes, plan.OutputChanges, plan.Variables})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:]), nil
}

// planText removes the engine's advice for interactive use, which follows the plan.
func planText(text string) string {
	if i := strings.Index(text, "\n─────"); i >= 0 {
		text = text[:i]
	}
	return strings.TrimSpace(text)
}

// importing runs plan while import blocks are in the directory. The saved plan contains
// the configuration, so they are not needed afterwards.
func (w *Workspace) importing(imports []generator.Import, plan func() error) error {
	if len(imports) == 0 {
		return plan()
	}
	content, err := generator.ImportBlocks(imports)
	if err != nil {
		return err
	}
	w.imports = content
	defer func() { w.imports = nil }()
	name := filepath.Join(w.config.Dir, generator.ImportFile)
	if err := renameio.WriteFile(name, content, 0o600); err != nil {
		return fmt.Errorf("writing import blocks %s: %w", name, err)
	}
	err = plan()
	if removeErr := removeFile(name); removeErr != nil && err == nil {
		err = fmt.Errorf("removing import blocks %s: %w", name, removeErr)
	}
	return err
}

// stateInPlan is the member of a saved plan that contains the state it was made from.
const stateInPlan = "tfstate"

// madeFrom returns the lineage and the serial of the state that a saved plan was made from.
// Both are zero if there was no state, or if the plan is encrypted.
func madeFrom(file string) (lineage string, serial int64, err error) {
	archive, err := zip.OpenReader(file)
	if errors.Is(err, zip.ErrFormat) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, err
	}
	defer archive.Close() //nolint:errcheck // it was only read
	member, err := archive.Open(stateInPlan)
	if errors.Is(err, fs.ErrNotExist) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, err
	}
	defer member.Close() //nolint:errcheck // it was only read
	var state struct {
		Lineage string `json:"lineage"`
		Serial  int64  `json:"serial"`
	}
	if err := json.NewDecoder(member).Decode(&state); err != nil {
		return "", 0, fmt.Errorf("reading the state in the plan: %w", err)
	}
	return state.Lineage, state.Serial, nil
}
