package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/numaform/numaform/internal/pvesim"
)

// step is a moment in a change at which processes are killed.
type step struct {
	name    string
	victims []victim
	// removal tells a step of a removal from one of a scale-up.
	removal bool
	// arm puts a gate to the moment, or one of several.
	arm func(w *world, rng *rand.Rand) *gate
	// anywhere tells that the step does not hold the backend, so that the state may
	// as well be local.
	anywhere bool
	// whenSeen kills the victim as soon as it lives after the gate, which nothing
	// can hold.
	whenSeen bool
}

var (
	all       = []victim{victimEngine, victimProvider, victimNumaform}
	noEngine  = []victim{victimNumaform}
	providing = []victim{victimProvider}
	others    = []victim{victimEngine, victimNumaform}
)

// steps returns all steps in their order. A victim that is not named at one does
// not live then.
func steps() []step {
	return []step{
		{name: "before init", victims: others, anywhere: true, arm: engineStarts("init")},
		{name: "after lock", victims: others, arm: func(w *world, rng *rand.Rand) *gate {
			return w.backend.hold("LOCK", oneOf(rng, operationApply, operationPlan), true)
		}},
		{name: "during plan", victims: others, arm: func(w *world, _ *rand.Rand) *gate {
			return w.backend.hold("GET", operationPlan, false)
		}},
		{name: "during plan", victims: providing, anywhere: true, arm: engineStarts("plan"), whenSeen: true},
		{name: "between plan and apply", victims: others, anywhere: true, arm: engineStarts("apply")},
		{name: "during clone", victims: all, anywhere: true, arm: accepted("POST", `/clone$`, `^/nodes/[^/]+/tasks/[^/]*qmclone[^/]*/status$`)},
		{name: "after clone", victims: all, anywhere: true, arm: before(`^/nodes/[^/]+/qemu/2\d+/config$`)},
		{name: "during config", victims: all, anywhere: true, arm: after(`^/nodes/[^/]+/qemu/2\d+/config$`)},
		{name: "during start", victims: all, anywhere: true, arm: accepted("POST", `/status/start$`, `^/nodes/[^/]+/tasks/[^/]*qmstart[^/]*/status$`)},
		{name: "before state write", victims: others, arm: stateWrite(false)},
		{name: "after state write", victims: others, arm: stateWrite(true)},
		{name: "before the outcome is recorded", victims: noEngine, anywhere: true, arm: engineEnds},
		{name: "during stop", removal: true, victims: all, anywhere: true, arm: accepted("POST", `/status/(stop|shutdown)$`, `^/nodes/[^/]+/tasks/[^/]*qm(stop|shutdown)[^/]*/status$`)},
		{name: "during destroy", removal: true, victims: all, anywhere: true, arm: accepted("DELETE", `/qemu/2\d+/?$`, `^/nodes/[^/]+/tasks/[^/]*qmdestroy[^/]*/status$`)},
		{name: "after destroy", removal: true, victims: others, arm: stateWrite(false)},
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

// holdCall holds one call to Proxmox.
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

// accepted holds when Proxmox works on a task: the provider has not heard of the
// task yet, or asks for its status.
func accepted(method, path, status string) func(*world, *rand.Rand) *gate {
	return func(w *world, rng *rand.Rand) *gate {
		if rng.IntN(2) == 0 {
			return w.holdCall(pvesim.Fault{Method: method, Path: path, Skip: w.skip(rng), After: true})
		}
		return w.holdCall(pvesim.Fault{Method: "GET", Path: status, Skip: w.skip(rng)})
	}
}

// skip returns how many calls of a kind are let through: the kill hits another VM.
func (w *world) skip(rng *rand.Rand) int {
	if len(w.nodeFiles()) > 0 {
		return 0 // a removal is about one VM
	}
	return rng.IntN(scaledUp)
}

// before holds a change of a VM's config before Proxmox does it, and after once it
// was done.
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

// scaledUp is how many VMs the fixture's pods need.
const scaledUp = 3
