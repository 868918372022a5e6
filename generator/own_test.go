package generator_test

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/modules"
)

// rendered returns the files of a fleet with one VM.
func rendered(t *testing.T) generator.Files {
	t.Helper()
	files, err := generator.Render(fleetOf(vmAt(somewhere, 2001)))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestOwnsWhatItRenders checks that Owns and Select recognize every rendered file, and that
// none is reported as unmanaged.
func TestOwnsWhatItRenders(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		files, err := generator.Render(fleets().Draw(t, "fleet"))
		if err != nil {
			t.Fatal(err)
		}
		for name, content := range files {
			if !generator.Owns(name, content) {
				t.Errorf("Owns(%s) is false", name)
			}
		}
		if diff := cmp.Diff(files, generator.Select(files)); diff != "" {
			t.Errorf("selected (-rendered +got):\n%s", diff)
		}
		if unmanaged := generator.Unmanaged(files, files); len(unmanaged) > 0 {
			t.Errorf("unmanaged: %v", unmanaged)
		}
	})
}

func TestOwnsNoOtherFiles(t *testing.T) {
	t.Parallel()
	files := rendered(t)
	main, node := files[mainFile], files[nodeFile]
	for name, content := range map[string][]byte{
		// These files would be numaform's by their path, but not by their content.
		mainFile: []byte("terraform {}\n"), nodeFile: []byte("module \"x\" {}\n"), "region-1/pve-1/node-x.tf": main,
		"fleet.json": []byte(`{"cluster_id": 7}`), ".gitignore": []byte("*.swp\n"),
		// These files would be numaform's by their content, but not by their path.
		"main.tf": main, "a/main.tf": main, "a/b/c/main.tf": main, "modules/pve-1/main.tf": main, "region-1/templates/main.tf": main,
		"region-1/pve-1/vm.tf": node, "region-1/pve-1/node-x_override.tf": node, "region-1/pve-1/.main.tf": main,
		"a/fleet.json": files["fleet.json"], "a/.gitignore": files[".gitignore"],
		"modules/proxmox-node/main.tf": nil, "modules/proxmox-node/x/main.tf": nil, "modules/vpc/" + modules.Hash() + "/main.tf": nil,
		"region-1/pve-1/" + generator.ImportFile: main,
	} {
		if generator.Owns(name, content) {
			t.Errorf("Owns(%s) is true", name)
		}
	}
	for _, conflict := range []string{mainFile, nodeFile, "fleet.json"} {
		if !generator.Owns(conflict, slices.Concat([]byte("<<<<<<< HEAD\n"), files[conflict])) {
			t.Errorf("Owns(%s) is false after a merge", conflict)
		}
	}
}

func TestSelect(t *testing.T) {
	t.Parallel()
	files := rendered(t)
	unmanaged := generator.Files{
		"network.tf": nil, "aws/prod/main.tf": nil, "aws/prod/node-x.tf": nil, "aws/fleet.json": []byte("{}"),
		"modules/vpc/main.tf": nil, "region-1/other/main.tf": nil, "README.md": nil, "region-1/pve-1/notes.txt": nil,
	}
	strays := generator.Files{"region-1/pve-1/x.tf": nil, "region-1/pve-1/node-x.tf": nil, "region-1/pve-1/x.auto.tfvars.json": nil}
	maps.Copy(files, strays)
	want := maps.Clone(files)
	maps.Copy(files, unmanaged)
	if diff := cmp.Diff(want, generator.Select(files)); diff != "" {
		t.Errorf("with a fleet (-want +got):\n%s", diff)
	}
	unmanaged[".gitignore"], unmanaged["fleet.json"] = []byte("*.swp\n"), []byte("{}")
	maps.Copy(unmanaged, strays)
	if got := generator.Select(unmanaged); len(got) > 0 {
		t.Errorf("without a fleet: %v", got)
	}
	if got := generator.ClusterOf(want); got != "prod" {
		t.Errorf("cluster %q", got)
	}
	if got := generator.ClusterOf(unmanaged); got != "" {
		t.Errorf("cluster %q without a fleet", got)
	}
	if diff := cmp.Diff([]string{"region-1/pve-1/node-x.tf", "region-1/pve-1/x.auto.tfvars.json", "region-1/pve-1/x.tf"},
		generator.Unmanaged(files, rendered(t))); diff != "" {
		t.Errorf("in the way (-want +got):\n%s", diff)
	}
}

func TestMergeIgnore(t *testing.T) {
	t.Parallel()
	ours := string(rendered(t)[".gitignore"])
	for name, tt := range map[string]struct{ have, want, result string }{
		"ours":             {ours, ours, ours},
		"ours, to change":  {ours, "x\n", "x\n"},
		"empty":            {"", ours, ours},
		"theirs":           {"*.swp", ours, "*.swp\n" + ours},
		"some of ours":     {".terraform/\n*.swp\n", ours, ".terraform/\n*.swp\n" + strings.Replace(ours, ".terraform/\n", "", 1)},
		"theirs, and more": {"*.swp\n", "a\n*.swp\nb\n", "a\n*.swp\nb\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := generator.MergeIgnore([]byte(tt.have), []byte(tt.want))
			if diff := cmp.Diff(tt.result, string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if again := generator.MergeIgnore(got, []byte(ours)); !bytes.Equal(again, generator.MergeIgnore(again, []byte(ours))) {
				t.Errorf("it grows: %s", again)
			}
		})
	}
}
