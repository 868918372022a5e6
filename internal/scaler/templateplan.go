package scaler

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/state/guard"
)

// planTemplates plans the templates of a host, or removes them from the state if the host
// left the Proxmox cluster.
func (s *Scaler) planTemplates(ctx context.Context, change *Change, plan *RootPlan) (err error) {
	t := change.templates
	if t.gone {
		return forgetTemplates(ctx, t, plan)
	}
	options := state.PlanOptions{Refresh: true}
	if plan.Plan, err = plan.workspace.Plan(ctx, options); err != nil {
		return fmt.Errorf("planning the templates of %s: %w", plan.Host, err)
	}

	// Import the templates that exist and that the state lacks. Their parts are created in a
	// change before: Proxmox does not download an image again, but the creation of a part
	// together with the import would replace the VM. A VM that the state has at another
	// address is not lost: the guard denies the plan.
	known, recorded := map[string]bool{}, map[string]bool{}
	for _, rc := range plan.Plan.JSON.ResourceChanges {
		known[rc.Address] = rc.Change.Before != nil
		if before, _ := rc.Change.Before.(map[string]any); before != nil && rc.Type == guard.ResourceType {
			recorded[fmt.Sprint(before["vm_id"])] = true
		}
	}
	var imports []fleet.Template
	for _, one := range t.filed[t.host] {
		same := func(other fleet.Template) bool { return other.VMID == one.VMID }
		parts := generator.TemplateParts(&one)
		switch {
		case slices.ContainsFunc(t.intent.Absent, same):
			leftover, err := s.leftover(ctx, t, &one, known)
			if err != nil {
				return err
			}
			if !leftover {
				continue
			}
			options.Targets = append(options.Targets, parts[1])
		case !slices.ContainsFunc(slices.Concat(t.intent.Keep, t.intent.Delete), same),
			known[generator.TemplateImport(&one).Address], recorded[fmt.Sprint(one.VMID)]:
			continue
		case !known[parts[0]]:
			options.Targets = append(options.Targets, parts...)
		default:
			options.Imports = append(options.Imports, generator.TemplateImport(&one))
		}
		imports = append(imports, one)
	}
	if len(imports) == 0 {
		t.keepFiles(change, plan.Plan.JSON)
		s.check(ctx, plan)
		return nil
	}

	// Nothing else changes, so the files stay as they are.
	change.Why = "restore the state of the templates of " + plan.Host.String()
	change.AfterFiles = change.BeforeFiles
	t.intent = guard.TemplateIntent{ClusterID: t.intent.ClusterID, VMIDs: t.intent.VMIDs, Targeted: true}
	if len(options.Targets) > 0 {
		options.Imports = nil
		t.intent.Keep = imports
	} else {
		for i := range imports {
			if liveTemplate(t.snapshot.Host(t.host), &imports[i], t.intent.ClusterID) {
				t.intent.Import = append(t.intent.Import, imports[i])
			} else {
				t.intent.Incomplete = append(t.intent.Incomplete, imports[i])
			}
			options.Targets = append(options.Targets, generator.TemplateCall(&imports[i]))
		}
	}
	options.Files = map[string][]byte{}
	for i := range imports {
		name := generator.TemplateFile(&imports[i])
		options.Files[name] = change.BeforeFiles[name]
	}
	if plan.Plan, err = plan.workspace.Plan(ctx, options); err != nil {
		return fmt.Errorf("planning to restore the state of the templates of %s: %w", plan.Host, err)
	}
	s.check(ctx, plan)
	return nil
}

// leftover reports whether the image of a template without a VM exists, but not in the state:
// the process that downloaded it was killed. The state gets it as it gets a lost one: Proxmox
// compares its checksum and does not download it again. An image that no record of this
// installation describes may belong to another owner, because anyone who may write the fleet's
// files can describe it.
func (s *Scaler) leftover(ctx context.Context, c *templateChange, t *fleet.Template, known map[string]bool) (bool, error) {
	live := s.region(c.host.Region).Live
	if live == nil || known[generator.TemplateParts(t)[1]] || c.snapshot.Host(c.host).Storage(t.Image.Storage) == nil {
		return false, nil
	}
	images, err := live.Images(ctx, c.host.Host, t.Image.Storage)
	if err != nil {
		return false, fmt.Errorf("looking for the image of template %d on %s: %w", t.VMID, c.host, err)
	}
	if !slices.Contains(images, t.ImageVolume()) {
		return false, nil
	}
	history, err := s.History(ctx, time.Time{})
	if err != nil {
		return false, fmt.Errorf("looking for the record of template %d on %s: %w", t.VMID, c.host, err)
	}
	return slices.ContainsFunc(verified(history), func(e audit.Entry) bool {
		return slices.ContainsFunc(e.Change.Templates, func(plan audit.TemplatePlan) bool {
			return plan.Host == t.Host && slices.Contains(plan.Create, audit.TemplateRef{Name: t.Name, VMID: t.VMID})
		})
	}), nil
}

// keepFiles keeps the files of removed templates while a plan still deletes a part of them:
// the files are the only record of it after a crash or a failure. The next change removes
// them.
func (c *templateChange) keepFiles(change *Change, plan *tfjson.Plan) {
	for _, one := range slices.Concat(c.intent.Delete, c.intent.Absent) {
		if slices.ContainsFunc(plan.ResourceChanges, func(rc *tfjson.ResourceChange) bool {
			return strings.HasPrefix(rc.Address, generator.TemplateCall(&one)+".") && !rc.Change.Actions.NoOp()
		}) {
			name := generator.TemplateFile(&one)
			change.AfterFiles[name] = change.BeforeFiles[name]
		}
	}
}
