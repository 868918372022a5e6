package state_test

import (
	"context"
	"errors"
	"fmt"
	"net"
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

// withProvider returns a workspace that requires the real provider, and the workspace's
// log.
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

// TestProviderWaitsForItsHost checks that the loss of the host, or of the provider, ends an
// apply before the provider's own timeout. The host accepts connections but sends no
// responses, like one that just went down.
func TestProviderWaitsForItsHost(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		// end ends the wait.
		end  func(t *testing.T, w *state.Workspace, cancel context.CancelCauseFunc)
		want func(err error) bool
	}{
		{
			name: "host lost",
			end:  func(_ *testing.T, _ *state.Workspace, cancel context.CancelCauseFunc) { cancel(state.ErrHostLost) },
			want: func(err error) bool {
				return errors.Is(err, state.ErrHostLost) && !strings.Contains(err.Error(), "the provider died")
			},
		},
		{
			name: "provider killed",
			end: func(t *testing.T, w *state.Workspace, _ context.CancelCauseFunc) {
				t.Helper()
				for _, pid := range engines(t, w) {
					name, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
					if err != nil || !strings.HasPrefix(filepath.Base(name), "terraform-provider-") {
						continue
					}
					if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
						t.Error(err)
					}
				}
			},
			want: func(err error) bool { return strings.Contains(err.Error(), "the provider died") },
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			accepted := make(chan struct{}, 16)
			go func() {
				for {
					conn, err := silent.Accept()
					if err != nil {
						return
					}
					defer conn.Close() //nolint:errcheck,gocritic // until the listener ends
					accepted <- struct{}{}
				}
			}()
			t.Cleanup(func() { _ = silent.Close() })

			w, _ := withProvider(t)
			write(t, w.Dir(), "main.tf", strings.ReplaceAll(provided, "127.0.0.1:1", silent.Addr().String()))
			plan := mustPlan(t, w, state.PlanOptions{})
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			done := make(chan error, 1)
			go func() {
				_, err := w.Apply(ctx, plan)
				done <- err
			}()
			<-accepted
			test.end(t, w, cancel)
			select {
			case err := <-done:
				if err == nil || !test.want(err) {
					t.Errorf("got %v", err)
				}
			case <-time.After(20 * time.Second): // the provider's own limit is 30 s
				t.Error("the apply waits for the host")
				<-done
			}
			if left := engines(t, w); len(left) > 0 {
				t.Errorf("%v still run", left)
			}
		})
	}
}

// TestAddressIn checks that only the address of a local provider that speaks gRPC is
// accepted.
func TestAddressIn(t *testing.T) {
	t.Parallel()
	for line, valid := range map[string]bool{
		"1|6|unix|/tmp/plugin|grpc|\n":         true,
		"1|5|unix|/tmp/plugin|grpc\n":          true,
		"2|6|unix|/tmp/plugin|grpc|\n":         false,
		"1|6|tcp|127.0.0.1:1234|grpc|\n":       false,
		"1|6|unix|/tmp/plugin|netrpc|\n":       false,
		"1|six|unix|/tmp/plugin|grpc|\n":       false,
		"1|6|unix|/tmp/plugin\n":               false,
		"This binary is a plugin. It cannot\n": false,
		"":                                     false,
	} {
		address, err := state.AddressIn(line)
		if (err == nil) != valid {
			t.Errorf("%q: %+v, %v; valid: %t", line, address, err, valid)
		}
		if valid && (address.Addr.String != "/tmp/plugin" || address.Addr.Network != "unix" || address.Protocol != "grpc") {
			t.Errorf("%q: %+v", line, address)
		}
	}
}
