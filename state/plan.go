package state

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/hashicorp/terraform-exec/tfexec"
	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/state/guard"
)

// PlanOptions are the choices of one plan. The zero value is the fast path:
// everything, without asking Proxmox what is there.
type PlanOptions struct {
	// Refresh reads every VM of the state first and reports drift.
	Refresh bool
	// RefreshOnly plans to write into the state what Proxmox has, and nothing else.
	RefreshOnly bool
	// Unlocked plans without the state's lock: for a plan that is only read.
	Unlocked bool
	// Targets are addresses to restrict the plan to, for rescue only.
	Targets []string
	// Imports are VMs that exist and are missing in the state. The provider waits
	// up to 15 minutes for the guest agent of an imported VM that runs and has one
	// enabled, whatever its file says: give ctx a deadline, and retry.
	Imports []generator.Import
}

// Plan is a saved plan. It holds the state in clear: keep JSON in memory.
type Plan struct {
	// JSON is the plan as the guard judges it.
	JSON *tfjson.Plan
	// Raw is JSON as the engine printed it.
	Raw []byte
	// Text is the engine's account for people, without secrets.
	Text string
	// SHA256 is the hash of the saved plan: it names exactly this plan.
	SHA256 string
	// Digest is the hash of what the plan changes. A plan made again from the same
	// files and state has the same Digest, so an approval can be carried over.
	Digest string
	// Lineage and Serial name the state that the plan was made from; both are empty if
	// there was none, and if the plan is encrypted.
	Lineage string
	Serial  int64
	// Changes reports whether there is anything to apply.
	Changes bool
	// Lost are resources that this workspace left in the state and that are not
	// there any more: import those that exist.
	Lost []string

	file string
}

// Plan initializes the directory if need be, plans, and saves the plan.
func (w *Workspace) Plan(ctx context.Context, options PlanOptions) (*Plan, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.prepare(ctx); err != nil {
		return nil, err
	}
	file := w.nextPlanFile()
	var text string
	changes := false
	err := w.importing(options.Imports, func() error {
		return w.locking(ctx, "planning", func(ctx context.Context) error {
			out, err := w.command(ctx, "planning", false, func(tf *tfexec.Terraform) error {
				var err error
				changes, err = tf.Plan(ctx, append(planOptions(w.config, options, file), w.reattach(ctx))...)
				return err
			})
			text = out.stdout.String()
			return err
		})
	})
	if err != nil {
		return nil, withCleanup(err, file)
	}
	plan, err := w.read(ctx, file)
	if err != nil {
		return nil, withCleanup(err, file)
	}
	plan.Text, plan.Changes = w.hidden.hide(planText(text)), changes
	if plan.Lost, err = w.compare(plan.JSON, len(options.Targets) == 0 && !changes); err != nil {
		return nil, withCleanup(err, file)
	}
	return plan, nil
}

func withCleanup(err error, file string) error {
	if removeErr := removeFile(file); removeErr != nil {
		return fmt.Errorf("%w; removing the plan: %w", err, removeErr)
	}
	return err
}

func (w *Workspace) nextPlanFile() string {
	w.plans++
	return w.private(plansDir, strconv.Itoa(w.plans)+".tfplan")
}

// planOptions are the options of plan.
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

// read shows a saved plan and hashes it.
func (w *Workspace) read(ctx context.Context, file string) (*Plan, error) {
	sum, err := fileSum(file)
	if err != nil {
		return nil, fmt.Errorf("reading plan of %s: %w", w.config.Dir, err)
	}
	out, err := w.command(ctx, "reading plan of", false, func(tf *tfexec.Terraform) error {
		_, err := tf.ShowPlanFile(ctx, file, w.reattach(ctx))
		return err
	})
	if err != nil {
		return nil, err
	}
	plan, err := guard.Decode(out.stdout.Bytes())
	if err != nil {
		return nil, fmt.Errorf("reading plan of %s: %w", w.config.Dir, err)
	}
	digest, err := digestOf(plan)
	if err != nil {
		return nil, fmt.Errorf("reading plan of %s: %w", w.config.Dir, err)
	}
	lineage, serial, err := madeFrom(file)
	if err != nil {
		return nil, fmt.Errorf("reading plan of %s: %w", w.config.Dir, err)
	}
	return &Plan{
		JSON: plan, Raw: out.stdout.Bytes(), SHA256: sum, Digest: digest, Lineage: lineage, Serial: serial, file: file,
	}, nil
}

func fileSum(name string) (string, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:]), nil
}

// digestOf hashes what a plan changes and the values that it starts from.
func digestOf(plan *tfjson.Plan) (string, error) {
	content, err := json.Marshal([]any{plan.ResourceChanges, plan.ResourceDrift, plan.OutputChanges, plan.Variables})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:]), nil
}

// planText cuts off the advice after the plan that is for people at a prompt.
func planText(text string) string {
	if i := strings.Index(text, "\n─────"); i >= 0 {
		text = text[:i]
	}
	return strings.TrimSpace(text)
}

// importing runs a plan while import blocks stand in the directory. The saved
// plan holds the configuration, so they are not needed afterwards.
func (w *Workspace) importing(imports []generator.Import, plan func() error) error {
	if len(imports) == 0 {
		return plan()
	}
	content, err := generator.ImportBlocks(imports)
	if err != nil {
		return err
	}
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
