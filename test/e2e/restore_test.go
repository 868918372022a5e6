package e2e_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/demo"
	"github.com/numaform/numaform/internal/testenv"
)

// guestsOf returns the configurations of the VMs that are not templates, by VMID.
func guestsOf(stage *demo.Stage) map[int]string {
	guests := map[int]string{}
	for _, guest := range stage.Sim.Guests() {
		if guest.Config["template"] != "1" {
			guests[guest.VMID] = guest.Raw
		}
	}
	return guests
}

// lose deletes directories.
func lose(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRestoreOldBackup makes a backup, removes a VM and creates another, loses the fleet and its
// history, and also the key and the states if these are local, and restores the backup: no VM is
// created, changed or deleted, and each is in the fleet or named. Later applies finish without
// a change of an existing VM.
func TestRestoreOldBackup(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"local", "http"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			stage := oneHost(t)
			server := testenv.HTTPState(t)
			if backend == "http" {
				edit(t, stage, "numaform.yaml", "backend: {type: local}", "backend: {type: http, config: {address: '"+server.URL+"/states'}}")
			}
			run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
			file := filepath.Join(stage.Dir, "backup.tar.gz")
			out := run(t, stage, cli.ExitOK, "backup", "--plain", "-o", file)
			if !strings.Contains(out, "1 state and the key of the history") || !strings.Contains(out, "Wrote the fleet in directory "+stage.Fleet()+" to ") {
				t.Errorf("backup printed:\n%s", out)
			}
			run(t, stage, cli.ExitFailed, "backup", "--plain", "-o", file) // it exists
			gone := vmOf(t, stage, 2000)
			run(t, stage, cli.ExitOK, "remove", gone.Name, "-f", stage.Manifests(), "--auto-approve")
			before := guestsOf(stage)
			run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
			guests := guestsOf(stage)
			var newer []string
			for vmid := range guests {
				if _, existed := before[vmid]; !existed {
					newer = append(newer, vmOf(t, stage, fleet.VMID(vmid)).Name)
				}
			}
			if len(newer) != 1 || len(before) == 0 {
				t.Fatalf("after the backup, VMs %v were created besides %d: want one", newer, len(before))
			}
			// The fleet is newer than the backup, so nothing is to be restored.
			out = run(t, stage, cli.ExitOK, "restore", file, "--write")
			if !strings.Contains(out, "newer than the backup by 2 changes") {
				t.Errorf("restore into a newer fleet printed:\n%s", out)
			}
			wantUnchanged(t, stage, guests)
			run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--detailed-exitcode")

			lose(t, stage.Fleet())
			if backend == "local" {
				lose(t, stage.StateDir())
			}
			out = run(t, stage, cli.ExitOK, "restore", file)
			for _, want := range []string{
				"Nothing was written", gone.Name + " ", "does not exist: its file is left out", newer[0] + " ", "newer than the backup: not changed",
			} {
				if !strings.Contains(out, want) {
					t.Errorf("restore does not print %q:\n%s", want, out)
				}
			}
			if strings.Contains(out, "Key of the history: missing") != (backend == "local") {
				t.Errorf("restore with a key that exists, or not:\n%s", out)
			}
			if _, err := os.Stat(stage.Fleet()); err == nil {
				t.Error("restore without --write wrote the fleet")
			}
			out = run(t, stage, cli.ExitOK, "restore", file, "--write")
			t.Logf("restore:\n%s", out)
			if backend == "http" != strings.Contains(out, "removed VM "+newer[0]+" from its state") {
				t.Errorf("restore with states in %s printed:\n%s", backend, out)
			}
			wantUnchanged(t, stage, guests)
			restored, _ := readFleet(t, stage.Fleet())
			if len(restored.VMs) != len(guests)-1 || slices.ContainsFunc(restored.VMs, func(vm fleet.VM) bool { return vm.Key == gone.Key || vm.Name == newer[0] }) {
				t.Errorf("the fleet has %d VMs of %d guests, want all but %s", len(restored.VMs), len(guests), newer[0])
			}
			if out := run(t, stage, cli.ExitOK, "history"); strings.Contains(out, "unverified") || !strings.Contains(out, "scale-up") || !strings.Contains(out, "restored from the backup of") {
				t.Errorf("the history after the restore:\n%s", out)
			}
			// If the key was not lost, the history is older than what it signed, which the restore
			// has accepted.
			if out := run(t, stage, cli.ExitOK, "history", "verify"); strings.Contains(out, "(accepted by change") != (backend == "http") {
				t.Errorf("verify after the restore:\n%s", out)
			}
			out = run(t, stage, cli.ExitOK, "restore", file, "--write")
			if !strings.Contains(out, "newer than the backup by 1 change") {
				t.Errorf("a second restore printed:\n%s", out)
			}

			// Pods that ran on the newer VM get another one, whose VMID and CPUs are free.
			for range 2 {
				run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
			}
			run(t, stage, cli.ExitOK, "plan", "-f", stage.Manifests(), "--detailed-exitcode")
			after := guestsOf(stage)
			keys := map[fleet.Key]int{}
			for vmid, raw := range after {
				guest, _ := stage.Sim.Guest(vmid)
				marker, _ := fleet.ParseMarker(guest.Config["description"])
				if other, twice := keys[marker.Key]; twice {
					t.Errorf("VMs %d and %d have the same key", vmid, other)
				}
				keys[marker.Key] = vmid
				if was, existed := guests[vmid]; existed && was != raw {
					t.Errorf("VM %d changed (-before +after):\n%s", vmid, cmp.Diff(was, raw))
				}
			}
			for vmid := range guests {
				if _, exists := after[vmid]; !exists {
					t.Errorf("VM %d was destroyed", vmid)
				}
			}
			if _, again := keys[gone.Key]; again {
				t.Errorf("VM %s, which was removed after the backup, was created again", gone.Name)
			}
			for _, err := range startFaults(t, stage) {
				t.Error(err)
			}
		})
	}
}

// wantUnchanged checks that the VMs are exactly the given ones.
func wantUnchanged(t *testing.T, stage *demo.Stage, want map[int]string) {
	t.Helper()
	if diff := cmp.Diff(want, guestsOf(stage)); diff != "" {
		t.Fatalf("VMs in Proxmox (-want +got):\n%s", diff)
	}
}

// TestRestoreRefuses checks the errors of backup and restore.
func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	stage := oneHost(t)
	phrase, wrong := filepath.Join(stage.Dir, "phrase"), filepath.Join(stage.Dir, "wrong")
	for path, text := range map[string]string{phrase: "correct horse battery staple\n", wrong: "another\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run(t, stage, cli.ExitOK, "apply", "-f", stage.Manifests(), "--auto-approve")
	file := filepath.Join(stage.Dir, "backup.age")
	for _, args := range [][]string{
		{"backup"}, {"backup", "-o", file}, {"backup", "-o", file, "--plain", "--passphrase-file", phrase}, {"backup", "-o", file, "--recipient", "age1x"},
	} {
		run(t, stage, cli.ExitUsage, args...)
	}
	run(t, stage, cli.ExitOK, "backup", "-o", file, "--passphrase-file", phrase)
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(content, []byte("manifest")) {
		t.Error("the backup is not encrypted")
	}
	edited := filepath.Join(stage.Dir, "edited.age")
	damaged := bytes.Clone(content)
	damaged[len(damaged)-5] ^= 1
	if err := os.WriteFile(edited, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	guests := guestsOf(stage)
	run(t, stage, cli.ExitFailed, "restore", file)
	run(t, stage, cli.ExitFailed, "restore", file, "--passphrase-file", wrong)
	run(t, stage, cli.ExitFailed, "restore", edited, "--passphrase-file", phrase, "--write")
	run(t, stage, cli.ExitFailed, "restore", filepath.Join(stage.Dir, "numaform.yaml"))
	run(t, stage, cli.ExitOK, "restore", file, "--passphrase-file", phrase)

	// Another cluster's backup, and a fleet with another key.
	edit(t, stage, "numaform.yaml", "clusterID: quickstart", "clusterID: rival")
	run(t, stage, cli.ExitFailed, "restore", file, "--passphrase-file", phrase, "--write")
	edit(t, stage, "numaform.yaml", "clusterID: rival", "clusterID: quickstart")
	lose(t, filepath.Join(stage.StateDir(), "history")) // the next change creates another key
	run(t, stage, cli.ExitOK, "remove", vmOf(t, stage, 2000).Name, "-f", stage.Manifests(), "--auto-approve")
	delete(guests, 2000)
	run(t, stage, cli.ExitFailed, "restore", file, "--passphrase-file", phrase, "--write")
	wantUnchanged(t, stage, guests)
}
