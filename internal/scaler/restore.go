package scaler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// A restore writes a fleet, its history and its states from a backup. It never creates,
// changes or deletes a VM, and it leaves no file or state by which a later change would do so
// without a request: the file of a VM that no longer exists is left out, because the VM would
// be created again, and a VM that is newer than the backup is removed from the states, because
// a VM in a state without a file is deleted once its Node is drained.

// Fate is what a restore does about a VM.
type Fate string

// The fates of VMs.
const (
	// FateExists VMs exist with the key of their file.
	FateExists Fate = "exists"
	// FateUnknown VMs may exist, so their files are restored.
	FateUnknown Fate = "unknown"
	// FateGone VMs no longer exist: their files are left out.
	FateGone Fate = "gone"
	// FateNewer VMs have this fleet's marker, and the backup has no file of them.
	FateNewer Fate = "newer"
)

// RestoredVM is a VM of a backup, or of Proxmox, with its fate.
type RestoredVM struct {
	Name string
	VMID fleet.VMID
	Host topology.HostID
	Fate Fate
	// Note explains the fate.
	Note string
	key  fleet.Key
}

// Restoration is a backup, compared with the fleet and with Proxmox. Nothing is written until
// Restore.
type Restoration struct {
	// Differences are the files to be written, and Records and Outcomes the number of records
	// to be added.
	Differences       []store.Difference
	Records, Outcomes int
	// Newer are the changes that only the fleet's own history has: then fleet and history
	// stay as they are.
	Newer []string
	// VMs are sorted by name.
	VMs []RestoredVM

	archive store.Archive
	base    store.Revision
	content *store.Content
	change  *Change
	states  map[string][]byte
	// roots are the hosts whose states may contain newer VMs, sorted.
	roots []topology.HostID
}

// DivergedError reports that neither the fleet nor a backup of it is the older one.
type DivergedError struct{ Ours, Theirs string }

func (e *DivergedError) Error() string {
	return fmt.Sprintf("the fleet's history has changes that the backup lacks, such as %s, and the backup has changes that the history lacks, such as %s: nothing was written: "+
		"two installations changed the same fleet after one of them was restored; restore a backup into an empty fleet, or keep the fleet as it is", e.Ours, e.Theirs)
}

// ProposeRestore compares a backup with the fleet and with Proxmox. states are the states by
// the directories of their roots.
func (s *Scaler) ProposeRestore(ctx context.Context, snapshot *topology.Snapshot, content *store.Content, states map[string][]byte) (*Restoration, error) {
	if err := content.Check(); err != nil {
		return nil, err
	}
	archive, err := store.ArchiveOf(s.config.Store)
	if err != nil {
		return nil, err
	}
	current, err := archive.Content(ctx)
	if err != nil {
		return nil, err
	}
	before, err := s.parse(current.Files)
	if err != nil {
		return nil, err
	}
	missing, ahead, err := content.Since(current.Records)
	if err != nil {
		return nil, err
	}
	r := &Restoration{base: store.RevisionOf(current.Files), Newer: ahead, archive: archive}
	switch {
	case len(ahead) > 0 && len(missing) > 0:
		return nil, &DivergedError{Ours: ahead[len(ahead)-1], Theirs: missing[len(missing)-1].ID}
	case len(ahead) > 0:
		content, states = current, nil
	}
	for _, record := range missing {
		if record.Change != nil {
			r.Records++
		}
		if record.Outcome != nil {
			r.Outcomes++
		}
	}

	after, err := s.parse(content.Files)
	if err != nil {
		return nil, err
	}
	r.content = &store.Content{Files: maps.Clone(content.Files), Records: content.Records}
	r.compare(after.VMs, snapshot, s.config.ClusterID)
	if len(ahead) == 0 {
		for i := range after.VMs {
			if r.fate(after.VMs[i].Key) == FateGone {
				delete(r.content.Files, generator.NodeFile(&after.VMs[i]))
			}
		}
	}
	if after, err = s.parse(r.content.Files); err != nil {
		return nil, err
	}
	r.Differences = store.Compare(current.Files, r.content.Files)
	r.states = states

	// A newer VM can be in the state of any host.
	hosts := slices.Concat(before.AllHosts(), after.AllHosts())
	for _, vm := range r.VMs {
		if vm.Fate == FateNewer && s.configured(vm.Host.Region) {
			hosts = append(hosts, vm.Host)
		}
	}
	slices.SortFunc(hosts, topology.HostID.Compare)
	r.roots = slices.Compact(hosts)
	after.Hosts = r.roots
	after.Sort()
	r.change = newChange(&reading{fleet: after, files: r.content.Files}, snapshot)
	return r, s.render(r.change)
}

// Empty reports whether there is nothing to write to the fleet and its history.
func (r *Restoration) Empty() bool { return len(r.Differences)+r.Records+r.Outcomes == 0 }

func (r *Restoration) fate(key fleet.Key) Fate {
	i := slices.IndexFunc(r.VMs, func(vm RestoredVM) bool { return vm.key == key })
	if i < 0 {
		return FateUnknown
	}
	return r.VMs[i].Fate
}

// compare sets the fates of a backup's VMs, and of VMs that the backup does not have.
func (r *Restoration) compare(vms []fleet.VM, snapshot *topology.Snapshot, clusterID string) {
	index := indexGuests(snapshot, clusterID)
	alive := index.keys()
	known := map[fleet.Key]bool{}
	for i := range vms {
		vm := &vms[i]
		known[vm.Key] = true
		one := RestoredVM{Name: vm.Name, VMID: vm.VMID, Host: vm.Host, key: vm.Key}
		one.Fate, one.Note = index.fateOf(vm, alive, snapshot)
		r.VMs = append(r.VMs, one)
	}
	for _, guest := range index.guests {
		if guest.ClusterID != clusterID || known[fleet.Key(guest.Key)] || guest.Template {
			continue
		}
		r.VMs = append(r.VMs, RestoredVM{
			Name: guest.Name, VMID: fleet.VMID(guest.VMID), Host: guest.host, Fate: FateNewer, key: fleet.Key(guest.Key),
			Note: "no file names it",
		})
	}
	slices.SortFunc(r.VMs, func(a, b RestoredVM) int { return strings.Compare(a.Name, b.Name) })
}

// fateOf returns the fate of a VM of a backup. alive are the keys of all guests.
func (g guestIndex) fateOf(vm *fleet.VM, alive map[fleet.Key]bool, snapshot *topology.Snapshot) (Fate, string) {
	guest, listed := g.with(vm)
	region := regionOf(snapshot, vm.Host.Region)
	switch {
	case listed && g.is(guest, vm) && guest.host == vm.Host:
		return FateExists, ""
	case listed && g.is(guest, vm):
		return FateExists, fmt.Sprintf("it is on %s now", guest.host)
	case alive[vm.Key]:
		return FateUnknown, "another VMID has its key"
	case listed && g.mayBe(guest, vm) != nil:
		return FateUnknown, g.mayBe(guest, vm).Error()
	case listed && guest.inCreation():
		return FateUnknown, fmt.Sprintf("guest %d is being created", guest.VMID)
	case region.HidesGuests:
		return FateUnknown, "its region was not read, or the credential cannot see all guests"
	case !region.Quorate:
		return FateUnknown, "its Proxmox cluster has lost its quorum"
	}
	return FateGone, "Proxmox has no VM with its key"
}

// Restore writes the fleet, the history and the states of a backup, while it holds the
// fleet's lock, and returns a line for each root. If it is interrupted, it can be repeated.
func (s *Scaler) Restore(ctx context.Context, r *Restoration) (lines []string, err error) {
	unlock, err := s.config.Store.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	step := func(name string) error {
		if s.restoring == nil {
			return nil
		}
		return s.restoring(name)
	}

	var at places
	if len(r.roots) > 0 || len(r.states) > 0 {
		if s.config.Engine == nil {
			return nil, ErrNoEngine
		}
		if at, err = s.permanentPlaces(); err != nil {
			return nil, err
		}
	}
	// First the states, because the files decide what is to be deleted from them.
	if len(r.Newer) == 0 && slices.ContainsFunc(r.VMs, func(vm RestoredVM) bool { return vm.Fate == FateNewer }) {
		for _, host := range r.roots {
			if err := step("forget " + host.String()); err != nil {
				return lines, err
			}
			forgotten, err := s.restoreRoot(ctx, r, r.change, at, host, nil)
			lines = append(lines, forgotten...)
			if err != nil {
				return lines, err
			}
		}
	}
	if err := step("fleet"); err != nil {
		return lines, err
	}
	if !r.Empty() {
		if err := r.archive.Restore(ctx, r.base, r.content); err != nil {
			return lines, err
		}
	}
	written, err := s.restoreStates(ctx, r, at, step)
	return append(lines, written...), err
}

// restoreStates writes the states of a backup.
func (s *Scaler) restoreStates(ctx context.Context, r *Restoration, at places, step func(name string) error) (lines []string, err error) {
	templates, err := s.templateRoots(r.change)
	if err != nil {
		return lines, err
	}
	for _, root := range slices.Sorted(maps.Keys(r.states)) {
		if err := step("state " + root); err != nil {
			return lines, err
		}
		change := r.change
		host, exists := hostOf(root, r.roots)
		if t := templates[root]; t != nil {
			host, exists, change = t.host, true, t.in(r.change)
		}
		if !exists {
			lines = append(lines, root+": the fleet has no such root; its state was not written")
			continue
		}
		written, err := s.restoreRoot(ctx, r, change, at, host, r.states[root])
		lines = append(lines, written...)
		if err != nil {
			return lines, err
		}
	}
	return lines, nil
}

// restoreRoot writes the state of a root, unless content is nil, and removes newer VMs from
// the state.
func (s *Scaler) restoreRoot(ctx context.Context, r *Restoration, change *Change, at places, host topology.HostID, content []byte) (lines []string, err error) {
	workspace, err := s.workspace(change, at, host)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, workspace.Close()) }()
	name := host.String()
	if change.templates != nil {
		name = "templates of " + name
	}
	recovery, err := workspace.Recover(ctx)
	if err != nil {
		return nil, err
	}
	for _, outside := range recovery.Outside {
		lines = append(lines, name+": "+outside)
	}
	if content != nil {
		kept, err := workspace.Restore(ctx, content)
		switch {
		case err != nil:
			return lines, err
		case kept != "":
			lines = append(lines, fmt.Sprintf("%s: its state was not written: %s", name, kept))
		default:
			lines = append(lines, name+": wrote its state")
		}
	}
	if change.templates != nil {
		return lines, nil
	}
	resources, err := workspace.Resources(ctx)
	if err != nil {
		return lines, err
	}
	for _, vm := range r.VMs {
		addresses := addressesIn(resources, &vm, s.config.ClusterID)
		if vm.Fate != FateNewer || len(addresses) == 0 {
			continue
		}
		if err := workspace.Forget(ctx, addresses...); err != nil {
			return lines, err
		}
		lines = append(lines, fmt.Sprintf("%s: removed VM %s from its state, because it has no file: the VM was not changed", name, vm.Name))
	}
	return lines, nil
}

// addressesIn returns the resources of a VM in a state: the VM with its marker, and its
// security groups.
func addressesIn(resources []state.Resource, vm *RestoredVM, clusterID string) (addresses []string) {
	calls := generator.Calls(&fleet.VM{Name: vm.Name, Spec: fleet.Spec{SecurityGroups: []string{"any"}}})
	found := false
	for i := range resources {
		marker, marked := fleet.ParseMarker(resources[i].Description)
		its := marked && marker.ClusterID == clusterID && marker.Key == vm.key
		found = found || its
		if its || strings.HasPrefix(resources[i].Address, calls[1]+".") {
			addresses = append(addresses, resources[i].Address)
		}
	}
	if !found {
		return nil
	}
	return addresses
}

func hostOf(root string, hosts []topology.HostID) (topology.HostID, bool) {
	i := slices.IndexFunc(hosts, func(host topology.HostID) bool { return generator.RootDir(host) == root })
	if i < 0 {
		return topology.HostID{}, false
	}
	return hosts[i], true
}

// templateRoots returns the roots of the templates in the files of a change, by directory.
func (s *Scaler) templateRoots(change *Change) (map[string]*templateChange, error) {
	filed, err := s.config.Release.ParseTemplates(s.config.ClusterID, change.BeforeFiles)
	if err != nil {
		return nil, fmt.Errorf("reading the templates of the fleet: %w", err)
	}
	roots := map[string]*templateChange{}
	for host, templates := range filed {
		files, err := s.config.Release.RenderTemplates(change.Before, host, templates)
		if err != nil {
			return nil, err
		}
		roots[generator.TemplateRootDir(host)] = &templateChange{host: host, root: files}
	}
	return roots, nil
}

// in returns a change of these templates in a fleet.
func (c *templateChange) in(change *Change) *Change {
	one := *change
	one.templates = c
	return &one
}

// States returns the states of all roots, decrypted, by the directories of their roots, and
// the reasons why others cannot be read. It writes nothing.
func (s *Scaler) States(ctx context.Context) (states map[string][]byte, unread []error, err error) {
	if s.config.Engine == nil {
		return nil, nil, ErrNoEngine
	}
	from, err := s.read(ctx)
	if err != nil {
		return nil, nil, err
	}
	change := newChange(from, &topology.Snapshot{})
	if err := s.render(change); err != nil {
		return nil, nil, err
	}
	templates, err := s.templateRoots(change)
	if err != nil {
		return nil, nil, err
	}
	states = map[string][]byte{}
	err = s.inScratch("backup", "reading states", func(at places) error {
		pull := func(root string, change *Change, host topology.HostID) {
			workspace, err := s.workspace(change, at, host)
			var content []byte
			if err == nil {
				content, err = workspace.Pull(ctx)
				err = errors.Join(err, workspace.Close())
			}
			if err != nil {
				unread = append(unread, err)
			} else if content != nil {
				states[root] = content
			}
		}
		for _, host := range from.fleet.AllHosts() {
			pull(generator.RootDir(host), change, host)
		}
		for _, root := range slices.Sorted(maps.Keys(templates)) {
			t := templates[root]
			if s.keepsStates() {
				err := copyFile(filepath.Join(at.states, filepath.FromSlash(root), stateFile), filepath.Join(s.config.StateDir, statesDir, filepath.FromSlash(root), stateFile))
				if err != nil {
					unread = append(unread, err)
					continue
				}
			}
			pull(root, t.in(change), t.host)
		}
		return ctx.Err()
	})
	return states, unread, err
}

// copyFile copies a file, if it exists, to a directory that only this user can read.
func copyFile(to, from string) error {
	content, err := os.ReadFile(from)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o700)
	}
	if err == nil {
		err = os.WriteFile(to, content, 0o600)
	}
	if err != nil {
		return fmt.Errorf("copying a state: %w", err)
	}
	return nil
}
