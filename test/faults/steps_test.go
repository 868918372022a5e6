package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/numaform/numaform/internal/pvesim"
)

// step is a point in a change at which processes are killed.
type step struct {
	name    string
	victims []victim
	// removal is set for a step of a removal; otherwise the step is part of a scale-up.
	removal bool
	// arm places a gate at the step, or at one of several possible points.
	arm func(w *world, rng *rand.Rand) *gate
	// anywhere is set if the step does not stop requests to the backend, so that the state
	// may also be local.
	anywhere bool
	// nightly is set for a step that `make test` omits, because a step next to it leaves
	// the same traces.
	nightly bool
	// whenSeen kills the victim as soon as it appears after the gate opens, because no gate
	// can stop the victim itself.
	whenSeen bool
}

var (
	all       = []victim{victimEngine, victimProvider, victimNumaform}
	noEngine  = []victim{victimNumaform}
	providing = []victim{victimProvider}
	others    = []victim{victimEngine, victimNumaform}
)

// steps returns all steps in order. Processes that do not run at a step are not among its
// victims.
func steps() []step {
	return []step{
		{name: "before init", nightly: true, victims: others, anywhere: true, arm: engineStarts("init")},
		{name: "after lock", victims: others, arm: func(w *world, rng *rand.Rand) *gate {
			return w.backend.hold("LOCK", oneOf(rng, operationApply, operationPlan), true)
		}},
		{name: "during plan", nightly: true, victims: others, arm: func(w *world, _ *rand.Rand) *gate {
			return w.backend.hold("GET", operationPlan, false)
		}},
		{name: "during plan", nightly: true, victims: providing, anywhere: true, arm: engineStarts("plan"), whenSeen: true},
		{name: "between plan and apply", victims: others, anywhere: true, arm: engineStarts("apply")},
		{name: "during clone", victims: all, anywhere: true, arm: accepted("POST", `/clone$`, `^/nodes/[^/]+/tasks/[^/]*qmclone[^/]*/status$`)},
		{name: "after clone", nightly: true, victims: all, anywhere: true, arm: before(`^/nodes/[^/]+/qemu/2\d+/config$`)},
		{name: "during config", nightly: true, victims: all, anywhere: true, arm: after(`^/nodes/[^/]+/qemu/2\d+/config$`)},
		{name: "during start", victims: all, anywhere: true, arm: accepted("POST", `/status/start$`, `^/nodes/[^/]+/tasks/[^/]*qmstart[^/]*/status$`)},
		{name: "before state write", victims: others, arm: stateWrite(false)},
		{name: "after state write", nightly: true, victims: others, arm: stateWrite(true)},
		{name: "before the outcome is recorded", victims: noEngine, anywhere: true, arm: engineEnds},
		{name: "during stop", nightly: true, removal: true, victims: all, anywhere: true, arm: accepted("POST", `/status/(stop|shutdown)$`, `^/nodes/[^/]+/tasks/[^/]*qm(stop|shutdown)[^/]*/status$`)},
		{name: "during destroy", removal: true, victims: all, anywhere: true, arm: accepted("DELETE", `/qemu/2\d+/?$`, `^/nodes/[^/]+/tasks/[^/]*qmdestroy[^/]*/status$`)},
		{name: "after destroy", nightly: true, removal: true, victims: others, arm: stateWrite(false)},
	}
}

func oneOf[T any](rng *rand.Rand, values ...T) T { return values[rng.IntN(len(values))] }

func engineStarts(command string) func(*world, *rand.Rand) *gate {
	return func(w *world, _ *rand.Rand) *gate { return w.doorman.hold(command, false) }
}

func engineEnds(w *world, _ *rand.Rand) *gate { return w.doorman.hold("apply", true) }

func stateWrite(after bool) func(*world, *rand.Rand) *gate {
	return func(w *world, _ *rand.Rand) *gate { return w.backend.hold("POST", operationApply, after) }
}

// holdCall returns a gate that stops one call to Proxmox.
func (w *world) holdCall(fault pvesim.Fault) *gate {
	g := newGate()
	fault.Times = 1
	fault.Hit = func(ctx context.Context, call pvesim.Call) {
		when := "before"
		if fault.After {
			when = "after"
		}
		g.pass(ctx, fmt.Sprintf("%s %s %s %v", when, call.Method, call.Path, call.Params))
	}
	w.sim.AddFault(fault)
	return g
}

// accepted stops a call while Proxmox executes a task: before the provider receives the
// task's ID, or when it requests the task's status.
func accepted(method, path, status string) func(*world, *rand.Rand) *gate {
	return func(w *world, rng *rand.Rand) *gate {
		if rng.IntN(2) == 0 {
			return w.holdCall(pvesim.Fault{Method: method, Path: path, Skip: w.skip(rng), After: true})
		}
		return w.holdCall(pvesim.Fault{Method: "GET", Path: status, Skip: w.skip(rng)})
	}
}

// skip returns the number of calls that pass first, so that kills hit different VMs.
func (w *world) skip(rng *rand.Rand) int {
	if len(w.nodeFiles()) > 0 {
		return 0 // a removal affects one VM
	}
	return rng.IntN(scaledUp)
}

// before stops a change of a VM's configuration before Proxmox executes it; after stops it
// afterwards.
func before(path string) func(*world, *rand.Rand) *gate {
	return func(w *world, rng *rand.Rand) *gate {
		return w.holdCall(pvesim.Fault{Method: "PUT", Path: path, Skip: w.skip(rng)})
	}
}

func after(path string) func(*world, *rand.Rand) *gate {
	return func(w *world, rng *rand.Rand) *gate {
		return w.holdCall(pvesim.Fault{Method: "PUT", Path: path, Skip: w.skip(rng), After: true})
	}
}

// scaledUp is the number of VMs that the fixture's pods need.
const scaledUp = 3
