// Package doctor checks everything that numaform needs before it can create a VM: engine,
// provider, credentials, privileges, storages, templates, VMIDs, topology and locks. Each
// finding says whether it is in order and, if not, how to fix it. The doctor changes
// nothing, and uses the code that makes the real decisions. Start at Run.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/utils/clock"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// Status is the result of a check.
type Status string

// The statuses. A skipped check depends on one that failed.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
	Skip Status = "skip"
)

// Finding is the result of one check in one place.
type Finding struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	// Where is the file, region, host or path, or empty.
	Where string `json:"where,omitempty"`
	What  string `json:"what"`
	// Fix is the hint how to fix it, or empty.
	Fix string `json:"mend,omitempty"` // the key of the first release
}

// Config is the input of the checks.
type Config struct {
	// File is the configuration's path, and Broken is why it cannot be used.
	File   string
	Broken error

	ClusterID string
	Engine    state.EngineConfig
	PluginDir string
	// StateDir is the directory of data that belongs to this machine and not to the fleet.
	StateDir string
	Regions  []Region
	// Classes are the classes of the named manifests or cluster; ClassesBroken is why they
	// cannot be read. Named is false if none were named.
	Classes       []v1alpha1.ProxmoxNodeClass
	ClassesBroken error
	Named         bool
	// Templates reads the Secret of a class' templatesRef.
	Templates func(ctx context.Context, ref v1alpha1.SecretReference) (map[string][]byte, error)
	// Types are the instance types; nil means the default types.
	Types []scheduling.InstanceType
	// Fleet reads the desired fleet, and Locks the holders of the locks of fleet and
	// states.
	Fleet func(ctx context.Context) (fleet.Fleet, error)
	Locks func(ctx context.Context) ([]Lock, error)
	// Clock defaults to the real clock.
	Clock clock.PassiveClock
}

// Region is one Proxmox cluster of the configuration.
type Region struct {
	Name     topology.RegionName
	Insecure bool
	VMIDs    fleet.VMIDRange
	// Client is nil if it could not be created; Broken is why.
	Client *proxmox.Client
	Broken error
	// Snapshot reads the region, combined with the configuration of its hosts.
	Snapshot func(ctx context.Context) (*topology.Snapshot, error)
}

// Lock is the state of the lock of the fleet or of a Terraform state.
type Lock struct {
	Where string
	// Err names the holder, or why the holder is unknown; nil means that the lock is free.
	Err error
	// What explains why a lock is free, or is empty.
	What string
}

// Report is the findings in the order of the checks.
type Report []Finding

// Count returns the number of findings with the status.
func (r Report) Count(status Status) int {
	count := 0
	for _, finding := range r {
		if finding.Status == status {
			count++
		}
	}
	return count
}

// Line formats the finding in one line: where, what, and how to fix it.
func (f Finding) Line() string {
	line := f.What
	if f.Where != "" {
		line = f.Where + ": " + line
	}
	if f.Fix != "" {
		line += ": " + f.Fix
	}
	return strings.Join(strings.Fields(line), " ")
}

// Run runs all checks. A failed check does not stop the others. Checks that depend on it
// are reported as skipped.
func Run(ctx context.Context, config Config) Report {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	e := &examination{config: config, lacking: map[topology.HostID]bool{}}
	if config.Broken != nil {
		for line := range strings.Lines(config.Broken.Error()) {
			e.failed("config", config.File, errors.New(strings.TrimSpace(line)))
		}
		e.engine(ctx)
		e.skip("", "config", "state", "reach", "privilege", "host", "topology", "template", "storage", "vmid", "marker", "lock")
		return e.report
	}
	e.ok("config", config.File, "can be read")
	e.engine(ctx)
	e.stateDir()
	switch {
	case config.ClassesBroken != nil:
		e.failed("classes", "", config.ClassesBroken)
	case !config.Named:
		e.add("classes", OK, "", "no manifests and no cluster are named, so templates and storages are looked at in general",
			"name them with -f or --kubeconfig to look for what your ProxmoxNodeClasses need")
	case len(config.Classes) == 0:
		e.add("classes", Warn, "", "there is no ProxmoxNodeClass, so no node can be made", "write one: docs/crds/proxmoxnodeclass.md")
	}
	for i := range config.Regions {
		e.region(ctx, &config.Regions[i])
	}
	e.classes()
	e.joins(ctx)
	e.hostAgents(ctx)
	e.firewalls(ctx)

	locks, err := config.Locks(ctx)
	if err != nil {
		e.failed("lock", "", err)
	}
	for _, lock := range locks {
		if lock.Err != nil {
			e.failed("lock", lock.Where, lock.Err)
		} else {
			e.ok("lock", lock.Where, lock.What)
		}
	}
	return e.report
}

// examination collects findings.
type examination struct {
	config Config
	report Report
	// seen has the regions that could be read.
	seen topology.Snapshot
	// lacking are the hosts without a host agent that a class needs; true means that this
	// leaves a class without any host.
	lacking map[topology.HostID]bool
}

// add adds a finding. fix may be empty.
func (e *examination) add(check string, status Status, where, what, fix string) {
	e.report = append(e.report, Finding{Check: check, Status: status, Where: where, What: what, Fix: fix})
}

func (e *examination) ok(check, where, what string) { e.add(check, OK, where, what, "") }

// failed adds an error, which ends with the hint how to fix it.
func (e *examination) failed(check, where string, err error) {
	what, fix := err.Error(), ""
	var refused *proxmox.Error
	if errors.As(err, &refused) && refused.Hint != "" {
		if before, ok := strings.CutSuffix(what, ": "+refused.Hint); ok {
			what, fix = before, refused.Hint
		}
	}
	e.add(check, Fail, where, what, fix)
}

// skip reports checks as skipped because another one failed.
func (e *examination) skip(where, because string, checks ...string) {
	for _, check := range checks {
		e.add(check, Skip, where, "not looked at, as "+because+" failed", "")
	}
}

// usedIn returns the classes that may have nodes in a region.
func (e *examination) usedIn(r *Region) []*v1alpha1.ProxmoxNodeClass {
	var classes []*v1alpha1.ProxmoxNodeClass
	for i := range e.config.Classes {
		if region := e.config.Classes[i].Spec.Region; region == "" || region == string(r.Name) {
			classes = append(classes, &e.config.Classes[i])
		}
	}
	return classes
}

// list joins texts for a line.
func list[T ~string](texts []T) string {
	if len(texts) == 0 {
		return "none"
	}
	line := string(texts[0])
	for _, text := range texts[1:] {
		line += ", " + string(text)
	}
	return line
}

// count formats a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// set is a set of texts.
type set map[string]bool

// sorted returns the texts of a set but "".
func (s set) sorted() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s)), func(text string) bool { return text == "" })
}
