package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/cli"
)

// TestRemoveVMThatIsGone checks that, after a VM was deleted by hand, status reports the
// missing VM, plan re-creates it, and remove deletes its file.
func TestRemoveVMThatIsGone(t *testing.T) {
	t.Parallel()
	stage := oneHost(t)
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	stage.Sim.RemoveGuest(2000)
	name := vmOf(t, stage, 2000).Name

	// status reports the missing VM.
	out := run(t, stage, cli.ExitOK, "status")
	for _, want := range []string{", 1 missing;", name + ": missing from Proxmox: ", "Last change", "NODEPOOL", "\nNext: numaform plan "} {
		if !strings.Contains(out, want) {
			t.Errorf("status does not print %q:\n%s", want, out)
		}
	}
	vms := run(t, stage, cli.ExitOK, "get", "vms")
	if strings.Count(vms, "missing") != 1 || !strings.Contains(vms, "running") {
		t.Errorf("get vms:\n%s", vms)
	}
	run(t, stage, cli.ExitOK, "get", "hosts", "-o", "json")

	// The plan names the VM that it re-creates, and gives the reason.
	out = run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests())
	for _, want := range []string{"re-create 1 VM", "-/+  " + name, "re-create: its file is in the fleet, but the VM no longer exists in Proxmox"} {
		if !strings.Contains(out, want) {
			t.Errorf("plan does not print %q:\n%s", want, out)
		}
	}
	// A second plan prints the same plan, with the command that applies it.
	plans := func(out string) string { _, after, _ := strings.Cut(out, "Plans\n"); return after }
	again := run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests())
	if diff := cmp.Diff(plans(out), plans(again)); diff != "" {
		t.Errorf("plans (-first +second):\n%s", diff)
	}
	if !strings.HasSuffix(out, " -f "+stage.Manifests()+"\n") || !strings.Contains(out, "\nTo apply it: numaform apply ") {
		t.Errorf("the plan does not end with the command that applies it:\n%s", out)
	}
	if out := run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "-o", "yaml"); !strings.Contains(out, "- action: re-create\n") {
		t.Errorf("plan -o yaml does not contain the action:\n%s", out)
	}
	run(t, stage, cli.ExitOK, "remove", name, "-f", stage.Manifests(), "--auto-approve")
	desired, _ := readFleet(t, stage.Fleet())
	for _, vm := range desired.VMs {
		if vm.VMID == 2000 {
			t.Errorf("vm %s is still in the fleet", vm.Name)
		}
	}
}

// busy is a Node that runs a pod.
const busy = `apiVersion: v1
kind: Node
metadata:
  name: pinned-2000
---
apiVersion: v1
kind: Pod
metadata: {name: busy, namespace: default}
spec:
  nodeName: pinned-2000
  containers: [{name: busy, image: registry.example/busy:1}]
`

// TestDeletedFileIsARequest checks that, after a node file was deleted by hand, the VM
// remains while its Node runs pods, is deleted afterwards, and is re-created when the file
// is restored.
func TestDeletedFileIsARequest(t *testing.T) {
	t.Parallel()
	stage := oneHost(t)
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	before := stage.Sim.Guests()
	paths, err := filepath.Glob(filepath.Join(stage.Fleet(), "*", "*", "node-pinned-2000.tf"))
	if err != nil || len(paths) != 1 {
		t.Fatalf("file of pinned-2000: %v, %v", paths, err)
	}
	content, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(paths[0]); err != nil {
		t.Fatal(err)
	}
	if out := run(t, stage, cli.ExitFailed, "plan", "-f", stage.Manifests()); !strings.Contains(out, "the manifests contain no Node") {
		t.Errorf("plan does not report that the manifests contain no Node:\n%s", out)
	}
	// Nothing else is requested, so nothing else changes.
	node := filepath.Join(stage.Dir, "node.yaml")
	if err := os.WriteFile(node, []byte(busy), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"plan", "apply"} {
		args := []string{command, "-f", node}
		if command == "apply" {
			args = append(args, "--auto-approve")
		}
		code := cli.ExitFailed
		if out := run(t, stage, code, args...); !strings.Contains(out, "node pinned-2000 still runs pods") {
			t.Errorf("%s does not report why the VM is not removed:\n%s", command, out)
		}
	}
	for _, guest := range before {
		if after, ok := stage.Sim.Guest(guest.VMID); !ok || after.Raw != guest.Raw || after.Running != guest.Running {
			t.Errorf("guest %d was changed", guest.VMID)
		}
	}
	empty := filepath.Join(stage.Dir, "empty.yaml")
	if err := os.WriteFile(empty, []byte(controlPlane), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, stage, cli.ExitOK, "apply", "-f", empty, "--auto-approve")
	if _, exists := stage.Sim.Guest(2000); exists {
		t.Error("the VM still exists")
	}
	if len(stage.Sim.Guests()) != len(before)-1 {
		t.Errorf("%d guests, before %d", len(stage.Sim.Guests()), len(before))
	}
	if err := os.WriteFile(paths[0], content, 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, stage, cli.ExitOK, "apply", "-f", empty, "--auto-approve")
	compare(t, stage)
	out := run(t, stage, cli.ExitOK, "history", "pinned-2000")
	if strings.Count(out, ": by-hand\n") != 2 || !strings.Contains(out, "files were deleted: pinned-2000") || !strings.Contains(out, "files were restored: pinned-2000") {
		t.Errorf("the history does not list the changes by hand:\n%s", out)
	}
}
