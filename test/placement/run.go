package placement

import "slices"

// Faults is the number of placements by kind of fault.
type Faults [faultKinds]int

// add adds the counts of others.
func (f *Faults) add(others Faults) {
	for kind := range f {
		f[kind] += others[kind]
	}
}

// run is a run of one placer on one machine.
type run struct {
	machine   *Machine
	placer    Placer
	dedicated bool
	guests    []Guest
	// cpus and memory are the resources that no guest uses.
	cpus   int
	memory int64
	faults Faults
}

// newRun starts with an empty machine.
func newRun(k Kind, m *Machine) *run {
	r := &run{machine: m, placer: k.New(m), dedicated: k.Dedicated}
	r.cpus, r.memory = m.Usable()
	return r
}

// arrive places a VM and reports whether it was placed without sharing CPUs. A VM that
// cannot start is removed from the placer. A VM with another VM's CPU starts and remains,
// but counts as refused.
func (r *run) arrive(vm VM) (quality, bool) {
	place, ok := r.placer.Place(vm)
	if !ok {
		return quality{}, false
	}
	r.guests = append(r.guests, Guest{vm, place})
	r.cpus -= vm.VCPUs
	r.memory -= vm.MemoryMiB
	g := &r.guests[len(r.guests)-1]
	faults := Check(r.machine, r.guests)
	if r.dedicated {
		faults = append(faults, CheckDedicated(r.machine, g)...)
	}
	seen := map[FaultKind]bool{}
	for _, f := range faults {
		if f.VM == 0 || f.VM == vm.ID {
			seen[f.Kind] = true
		}
	}
	for kind := range seen {
		r.faults[kind]++
	}
	if seen[FaultCannotStart] {
		r.leave(vm)
		return quality{}, false
	}
	return qualityOf(r.machine, g, r.guests), !seen[FaultTwice]
}

// leave removes a placed VM.
func (r *run) leave(vm VM) {
	r.guests = slices.DeleteFunc(r.guests, func(g Guest) bool { return g.ID == vm.ID })
	r.cpus += vm.VCPUs
	r.memory += vm.MemoryMiB
	r.placer.Remove(vm)
}
