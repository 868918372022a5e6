package e2e_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/crd"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/topology"
)

// netbootTemplate returns the template of examples/netboot: it runs the script with a
// stand-in for qm, and converts the options of its qm create.
func netbootTemplate(t *testing.T, vmid int) topology.Template {
	t.Helper()
	dir := t.TempDir()
	qm := "#!/bin/sh\nfor word; do echo \"$word\"; done >>\"$LOG\"; echo end >>\"$LOG\"\n"
	if err := os.WriteFile(filepath.Join(dir, "qm"), []byte(qm), 0o700); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "log")
	cmd := exec.CommandContext(t.Context(), "sh", "../../examples/netboot/make-template.sh", fmt.Sprint(vmid), "netboot", "local-lvm")
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "LOG="+log)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	create, rest, _ := strings.Cut(string(text), "\nend\n")
	if want := fmt.Sprintf("template\n%d\nend\n", vmid); rest != want {
		t.Fatalf("after qm create, the script calls qm with %q, want %q", rest, want)
	}
	words := strings.Split(create, "\n")
	options := map[string]string{}
	for i := 2; i+1 < len(words); i += 2 {
		options[strings.TrimPrefix(words[i], "--")] = words[i+1]
	}
	if options["name"] != "netboot" || options["scsi0"] != "local-lvm:1" {
		t.Fatalf("the script creates %v", options)
	}
	delete(options, "scsi0")
	return topology.Template{VMID: vmid, Name: "netboot", DiskInterface: "scsi0", DiskGiB: 1, Storage: "local-lvm", Options: options}
}

// TestNetboot checks that nodes of a template without an operating system boot from the
// network until their disk has one, and that the plan contains their MAC addresses.
func TestNetboot(t *testing.T) {
	t.Parallel()
	stage := quickstart(t, func(config *pvesim.Config) {
		for i := range config.Hosts {
			config.Hosts[i].Templates = append(config.Hosts[i].Templates, netbootTemplate(t, 9101+i))
		}
	})
	onOneHost(t, stage)
	edit(t, stage, "manifests/nodepools.yaml", "  template: {name: debian-13-k8s}\n  clone: linked\n  placement: {policy: Shared, overcommit: \"2\"}\n",
		"  template: {name: netboot}\n  bootDevice: {size: 40G}\n  networks: [{bridge: vmbr0, macPrefix: \"BC:24:11\"}]\n  placement: {policy: Shared, overcommit: \"2\"}\n")

	out := filepath.Join(stage.Dir, "planned")
	run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--out", out, "--no-engine")
	planned, _ := readFleet(t, out)
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	compare(t, stage)

	text, err := os.ReadFile("../../examples/netboot/nodeclass.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := crd.Admit(text, &v1alpha1.ProxmoxNodeClass{}); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"groups/workers.json", "profiles/worker.json"} {
		text, err := os.ReadFile(filepath.Join("../../examples/netboot/matchbox", name))
		if err != nil || !json.Valid(text) {
			t.Errorf("%s: %v, valid %t", name, err, json.Valid(text))
		}
	}

	booted := 0
	for i := range planned.VMs {
		vm := &planned.VMs[i]
		if vm.Template != "netboot" {
			continue
		}
		booted++
		guest, ok := stage.Sim.Guest(int(vm.VMID))
		if !ok || guest.Config["boot"] != "order=scsi0;net0" {
			t.Errorf("VM %s: exists %t, boots from %q", vm.Name, ok, guest.Config["boot"])
		}
		if mac := vm.Networks[0].MAC; !strings.HasPrefix(mac, "BC:24:11:") || !strings.Contains(guest.Config["net0"], "virtio="+mac) {
			t.Errorf("VM %s: the plan has MAC address %s, Proxmox %s", vm.Name, mac, guest.Config["net0"])
		}
		if disk := guest.Config["scsi0"]; !strings.HasPrefix(disk, "local-lvm:") || !strings.Contains(disk, "size=40G") {
			t.Errorf("VM %s: its disk is %s", vm.Name, disk)
		}
		if guest.Config["name"] != fleet.NodeName(vm.Pool, vm.VMID) {
			t.Errorf("VM %d: its name is %s", vm.VMID, guest.Config["name"])
		}
	}
	if booted == 0 {
		t.Error("no VM boots from the network")
	}
}
