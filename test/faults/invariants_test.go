package faults_test

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/test/startcheck"
	"github.com/numaform/numaform/topology"
)

// check checks the invariants of docs/faults.md in a world with this number of desired VMs.
// No change may be in progress.
func (w *world) check(wanted int) {
	w.t.Helper()
	w.checkFleet(wanted)
	w.checkForeign()
	w.checkPins()
	w.checkHistory()
	w.checkSecrets()
	w.checkStates()
}

// clusterID is the clusterID of the fixture.
const clusterID = "faults"

// ours returns the VMs with the fleet's marker, by name.
func (w *world) ours() map[string]pvesim.GuestState {
	guests := map[string]pvesim.GuestState{}
	for _, guest := range w.sim.Guests() {
		if marker, ok := fleet.ParseMarker(guest.Config["description"]); ok && marker.ClusterID == clusterID {
			guests[guest.Config["name"]] = guest
		}
	}
	return guests
}

var vmidLine = regexp.MustCompile(`(?m)^\s*vm_id\s*=\s*(\d+)$`)

// checkFleet checks I1: the VMs with the fleet's marker match the node files, and are
// complete and running. No other VMs were created.
func (w *world) checkFleet(wanted int) {
	w.t.Helper()
	ours := w.ours()
	files := w.nodeFiles()
	if len(files) != wanted {
		w.t.Errorf("I1: %d node files, want %d", len(files), wanted)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		content, err := os.ReadFile(files[name])
		w.must(err)
		guest, exists := ours[name]
		vmid := vmidLine.FindSubmatch(content)
		switch {
		case !exists:
			w.t.Errorf("I1: %s has a file but no VM", name)
		case vmid == nil || string(vmid[1]) != strconv.Itoa(guest.VMID):
			w.t.Errorf("I1: %s is VM %d, its file says %s", name, guest.VMID, vmid)
		case !guest.Running || guest.Config["lock"] != "" || len(guest.Pending)+len(guest.Delete) > 0:
			w.t.Errorf("I1: %s is incomplete: running %t, lock %q, pending %v", name, guest.Running, guest.Config["lock"], guest.Pending)
		}
	}
	for _, guest := range w.sim.Guests() {
		_, isForeign := w.foreign[guest.VMID]
		if _, wanted := files[guest.Config["name"]]; !wanted && !isForeign && guest.Config["template"] != "1" {
			w.t.Errorf("I1: guest %d (%s) is neither in the fleet nor unmanaged:\n%s", guest.VMID, guest.Config["name"], guest.Raw)
		}
	}
}

// checkForeign checks I2: no unmanaged VM was changed.
func (w *world) checkForeign() {
	w.t.Helper()
	for _, vmid := range slices.Sorted(maps.Keys(w.foreign)) {
		guest, exists := w.sim.Guest(vmid)
		if !exists || !guest.Running {
			w.t.Errorf("I2: unmanaged VM %d: exists %t, running %t", vmid, exists, guest.Running)
		}
		if diff := cmp.Diff(w.foreign[vmid], guest.Raw); diff != "" {
			w.t.Errorf("I2: unmanaged VM %d was changed (-before +after):\n%s", vmid, diff)
		}
	}
}

// checkPins checks I3: no two VMs share a pinned CPU, and no NUMA node's memory is
// overcommitted.
func (w *world) checkPins() {
	w.t.Helper()
	for i := range w.hosts {
		var guests []startcheck.Guest
		for _, guest := range w.sim.Guests() {
			if guest.Running && guest.Host == string(w.hosts[i].Name) {
				guests = append(guests, w.startGuest(guest))
			}
		}
		for _, fault := range startcheck.Check(&w.hosts[i], guests) {
			w.t.Errorf("I3: %s: %v", w.hosts[i].Name, fault)
		}
	}
}

// startGuest converts the runtime configuration of a running guest to a startcheck.Guest.
func (w *world) startGuest(guest pvesim.GuestState) startcheck.Guest {
	w.t.Helper()
	number := func(key string, otherwise int) int {
		if n, err := strconv.Atoi(guest.Runtime[key]); err == nil {
			return n
		}
		return otherwise
	}
	affinity, err := topology.ParseCPUSet(guest.Runtime["affinity"])
	w.must(err)
	marker, _ := fleet.ParseMarker(guest.Config["description"])
	result := startcheck.Guest{
		VMID: guest.VMID, Sockets: number("sockets", 1), Cores: number("cores", 1), MemoryMiB: int64(number("memory", 512)),
		NUMAEnabled: guest.Runtime["numa"] == "1", NUMA: map[int]topology.NUMACell{},
		Affinity: affinity, Pins: marker.Pins, Exclusive: !affinity.IsEmpty() || len(marker.Pins) > 0,
	}
	for key, value := range guest.Runtime {
		n, err := strconv.Atoi(strings.TrimPrefix(key, "numa"))
		if !strings.HasPrefix(key, "numa") || err != nil {
			continue
		}
		result.NUMA[n], err = topology.ParseNUMA(value)
		w.must(err)
	}
	return result
}

// checkHistory checks I5: the fleet's history records each plan that an engine applied, and
// each VM that was written to.
func (w *world) checkHistory() {
	w.t.Helper()
	entries, err := store.NewDirectory(w.fleet()).History(w.t.Context(), time.Time{})
	w.must(err)
	plans, vms := map[string]bool{}, map[string]bool{}
	for _, entry := range entries {
		for _, host := range entry.Change.Hosts {
			plans[host.PlanSHA256] = true
			for _, target := range slices.Concat(host.Create, host.Delete, host.Import, host.Update) {
				vms[strconv.Itoa(int(target.VMID))] = host.PlanSHA256 != ""
			}
		}
	}
	for _, plan := range w.doorman.applied() {
		if !plans[plan] {
			w.t.Errorf("I5: plan %s was applied, but is in no record", plan)
		}
	}
	for _, vmid := range w.written() {
		if !vms[vmid] {
			w.t.Errorf("I5: VM %s was written to, but is in no record with a plan", vmid)
		}
	}
	last := &entries[len(entries)-1]
	last.OutcomeVerified = last.Outcome != nil // without the key, the store cannot verify outcomes
	if left := last.Unfinished(); len(left) > 0 {
		w.t.Errorf("I5: the history ends with unfinished hosts: %v", left)
	}
}

var vmPath = regexp.MustCompile(`^/nodes/[^/]+/qemu/(\d+)`)

// written returns the VMIDs of the VMs that requests to Proxmox changed.
func (w *world) written() []string {
	var vmids []string
	for _, call := range w.sim.Calls() {
		vmid := vmPath.FindStringSubmatch(call.Path)
		switch {
		case call.Method == "GET" || vmid == nil:
		case strings.HasSuffix(call.Path, "/clone"):
			vmids = append(vmids, call.Params["newid"])
		default:
			vmids = append(vmids, vmid[1])
		}
	}
	slices.Sort(vmids)
	return slices.Compact(vmids)
}

// checkSecrets checks I6: no secret is in the fleet's directory, a plan, a state, or the
// output and files of numaform and the engine.
func (w *world) checkSecrets() {
	w.t.Helper()
	for _, dir := range []string{filepath.Join(w.dir, "fleet"), filepath.Join(w.dir, "kept"), filepath.Join(w.dir, "said"), w.tmp} {
		w.must(filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			w.search(path, content)
			return nil
		}))
	}
	w.backend.mu.Lock()
	defer w.backend.mu.Unlock()
	for i, state := range w.backend.written {
		w.search(fmt.Sprintf("state %d of the backend", i), state)
	}
}

// search searches content for secrets, including compressed content.
func (w *world) search(name string, content []byte) {
	w.t.Helper()
	for _, canary := range []string{tokenCanary, passwordCanary} {
		if bytes.Contains(content, []byte(canary)) {
			w.t.Errorf("I6: %s contains the secret %s", name, canary)
		}
	}
	if !bytes.HasPrefix(content, []byte("PK\x03\x04")) {
		return
	}
	packed, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
	w.must(err)
	for _, file := range packed.File {
		opened, err := file.Open()
		w.must(err)
		inner, err := io.ReadAll(opened)
		w.must(err)
		w.must(opened.Close())
		w.search(name+"/"+file.Name, inner)
	}
}

// checkStates checks I7: the states match Proxmox and are complete, and no lock is left.
func (w *world) checkStates() {
	w.t.Helper()
	for _, host := range []string{busyHost, idleHost} {
		var want []int
		for _, guest := range w.ours() {
			if guest.Host == host {
				want = append(want, guest.VMID)
			}
		}
		slices.Sort(want)
		got, tainted := w.stateOf(host)
		if !slices.Equal(got, want) || len(tainted) > 0 {
			w.t.Errorf("I7: the state of %s has VMs %v, of them tainted %v; Proxmox has %v", host, got, tainted, want)
		}
	}
	for _, lock := range w.backend.locked() {
		w.t.Errorf("I7: a lock is left: %s", lock)
	}
}

// stateOf returns the VMs in a host's state, from the backend or the state directory.
func (w *world) stateOf(host string) (vmids, tainted []int) {
	w.t.Helper()
	paths, err := filepath.Glob(filepath.Join(w.dir, "state", "states", "*", host, "terraform.tfstate"))
	w.must(err)
	if len(paths) == 0 {
		return w.backend.vms(w.t, host)
	}
	content, err := os.ReadFile(paths[0])
	w.must(err)
	vmids, tainted = vmsOf(w.t, content)
	slices.Sort(vmids)
	return vmids, tainted
}
