package state_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/numaform/numaform/state"
)

const provided = localBackend + `
terraform {
  required_providers {
    proxmox = { source = "registry.opentofu.org/bpg/proxmox", version = "0.111.1" }
  }
}

provider "proxmox" {
  endpoint  = "https://127.0.0.1:1/"
  api_token = "numaform@pve!t=00000000-0000-0000-0000-000000000000"
}

resource "proxmox_virtual_environment_pool" "p" {
  pool_id = "p"
}
`

// withProvider is a workspace with the real provider, whose output it logs.
func withProvider(t *testing.T) (*state.Workspace, *log) {
	t.Helper()
	dir, said := t.TempDir(), &log{}
	write(t, dir, "main.tf", provided)
	return open(t, dir, func(c *state.Config) {
		mirror, err := filepath.Abs("../.tools/plugins")
		if err != nil {
			t.Fatal(err)
		}
		c.PluginDir, c.Log = mirror, said
	}), said
}

func TestProviderServesAllCommands(t *testing.T) {
	t.Parallel()
	w, _ := withProvider(t)
	mustPlan(t, w, state.PlanOptions{})
	first := engines(t, w)
	if len(first) != 1 {
		t.Fatalf("after a plan run %v, want one provider", first)
	}
	if plan := mustPlan(t, w, state.PlanOptions{}); !plan.Changes {
		t.Error("the second plan has no changes")
	}
	if second := engines(t, w); !slices.Equal(first, second) {
		t.Errorf("after the second plan runs %v, want %v", second, first)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if left := engines(t, w); len(left) > 0 {
		t.Errorf("after Close runs %v", left)
	}
}

func TestProviderThatDiedIsStartedAgain(t *testing.T) {
	t.Parallel()
	w, _ := withProvider(t)
	mustPlan(t, w, state.PlanOptions{})
	first := engines(t, w)
	if err := syscall.Kill(first[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for syscall.Kill(first[0], 0) == nil { // until it is reaped: its socket is closed by then
		<-tick.C
	}
	mustPlan(t, w, state.PlanOptions{})
	if second := engines(t, w); len(second) != 1 || slices.Equal(first, second) {
		t.Errorf("runs %v, want another than %v", second, first)
	}
}

func TestProviderOfADeepTMPDIR(t *testing.T) {
	base := t.TempDir()
	deep := filepath.Join(base, strings.Repeat("d", max(1, 80-len(base))))
	if err := os.Mkdir(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", deep)
	w, _ := withProvider(t)
	if plan := mustPlan(t, w, state.PlanOptions{}); !plan.Changes {
		t.Error("the plan has no changes")
	}
	if pids := engines(t, w); len(pids) != 1 {
		t.Errorf("runs %v, want one provider", pids)
	}
}
