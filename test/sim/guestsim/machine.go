package guestsim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"github.com/numaform/numaform/test/sim/pvesim"
)

// machine is a VM: its disk, which outlives its process, and the software running in it.
type machine struct {
	guests *Guests
	id     int
	name   string

	// on, cancel and done belong to the running software and are guarded by the guests'
	// lock.
	on     bool
	cancel context.CancelFunc
	done   chan struct{}

	// The remaining fields belong to the running software. A run starts after the previous
	// one has ended.
	vm   pvesim.GuestState
	disk disk
}

// disk is the data that survives a restart of the guest.
type disk struct {
	instance string
	system   *system
	identity *identity
}

func newMachine(g *Guests, vm pvesim.GuestState) *machine {
	return &machine{guests: g, id: vm.VMID, name: vm.Config["name"], on: true}
}

// launch ends the running software and then starts do. The caller must hold the guests'
// lock.
func (m *machine) launch(parent context.Context, do func(context.Context)) {
	m.halt()
	before, done := m.done, make(chan struct{})
	ctx, cancel := context.WithCancel(logr.NewContext(parent, logr.FromContextOrDiscard(parent).WithValues("vm", m.name, "vmid", m.id)))
	m.cancel, m.done = cancel, done
	m.guests.running.Go(func() {
		defer close(done)
		defer cancel()
		if before != nil {
			<-before
		}
		do(ctx)
	})
}

// halt ends the running software without waiting for it. The caller must hold the guests'
// lock.
func (m *machine) halt() {
	if m.cancel != nil {
		m.cancel()
	}
}

// boot runs a machine from power-on to power-off.
func (m *machine) boot(ctx context.Context, event pvesim.PowerEvent, fault Fault) {
	m.vm = event.Guest
	m.wait(ctx, m.guests.cfg.Boot+fault.BootDelay)
	if ctx.Err() != nil || fault.NeverJoins {
		return
	}
	if !fault.IgnoresSeed {
		if err := m.cloudInit(event.Discs); err != nil {
			m.report(at(StepSeed, err))
			return
		}
	}
	m.kubelet(ctx)
}

// cloudInit applies the seed, once for each instance-id.
func (m *machine) cloudInit(discs map[string][]byte) error {
	documents, found, err := m.documents(discs)
	if err != nil || !found {
		return err
	}
	system, err := newSystem(documents)
	if err != nil {
		return err
	}
	if m.disk.instance == system.instance {
		return nil
	}
	if system.hostname != m.name {
		return fmt.Errorf("reading meta-data: local-hostname is %q: the VM's name is %q", system.hostname, m.name)
	}
	if !system.startsKubelet() {
		return errors.New("running user-data: no command of runcmd starts kubelet")
	}
	m.disk = disk{instance: system.instance, system: system}
	return nil
}

// documents returns the seed in the first drive, or the data in the template.
func (m *machine) documents(discs map[string][]byte) (documents Documents, found bool, err error) {
	if drives := slices.Sorted(maps.Keys(discs)); len(drives) > 0 {
		if documents, err = ReadSeed(discs[drives[0]]); err != nil {
			return documents, false, fmt.Errorf("%s: %w", drives[0], err)
		}
		return documents, true, nil
	}
	if m.guests.cfg.BakedIn == nil || m.disk.system != nil {
		return documents, false, nil
	}
	documents, found = m.guests.cfg.BakedIn(m.vm)
	return documents, found, nil
}

// wait returns after d, or when the context ends.
func (m *machine) wait(ctx context.Context, d time.Duration) {
	timer := m.guests.cfg.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}
