package generator_test

import (
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/pvesim"
)

// TestTimeoutsOfTheProvider checks that the real provider gives up a clone after the timeout
// in the VM's file, and passes the timeout of the start to Proxmox.
func TestTimeoutsOfTheProvider(t *testing.T) {
	t.Parallel()
	const most = 5
	s := newHostRoot(t, func(vm *fleet.VM) { vm.Timeouts = fleet.Timeouts{Create: most, Start: 4} })
	s.engine.Run(t, s.dir, "init", "-no-color", "-input=false")
	s.proxmox.SetDelays(pvesim.Delays{Clone: time.Hour})
	if out, err := s.engine.Try(t, s.dir, "apply", "-no-color", "-auto-approve"); err == nil || !strings.Contains(out, "timeout while waiting for task") {
		t.Fatalf("a clone that takes an hour: %v\n%s", err, out)
	}
	began := time.Time{}
	for _, call := range s.proxmox.Calls() {
		switch {
		case strings.HasSuffix(call.Path, "/clone"):
			began = call.Time
		case !began.IsZero() && call.Time.Sub(began) > 4*most*time.Second:
			t.Errorf("%s after the clone, the provider still requests %s", call.Time.Sub(began), call.Path)
		}
	}

	s = newHostRoot(t, func(vm *fleet.VM) { vm.Timeouts = fleet.Timeouts{Start: 77} })
	s.engine.Run(t, s.dir, "init", "-no-color", "-input=false")
	s.engine.Run(t, s.dir, "apply", "-no-color", "-auto-approve")
	for _, call := range s.proxmox.Calls() {
		if got := call.Params["timeout"]; strings.HasSuffix(call.Path, "/status/start") && got != "77" {
			t.Errorf("the start may take %s seconds, want 77", got)
		}
	}
}
