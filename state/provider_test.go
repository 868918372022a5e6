package state_test

import (
	"archive/zip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/state"
)

const providerPath = "registry.opentofu.org/bpg/proxmox/0.111.1"

func platformDir() string { return runtime.GOOS + "_" + runtime.GOARCH }

// mirror returns a copy of the provider mirror that make creates, and the provider's
// directory in it.
func mirror(t *testing.T) (dir, provider string) {
	t.Helper()
	enginetest.Long(t, "the provider")
	dir = t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, providerPath), os.DirFS(filepath.Join("../.tools/plugins", providerPath))); err != nil {
		t.Fatal(err)
	}
	return dir, filepath.Join(dir, providerPath, platformDir())
}

// trusting opens a workspace that requires the provider, with the record and the copies of
// providers in home.
func trusting(t *testing.T, home, plugins string, edit func(*state.Config)) *state.Workspace {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "main.tf", provided)
	return open(t, dir, func(c *state.Config) {
		c.PluginDir = plugins
		c.Providers = &state.Providers{Record: filepath.Join(home, "providers.json"), Dir: filepath.Join(home, "providers"), Image: filepath.Join(home, "image.json")}
		if edit != nil {
			edit(c)
		}
	})
}

// refused checks that the provider is refused and nothing of it runs.
func refused(t *testing.T, w *state.Workspace, want string) *state.ProviderError {
	t.Helper()
	_, err := w.Plan(t.Context(), state.PlanOptions{})
	var refused *state.ProviderError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "engine.provider_hashes in numaform.yaml") {
		t.Fatalf("got %v, want a refused provider that says %q", err, want)
	}
	if left := engines(t, w); len(left) > 0 {
		t.Fatalf("%v runs", left)
	}
	return refused
}

func trust(t *testing.T, w *state.Workspace, want string) *state.Provider {
	t.Helper()
	provider := mustPlan(t, w, state.PlanOptions{}).Provider
	if provider == nil || !strings.HasPrefix(provider.Hash, "h1:") || !strings.HasPrefix(provider.Trust, want) {
		t.Fatalf("the provider is %+v, want it %s", provider, want)
	}
	return provider
}

// TestProviderOnFirstUse checks that a provider that is replaced after its first use runs
// only once the operator allows it.
func TestProviderOnFirstUse(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	plugins, files := mirror(t)
	first := trust(t, trusting(t, home, plugins, nil), "trusted on first use")
	if again := trust(t, trusting(t, home, plugins, nil), "trusted since 2"); again.Hash != first.Hash {
		t.Errorf("another hash: %v, %v", first, again)
	}
	write(t, files, "README.md", "tampered with")
	err := refused(t, trusting(t, home, plugins, nil), "numaform has trusted "+first.Hash)
	pin := func(hashes ...string) func(*state.Config) {
		return func(c *state.Config) { c.Providers.Pinned = hashes }
	}
	if again := refused(t, trusting(t, home, plugins, pin(first.Hash)), "allows only "+first.Hash); again.Hash != err.Hash {
		t.Errorf("refused %s, want %s", again.Hash, err.Hash)
	}
	if pinned := trust(t, trusting(t, home, plugins, pin(first.Hash, err.Hash)), "pinned"); pinned.Hash != err.Hash {
		t.Errorf("pinned %v, want %s", pinned, err.Hash)
	}
	trust(t, trusting(t, home, plugins, nil), "trusted since 2")
}

// TestProviderOfTheImage checks that the image's file defines the allowed provider,
// regardless of earlier use.
func TestProviderOfTheImage(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	plugins, files := mirror(t)
	carries := func(hash string) {
		content, err := json.Marshal(map[string]any{"providers": []map[string]string{{
			"address": "registry.opentofu.org/bpg/proxmox", "version": "0.111.1", "platform": platformDir(), "hash": hash,
		}}})
		if err != nil {
			t.Fatal(err)
		}
		write(t, home, "image.json", string(content))
	}
	carries("h1:other")
	hash := refused(t, trusting(t, home, plugins, nil), "the image contains h1:other").Hash
	carries(hash)
	trust(t, trusting(t, home, plugins, nil), "from the image")
	write(t, files, "README.md", "tampered with")
	other := refused(t, trusting(t, home, plugins, nil), "the image contains "+hash).Hash
	trust(t, trusting(t, home, plugins, func(c *state.Config) { c.Providers.Pinned = []string{other} }), "pinned")
	write(t, home, "image.json", "{")
	if _, err := trusting(t, home, plugins, nil).Plan(t.Context(), state.PlanOptions{}); err == nil || !strings.Contains(err.Error(), "reading the trusted providers") {
		t.Errorf("got %v, want the file named", err)
	}
}

// TestProviderInTheRoot checks that a program where init would install a provider is never
// started, even with a lock file.
func TestProviderInTheRoot(t *testing.T) {
	t.Parallel()
	plugins, _ := mirror(t)
	w := trusting(t, t.TempDir(), plugins, nil)
	started := filepath.Join(t.TempDir(), "started")
	program := filepath.Join(w.Dir(), ".terraform/providers", providerPath, platformDir(), "terraform-provider-proxmox_v0.111.1")
	write(t, filepath.Dir(program), filepath.Base(program), "#!/bin/sh\ntouch "+started+"\n")
	if err := os.Chmod(program, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, w.Dir(), ".terraform.lock.hcl", "provider \"registry.opentofu.org/bpg/proxmox\" {\n  version = \"0.111.1\"\n  hashes = [\"h1:0000000000000000000000000000000000000000000=\"]\n}\n")
	trust(t, w, "trusted on first use")
	for _, gone := range []string{started, program, filepath.Join(w.Dir(), ".terraform.lock.hcl")} {
		if _, err := os.Stat(gone); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s exists: %v", gone, err)
		}
	}
}

// TestProviderOfASharedMirror checks that a provider that other users can replace is
// copied, and that the copy runs.
func TestProviderOfASharedMirror(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	plugins, files := mirror(t)
	program := func(w *state.Workspace) string {
		pids := engines(t, w)
		if len(pids) != 1 {
			t.Fatalf("runs %v, want one provider", pids)
		}
		name, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pids[0]))
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	w := trusting(t, home, plugins, nil)
	trust(t, w, "trusted on first use")
	if got := program(w); filepath.Dir(got) != files {
		t.Errorf("runs %s, want it of %s", got, files)
	}
	if err := os.Chmod(filepath.Dir(files), 0o777); err != nil {
		t.Fatal(err)
	}
	w = trusting(t, home, plugins, nil)
	trust(t, w, "trusted since")
	if got := program(w); !strings.HasPrefix(got, filepath.Join(home, "providers")+"/") {
		t.Errorf("runs %s, want a copy below %s", got, home)
	}
	w = trusting(t, home, plugins, func(c *state.Config) { c.Providers = nil })
	if _, err := w.Plan(t.Context(), state.PlanOptions{}); err == nil || !strings.Contains(err.Error(), "set state_dir") {
		t.Errorf("got %v, want advice", err)
	}
}

// TestProviderIsDownloaded checks that the provider is installed from a mirror of packed
// providers only once.
func TestProviderIsDownloaded(t *testing.T) {
	t.Parallel()
	_, files := mirror(t)
	packed := t.TempDir()
	name := filepath.Join(packed, filepath.Dir(providerPath), "terraform-provider-proxmox_0.111.1_"+platformDir()+".zip")
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	archive, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	writer := zip.NewWriter(archive)
	if err := errors.Join(writer.AddFS(os.DirFS(files)), writer.Close(), archive.Close()); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	trust(t, trusting(t, home, packed, nil), "trusted on first use")
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	trust(t, trusting(t, home, packed, nil), "trusted since")
	kept, err := filepath.Glob(filepath.Join(home, "providers", "*"))
	if err != nil || len(kept) != 1 {
		t.Errorf("kept %v, %v, want one copy", kept, err)
	}
	w := trusting(t, t.TempDir(), packed, nil)
	if _, err := w.Plan(t.Context(), state.PlanOptions{}); err == nil || !strings.Contains(err.Error(), "does not contain the provider: fill it") {
		t.Errorf("got %v, want advice", err)
	}
	if left, err := filepath.Glob(filepath.Join(w.Dir(), ".terraform/numaform/download-*")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestOtherProviders checks that no engine starts or downloads another provider, in
// whichever place the provider is required.
func TestOtherProviders(t *testing.T) {
	t.Parallel()
	const http = `terraform {
  required_providers {
    http = { source = "registry.opentofu.org/hashicorp/http", version = "3.4.5" }
  }
}
`
	for name, files := range map[string]map[string]string{
		"root":     {"x.tf": http},
		"json":     {"x.tf.json": `{"terraform":{"required_providers":{"http":{"source":"registry.opentofu.org/hashicorp/http"}}}}`},
		"implied":  {"x.tf": "data \"http\" \"x\" {\n  url = \"http://127.0.0.1:1\"\n}\n"},
		"module":   {"x.tf": "module \"x\" {\n  source = \"./x\"\n}\n", "x/x.tf": http},
		"provider": {"x.tf": "provider \"http\" {\n}\n"},
		"state": {"terraform.tfstate": `{"version":4,"terraform_version":"1.9.0","serial":1,"lineage":"a","outputs":{},"resources":[
			{"mode":"managed","type":"http_x","name":"x","provider":"provider[\"registry.opentofu.org/hashicorp/http\"]",
			 "instances":[{"schema_version":0,"attributes":{"id":"1"}}]}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _ := withProvider(t)
			for file, content := range files {
				write(t, w.Dir(), file, content)
			}
			_, err := w.Plan(t.Context(), state.PlanOptions{})
			if err == nil || !strings.Contains(err.Error(), "http") {
				t.Fatalf("got %v, want the provider refused", err)
			}
			installed, err := filepath.Glob(filepath.Join(w.Dir(), ".terraform/providers/*"))
			if err != nil || len(installed) > 0 {
				t.Errorf("installed %v, %v", installed, err)
			}
		})
	}
}
