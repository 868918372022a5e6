package state_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/state"
)

// TestEnvironments checks that each process gets only the variables that it needs.
func TestEnvironments(t *testing.T) {
	t.Parallel()
	own := []string{
		"PATH=/bin", "HOME=/root", "https_proxy=http://p", "SSL_CERT_DIR=/c", "TF_ENCRYPTION=key",
		"ARM_CLIENT_SECRET=s", "AWS_SECRET_ACCESS_KEY=s", "CONSUL_HTTP_TOKEN=s", "GOOGLE_CREDENTIALS=s", "KUBE_TOKEN=s", "KUBERNETES_SERVICE_HOST=h",
		"PG_CONN_STR=s", "PGPASSWORD=s", "TF_HTTP_PASSWORD=s", "TF_TOKEN_example_com=s",
		"KUBECONFIG=/k", "PGP_PASSPHRASE=s", "SSH_AUTH_SOCK=/a", "NUMAFORM_GIT_TOKEN=s", "COSIGN_PASSWORD=s", "PROXMOX_VE_API_TOKEN=other",
		"TF_VAR_x=1", "TF_CLI_ARGS=-destroy", "TF_CLI_CONFIG_FILE=/nonexistent", "TF_LOG=TRACE", "TF_WORKSPACE=w",
		"TF_DATA_DIR=/d", "TF_REATTACH_PROVIDERS={}", "GOGC=off", "SHELL=/bin/sh", "NUMAFORM_RUN=x", "NUMAFORM_CLUSTER=x",
	}
	basics := []string{"CHECKPOINT_DISABLE=1", "GOGC=200", "HOME=/root", "NUMAFORM_RUN=mark", "PATH=/bin", "https_proxy=http://p"}
	system := append(slices.Clone(basics), "SSL_CERT_DIR=/c")
	region := []string{"PROXMOX_VE_API_TOKEN=ours", "SSL_CERT_DIR=/region"}
	for backend, variables := range map[string][]string{
		"local": nil, "azurerm": {"ARM_CLIENT_SECRET=s"}, "s3": {"AWS_SECRET_ACCESS_KEY=s"}, "consul": {"CONSUL_HTTP_TOKEN=s"},
		"gcs": {"GOOGLE_CREDENTIALS=s"}, "kubernetes": {"KUBE_TOKEN=s", "KUBERNETES_SERVICE_HOST=h"},
		"pg": {"PG_CONN_STR=s", "PGPASSWORD=s"}, "http": {"TF_HTTP_PASSWORD=s", "TF_HTTP_USERNAME=u"},
	} {
		for _, encrypted := range []bool{false, true} {
			config := &state.Config{Encryption: encrypted, Env: map[string]string{
				"PROXMOX_VE_API_TOKEN": "ours", "SSL_CERT_DIR": "/region", "TF_HTTP_USERNAME": "u", "TF_LOG": "TRACE",
			}}
			engine, provider, download := state.Environments(own, config, backend)
			want := append(slices.Clone(system), "TF_CLI_CONFIG_FILE=/dev/null")
			want = append(want, variables...)
			if encrypted {
				want = append(want, "TF_ENCRYPTION=key")
			}
			for name, tt := range map[string]struct {
				got  map[string]string
				want []string
			}{
				"engine": {engine, want}, "provider": {provider, append(slices.Clone(basics), region...)},
				"download": {download, append(slices.Clone(system), "TF_TOKEN_example_com=s")},
			} {
				if len(tt.got["NUMAFORM_CLUSTER"]) != 64 {
					t.Errorf("%s, %s: no hash of the cluster: %v", backend, name, tt.got)
				}
				delete(tt.got, "NUMAFORM_CLUSTER")
				var lines []string
				for key, value := range tt.got {
					lines = append(lines, key+"="+value)
				}
				slices.Sort(lines)
				slices.Sort(tt.want)
				if diff := cmp.Diff(tt.want, lines); diff != "" {
					t.Errorf("%s, %s, encrypted %t: %s", backend, name, encrypted, diff)
				}
			}
		}
	}
}

func TestHide(t *testing.T) {
	t.Parallel()
	env := map[string]string{
		"PROXMOX_VE_API_TOKEN": "numaform@pve!scaler=11112222-canary", "PROXMOX_VE_PASSWORD": "canary-pass", "PROXMOX_VE_CSRF_PREVENTION_TOKEN": "canary-csrf",
		"PROXMOX_VE_ENDPOINT": "https://pve", "SHORT_TOKEN": "x", "EMPTY_TOKEN": "",
		"PG_CONN_STR": "postgres://u:canary-url@db/x", "OTHER_CONN_STR": "host=db password='canary-list' user=u",
	}
	in := "a numaform@pve!scaler=11112222-canary b 11112222-canary c canary-pass d canary-csrf e https://pve xyz u:canary-url@127.0.0.1 canary-list"
	want := "a [redacted] b [redacted] c [redacted] d [redacted] e https://pve xyz u:[redacted]@127.0.0.1 [redacted]"
	if got := state.Hide(env, in); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestHideAll checks that every secret that a process of the workspace gets is hidden,
// whatever its source.
func TestHideAll(t *testing.T) {
	t.Parallel()
	own := []string{
		"PG_CONN_STR=postgres://u:canary-1@db/x", "TF_ENCRYPTION=canary-2", "TF_TOKEN_registry_example=canary-3", "AWS_SECRET_ACCESS_KEY=canary-4",
		"PG_SCHEMA_NAME=plain-1", "EDITOR_TOKEN=plain-2",
	}
	c := &state.Config{Env: map[string]string{"PROXMOX_VE_API_TOKEN": "numaform@pve!t=canary-5", "PROXMOX_VE_ENDPOINT": "plain-3"}}
	for n := range 5 {
		secret := fmt.Sprintf("canary-%d", n+1)
		if got := state.HideAll(own, c, "it is "+secret+"."); got != "it is [redacted]." {
			t.Errorf("%s: got %q", secret, got)
		}
	}
	// No process of the workspace gets EDITOR_TOKEN, and the other two variables are not
	// secret.
	for _, plain := range []string{"plain-1", "plain-2", "plain-3"} {
		if got := state.HideAll(own, c, plain); got != plain {
			t.Errorf("%s: got %q", plain, got)
		}
	}
}

func TestParseLock(t *testing.T) {
	t.Parallel()
	const boxed = `
Error: Error acquiring the state lock

Error message: the state is already locked by another terraform client
Lock Info:
  ID:        4a5b
  Path:      tfstate-default-x
  Operation: OperationTypePlan
  Who:       ann@laptop
  Version:   1.11.4
  Created:   2026-01-02 03:04:05.678 +0000 UTC
  Info:      

Terraform acquires a state lock to protect the state.`
	got := state.ParseLock(boxed)
	want := &state.LockedError{LockInfo: state.LockInfo{ID: "4a5b", Operation: "OperationTypePlan", Who: "ann@laptop", Created: time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)}, Path: "tfstate-default-x", Holder: state.HolderUnknown}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// Terraform describes its own attempt on a lock of the http backend, and wraps the line with the
	// ID of the holder.
	const attempt = "Error: Error acquiring the state lock\n\nError message: HTTP remote state already locked:\n│ ID=f6e52bfb-c7a6-fb4c-f808-822cb92588ce\nLock Info:\n  ID:        79155377\n"
	if got := state.ParseLock(attempt); got == nil || got.ID != "f6e52bfb-c7a6-fb4c-f808-822cb92588ce" {
		t.Errorf("got %+v, want the ID of the holder", got)
	}
	for name, text := range map[string]string{
		"another error":         "Error: Unsupported argument\n  ID: 1",
		"backend not reachable": "Error: Error acquiring the state lock\n\nError message: connection refused",
		"nothing":               "",
	} {
		if got := state.ParseLock(text); got != nil {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

func TestParseState(t *testing.T) {
	t.Parallel()
	got, err := state.ParseState([]byte(`{"resources":[
	{"module":"module.w-2001","mode":"managed","type":"proxmox_virtual_environment_vm","name":"node","instances":[
		{"status":"tainted","attributes":{"vm_id":2001,"node_name":"pve-1","description":"d"}},
		{"deposed":"0a","attributes":{"vm_id":2000}}]},
	{"mode":"managed","type":"t","name":"n","instances":[{"index_key":0},{"index_key":"a\"b"}]},
	{"mode":"data","type":"t","name":"d","instances":[{}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := []state.Resource{
		{Address: "module.w-2001.proxmox_virtual_environment_vm.node", Tainted: true, VMID: 2001, Host: "pve-1", Description: "d"},
		{Address: `t.n["a\"b"]`},
		{Address: "t.n[0]"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := state.ParseState([]byte("{")); err == nil {
		t.Error("half a state parses")
	}
}

func TestTaintedResource(t *testing.T) {
	t.Parallel()
	b := newBackend(t)
	w := open(t, root(t, httpBackend(b)), nil)
	mustApply(t, w, mustPlan(t, w, state.PlanOptions{}))
	// OpenTofu writes its state without spaces, Terraform with spaces.
	text := strings.ReplaceAll(string(b.saved()), `"schema_version": 0,`, `"schema_version":0,`)
	b.setState([]byte(strings.Replace(text, `"schema_version":0,`, `"schema_version":0,"status":"tainted",`, 1)))
	resources, err := w.Resources(t.Context())
	if err != nil || !resources[0].Tainted {
		t.Fatalf("got %+v, %v, want the first tainted", resources, err)
	}
}

func TestTargets(t *testing.T) {
	t.Parallel()
	w := open(t, root(t, localBackend), nil)
	plan := mustPlan(t, w, state.PlanOptions{Targets: []string{both[1]}})
	if len(plan.JSON.ResourceChanges) != 1 || plan.JSON.ResourceChanges[0].Address != both[1] {
		t.Errorf("plan is\n%s", plan.Text)
	}
}

func TestForget(t *testing.T) {
	t.Parallel()
	w := open(t, root(t, localBackend), nil)
	mustApply(t, w, mustPlan(t, w, state.PlanOptions{}))
	if err := w.Forget(t.Context(), both[1]); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(both[:1], addresses(t, w)); diff != "" {
		t.Error(diff)
	}
}

// TestForgetWithoutMemory checks that Forget succeeds if the record of the state's content
// is missing, and fails if the record cannot be read.
func TestForgetWithoutMemory(t *testing.T) {
	t.Parallel()
	dir := root(t, localBackend)
	w := open(t, dir, nil)
	if err := w.Forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, ".terraform", "numaform", "known.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := w.Forget(t.Context()); !errors.Is(err, syscall.EISDIR) {
		t.Errorf("got %v, want that it cannot be read", err)
	}
}
