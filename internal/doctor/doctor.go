// Package doctor checks the requirements for creating VMs that join as nodes, such as
// engine, provider, credentials, privileges, storages, templates, VMIDs, topology and
// locks. Each finding reports a result and, for a problem, its fix. The checks change
// nothing and share their code with the real decisions; only Repair changes files. Start at
// Run.
package doctor

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/notify"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// Status is the result of a check.
type Status string

// The statuses. A skipped check depends on a failed one.
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
	// Values are the values in What, in their order. Grouped merges findings that differ only
	// in them.
	Values []topology.Value `json:"-"`
	// Fix is the hint for a problem, or empty. Its JSON key is unchanged since the first
	// release.
	Fix string `json:"mend,omitempty"`
	// Commands are the commands in What and Fix that change something, in the order in which
	// to run them.
	Commands []Command `json:"commands,omitempty"`
}

// Config is the input of the checks.
type Config struct {
	// File is the path of the configuration, and Broken the error of reading it.
	File   string
	Broken error

	ClusterID string
	Engine    state.EngineConfig
	PluginDir string
	// StateDir is the directory for data of this machine.
	StateDir string
	// SecretFiles are the files with secrets that the configuration names.
	SecretFiles []string
	Regions     []Region
	// Classes are the classes in manifests or a cluster, PoolMistakes the mistakes in their
	// NodePools, and ClassesBroken the error of reading them. Named is set if manifests or a cluster were given.
	Classes       []v1alpha1.ProxmoxNodeClass
	PoolMistakes  []scheduling.PoolMistake
	ClassesBroken error
	Named         bool
	// Templates reads the Secret of a templatesRef.
	Templates func(ctx context.Context, ref v1alpha1.SecretReference) (map[string][]byte, error)
	// Types are the instance types; nil means the default types.
	Types []scheduling.InstanceType
	// Fleet reads the desired fleet, and Locks the locks of fleet and states.
	Fleet func(ctx context.Context) (fleet.Fleet, error)
	Locks func(ctx context.Context) ([]Lock, error)
	// Notifications are the targets of notifications.
	Notifications []Notification
	// Clock defaults to the real clock.
	Clock clock.PassiveClock
}

// Region is a Proxmox cluster in the configuration.
type Region struct {
	Name     topology.RegionName
	Insecure bool
	VMIDs    fleet.VMIDRange
	// TemplateVMIDs is the range of VMIDs of templates; zero means that numaform creates
	// none.
	TemplateVMIDs fleet.VMIDRange
	// Client is nil if its creation failed with the error Broken.
	Client *proxmox.Client
	Broken error
	// Snapshot reads the region and adds the configured facts about its hosts.
	Snapshot func(ctx context.Context) (*topology.Snapshot, error)
}

// Notification is a target of notifications.
type Notification struct {
	Name, Type string
	// Probe checks whether the target can be reached, without sending a message.
	Probe func(ctx context.Context) error
}

// Lock is the state of the lock of the fleet or of a Terraform state.
type Lock struct {
	Where string
	// Err names the holder or explains why the holder is unknown; nil means a free lock.
	Err error
	// What describes a free lock.
	What string
}

// Report contains the findings in the order of the checks.
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

// Line formats the finding in one line: where, what, and the fix, as far as they are known.
func (f Finding) Line() string {
	line := f.What
	switch {
	case f.What == "":
		line = f.Where
	case f.Where != "":
		line = f.Where + ": " + line
	}
	if f.Fix != "" {
		line += ": " + f.Fix
	}
	return strings.Join(strings.Fields(line), " ")
}

// Run runs all checks. It continues after a failed check, and skips the checks that depend on
// it. If the configuration cannot be read, it checks only the engine and the provider.
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
	e.secretFiles()
	switch {
	case config.ClassesBroken != nil:
		e.failed("classes", "", config.ClassesBroken)
	case !config.Named:
		e.add("classes", OK, "", "without manifests or a cluster, checks of templates and storages are general",
			"to check the requirements of your ProxmoxNodeClasses, pass them with -f or --kubeconfig")
	case len(config.Classes) == 0:
		e.add("classes", Warn, "", "no ProxmoxNodeClass exists, so numaform cannot create nodes", "create a ProxmoxNodeClass: see docs/crds/proxmoxnodeclass.md")
	}
	for i := range config.Regions {
		e.region(ctx, &config.Regions[i])
	}
	e.classes()
	e.nodePools()
	e.joins(ctx)
	e.hostAgents(ctx)
	e.firewalls(ctx)
	e.notifications(ctx)

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
	// seen contains the readable regions.
	seen topology.Snapshot
	// lacking contains the hosts without a host agent that a class requires. The value is true
	// if a class therefore has no host at all.
	lacking map[topology.HostID]bool
}

// add adds a finding. fix may be empty.
func (e *examination) add(check string, status Status, where, what, fix string, commands ...Command) {
	e.report = append(e.report, Finding{Check: check, Status: status, Where: where, What: what, Fix: fix, Commands: commands})
}

func (e *examination) ok(check, where, what string) { e.add(check, OK, where, what, "") }

// failed adds an error. If the error ends with a hint, the hint becomes the fix.
func (e *examination) failed(check, where string, err error) {
	what, fix := err.Error(), ""
	var commands []Command
	var refused *proxmox.Error
	if errors.As(err, &refused) && refused.Hint != "" {
		if before, ok := strings.CutSuffix(what, ": "+refused.Hint); ok {
			what, fix = before, refused.Hint
		}
		commands = commandsOf(refused)
	}
	e.add(check, Fail, where, what, fix, commands...)
}

// skip adds a skipped finding for each check, because another check failed.
func (e *examination) skip(where, because string, checks ...string) {
	for _, check := range checks {
		e.add(check, Skip, where, "skipped because "+because+" failed", "")
	}
}

// probeTimeout limits the check of one target of notifications.
const probeTimeout = 10 * time.Second

// notifications checks whether the targets of notifications can be reached. numaform works
// without them.
func (e *examination) notifications(ctx context.Context) {
	for _, target := range e.config.Notifications {
		probing, cancel := context.WithTimeout(ctx, probeTimeout)
		err := target.Probe(probing)
		cancel()
		if err != nil {
			e.add("notify", Warn, target.Name, err.Error(), "to send a test message, run numaform notify test "+target.Name)
			continue
		}
		what := "can be reached; no message was sent"
		if target.Type == notify.Matrix || target.Type == notify.Mail {
			what = "accepts the login; no message was sent"
		}
		e.ok("notify", target.Name, what)
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

// list joins texts with commas.
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

// set is a set of texts.
type set map[string]bool

// sorted returns the non-empty texts of a set.
func (s set) sorted() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s)), func(text string) bool { return text == "" })
}
