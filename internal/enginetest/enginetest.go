// Package enginetest runs the real OpenTofu or Terraform with the real Proxmox provider in
// tests, offline and separate from the user's own settings. Start at New.
package enginetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
)

// Provider is the address of the Proxmox provider, and ProviderVersion the version that is
// built into .tools.
const (
	Provider        = "registry.opentofu.org/bpg/proxmox"
	ProviderVersion = "0.111.1"
)

// An engine that hangs is interrupted, then killed, so that the test binary does not time
// out first and leave the engine running.
const (
	timeout = 2 * time.Minute
	grace   = 30 * time.Second
)

// Engine runs one engine binary in directories of a test.
type Engine struct {
	binary string
	env    []string
}

// New finds the engine and the provider. It fails the test if one is missing, and skips it
// under go test -short.
func New(t testing.TB) *Engine {
	t.Helper()
	mirror := Mirror(t)
	home := t.TempDir()
	config := filepath.Join(home, "tofurc")
	if err := os.WriteFile(config, cliConfig(mirror), 0o600); err != nil {
		t.Fatal(err)
	}
	return &Engine{binary: Binary(t), env: []string{
		"HOME=" + home, "TMPDIR=" + home, "PATH=" + os.Getenv("PATH"),
		"TF_CLI_CONFIG_FILE=" + config, "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1",
	}}
}

// With returns an engine with additional environment variables, as NAME=value.
func (e *Engine) With(env ...string) *Engine {
	return &Engine{binary: e.binary, env: append(slices.Clone(e.env), env...)}
}

// Run runs the engine in dir and returns its output. A failure fails the test.
func (e *Engine) Run(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := e.Try(t, dir, args...)
	if err != nil {
		t.Fatalf("running %s %v in %s: %v\n%s", filepath.Base(e.binary), args, dir, err, out)
	}
	return out
}

// Try runs the engine in dir and returns its output and error.
func (e *Engine) Try(t testing.TB, dir string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, e.binary, args...) //nolint:gosec // the binary is ours, the arguments are a test's
	// An interrupted engine also ends its provider; a killed engine leaves it running.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = grace
	cmd.Dir = dir
	cmd.Env = e.env
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// Write writes files by their slash-separated paths relative to dir.
func Write(t testing.TB, dir string, files map[string][]byte) {
	t.Helper()
	for name, content := range files {
		target := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(target, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Long skips the test under go test -short, as in make unit. what names a program that some
// machines lack, such as an engine.
func Long(t testing.TB, what string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs " + what + ", which go test -short leaves out") //nolint:forbidigo // only make unit is short
	}
}

// Needs skips the test like Long, and if the variable NUMAFORM_WITHOUT names the program:
// make test WITHOUT=... sets it. The programs are promtool and the ones that tools/system.sh knows.
func Needs(t testing.TB, program string) {
	t.Helper()
	Long(t, program)
	if slices.Contains(strings.Fields(os.Getenv("NUMAFORM_WITHOUT")), program) {
		t.Skip("needs " + program + ", which NUMAFORM_WITHOUT leaves out") //nolint:forbidigo // only if the user says so
	}
}

// EveryCase reports whether a test runs every combination of its parameters, because
// NUMAFORM_NIGHTLY is set, as in make nightly. Otherwise the test runs one case of each
// kind, so that make test fits into its time budget.
func EveryCase() bool { return os.Getenv("NUMAFORM_NIGHTLY") != "" }

// Nightly skips the test unless EveryCase returns true. It is for tests that take minutes and
// repeat a shorter test with more rounds, orders or points in time.
func Nightly(t testing.TB) {
	t.Helper()
	if !EveryCase() {
		t.Skip("runs with NUMAFORM_NIGHTLY=1, as in make nightly") //nolint:forbidigo // make nightly runs it
	}
}

// ModuleRoot returns the directory of the module, with its .tools.
func ModuleRoot(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		_, err := os.Stat(filepath.Join(dir, "go.mod"))
		if err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if !errors.Is(err, fs.ErrNotExist) || parent == dir {
			t.Fatalf("no go.mod above the test: %v", err)
		}
		dir = parent
	}
}

// Mirror returns the directory from which engines install the provider. It fails the test
// if the provider is missing, and skips it under go test -short.
func Mirror(t testing.TB) string {
	t.Helper()
	Long(t, "the Proxmox provider")
	mirror := filepath.Join(ModuleRoot(t), ".tools", "plugins")
	provider := filepath.Join(mirror, filepath.FromSlash(Provider), ProviderVersion,
		runtime.GOOS+"_"+runtime.GOARCH, "terraform-provider-proxmox_v"+ProviderVersion)
	if _, err := os.Stat(provider); err != nil {
		t.Fatalf("no Proxmox provider at %s: run make tools", provider)
	}
	return mirror
}

// Binary returns the path of the engine: .tools/bin/tofu, or else tofu or terraform on
// PATH. It fails the test if there is none, and skips it under go test -short.
func Binary(t testing.TB) string {
	t.Helper()
	Long(t, "an engine")
	root := ModuleRoot(t)
	built := filepath.Join(root, ".tools", "bin", "tofu")
	if _, err := os.Stat(built); err == nil {
		return built
	}
	for _, name := range []string{"tofu", "terraform"} {
		if found, err := exec.LookPath(name); err == nil {
			return found
		}
	}
	t.Fatalf("no tofu at %s, and neither tofu nor terraform on PATH: run make tools", built)
	return ""
}

// cliConfig makes the engine install the provider only from the mirror.
func cliConfig(mirror string) []byte {
	file := hclwrite.NewEmptyFile()
	block := file.Body().AppendNewBlock("provider_installation", nil).Body().AppendNewBlock("filesystem_mirror", nil)
	block.Body().SetAttributeValue("path", cty.StringVal(mirror))
	block.Body().SetAttributeValue("include", cty.ListVal([]cty.Value{cty.StringVal(Provider)}))
	return file.Bytes()
}

// String names the engine, for failure messages.
func (e *Engine) String() string { return fmt.Sprintf("engine %s", e.binary) }
