package scaler_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/internal/testenv"
)

// killStep is a moment in a change of templates: a call of the provider to Proxmox, or one of
// the times in the constants below.
type killStep struct {
	name string
	when string
	call pvesim.Fault
	// lost is set if the state is the one from before the apply: no backend has a later one.
	lost bool
}

// Moments outside an apply.
const (
	whenBegun   = "begun"
	whenApplied = "applied"
)

// The steps of the creation of a template and of its deletion, in order.
var (
	makeSteps = []killStep{ //nolint:gochecknoglobals // a constant
		{name: "begun, not applied", when: whenBegun},
		{name: "during download", call: pvesim.Fault{Method: "POST", Path: `/download-url$`, After: true}},
		{name: "image downloaded, no VM", call: pvesim.Fault{Method: "POST", Path: `^/nodes/[^/]+/qemu$`}},
		{name: "VM created, no template yet", lost: true, call: pvesim.Fault{Method: "POST", Path: `/qemu/91\d+/template$`}},
		{name: "template created, state not written", lost: true, call: pvesim.Fault{Method: "POST", Path: `/qemu/91\d+/template$`, After: true}},
		{name: "template applied, no outcome yet", when: whenApplied},
	}
	deleteSteps = []killStep{ //nolint:gochecknoglobals // a constant
		{name: "deletion begun, not applied", when: whenBegun},
		{name: "during deletion of the VM", call: pvesim.Fault{Method: "DELETE", Path: `/qemu/91\d+/?$`, After: true}},
		{name: "VM deleted, image not", call: pvesim.Fault{Method: "DELETE", Path: `/content/`}},
		{name: "VM deleted, image not, state not written", lost: true, call: pvesim.Fault{Method: "DELETE", Path: `/content/`}},
		{name: "image deleted, state not written", lost: true, call: pvesim.Fault{Method: "DELETE", Path: `/content/`, After: true}},
		{name: "deletion applied, no outcome yet", when: whenApplied},
	}
)

var errKilled = errors.New("killed")

// killed is a store whose process is killed at a step: everything on the disk is as it was at
// that moment, and no later request reaches Proxmox.
type killed struct {
	store.Store
	t    *testing.T
	w    *world
	step killStep
	// disk contains copies of the fleet, of its state directory, and of the latter from
	// before the apply.
	disk string
	// reached is closed at the step. faults remove the faults that the kill added.
	reached chan struct{}
	once    sync.Once
	faults  []func()
}

func (k *killed) Begin(ctx context.Context, base store.Revision, files generator.Files, change audit.Change) error {
	if k.dead() {
		return errKilled
	}
	k.copy(k.w.stateDir, "before")
	err := k.Store.Begin(ctx, base, files, change)
	if k.step.when == whenBegun {
		k.die()
		return errKilled
	}
	return err
}

func (k *killed) End(ctx context.Context, outcome audit.Outcome) error {
	if k.step.when == whenApplied {
		k.die()
	}
	if k.dead() {
		return errKilled
	}
	return k.Store.End(ctx, outcome)
}

func (k *killed) dead() bool {
	select {
	case <-k.reached:
		return true
	default:
		return false
	}
}

func (k *killed) die() {
	k.once.Do(func() {
		for _, method := range []string{"POST", "PUT", "DELETE"} {
			k.faults = append(k.faults, k.w.sim.AddFault(pvesim.Fault{Method: method, Disconnect: true}))
		}
		k.copy(k.w.config.Dir, "fleet")
		k.copy(k.w.stateDir, "state")
		close(k.reached)
	})
}

func (k *killed) copy(from, name string) {
	to := filepath.Join(k.disk, name)
	err := os.RemoveAll(to)
	if out, failed := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil || failed != nil {
		k.t.Errorf("copying %s: %v, %v\n%s", from, err, failed, out)
	}
}

// killAt runs a writer with a request until it is killed at a step, and restores its disk.
func (w *world) killAt(t *testing.T, step killStep, request scaler.TemplateRequest) {
	t.Helper()
	k := &killed{Store: w.store, t: t, w: w, step: step, disk: t.TempDir(), reached: make(chan struct{})}
	if step.when == "" {
		fault := step.call
		fault.Times, fault.Disconnect = 1, true
		fault.Hit = func(ctx context.Context, _ pvesim.Call) {
			k.die()
			<-ctx.Done()
		}
		defer w.sim.AddFault(fault)()
	}
	config := w.config
	config.Store = k
	w.Scaler = scaler.New(config)
	writer, stop := w.runUntil(t, nil)
	writer.SetTemplates("debian", request)
	deadline := time.NewTimer(3 * time.Minute)
	defer deadline.Stop()
	select {
	case <-k.reached:
	case <-deadline.C:
		states, _ := writer.Templates("debian")
		t.Errorf("%s: not reached: %+v", step.name, states)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	if err := testenv.LoseDisk(t.Context(), w.stateDir); err != nil {
		t.Error(err)
	}
	<-stopped
	for _, remove := range k.faults {
		remove()
	}
	if t.Failed() {
		t.FailNow()
	}
	for name, dir := range map[string]string{"fleet": w.config.Dir, "state": w.stateDir} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(k.disk, name), dir); err != nil {
			t.Fatal(err)
		}
	}
	if step.lost {
		states := filepath.Join(w.stateDir, "states")
		if err := os.RemoveAll(states); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(k.disk, "before", "states"), states); err != nil {
			t.Fatal(err)
		}
	}
	w.Scaler = scaler.New(w.config)
}

// TestWriterTemplatesKilled kills the writer at each step of the creation and of the deletion
// of a template: the next one creates it exactly once, or deletes it with its image and disk,
// whether or not the state has what was done. `make test` kills at two steps.
func TestWriterTemplatesKilled(t *testing.T) {
	t.Parallel()
	want, deleted := templates(t, oldImage, first), scaler.TemplateRequest{Deleted: true}
	gone := func(states []scaler.TemplateState) bool { return len(states) == 0 }
	for i, made := range makeSteps {
		if !enginetest.EveryCase() && i != 1 {
			continue
		}
		t.Run(made.name+"/delete", func(t *testing.T) {
			w := newTemplateWorld(t)
			w.killAt(t, made, want)
			writer, stop := w.runUntil(t, nil)
			writer.SetTemplates("debian", deleted)
			templatesUntil(t, writer, "deleted", gone)
			stop()
			w.noTemplates(t)
		})
	}
	for i, removed := range deleteSteps {
		made := makeSteps[i]
		if !enginetest.EveryCase() && i != 2 {
			continue
		}
		t.Run(made.name+"/create/"+removed.name, func(t *testing.T) {
			w := newTemplateWorld(t)
			w.killAt(t, made, want)
			writer, stop := w.runUntil(t, nil)
			writer.SetTemplates("debian", want)
			templatesUntil(t, writer, "created", allReady(1))
			stop()
			var found []string
			for _, volume := range w.sim.Volumes("pve-1") {
				if strings.Contains(volume, "910") {
					found = append(found, volume)
				}
			}
			if guest, ok := w.sim.Guest(9100); !ok || guest.Config["template"] != "1" || len(found) != 2 {
				t.Errorf("template %+v, volumes %v: want one template with one image and one disk", guest, found)
			}

			w.killAt(t, removed, deleted)
			writer, stop = w.runUntil(t, nil)
			writer.SetTemplates("debian", deleted)
			templatesUntil(t, writer, "deleted", gone)
			stop()
			w.noTemplates(t)
		})
	}
}
