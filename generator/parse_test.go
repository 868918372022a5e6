package generator_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/modules"
)

const (
	nodeFile = "region-1/pve-1/node-workers-2001.tf"
	mainFile = "region-1/pve-1/main.tf"
)

// TestParseRefuses checks the error of Parse for edits of one file, with and without a memo of
// the original files.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	const remove = "(remove)"
	cases := map[string]struct {
		file, old, new string
		want           string
	}{
		"unknown attribute":  {nodeFile, "  vm_id ", "  vm_ids ", nodeFile + `:14: vm_ids: unknown attribute "vm_ids": restore`},
		"unknown in object":  {nodeFile, "    full ", "    fill ", nodeFile + `:24: clone: unknown attribute "fill"`},
		"wrong kind":         {nodeFile, `= 2001`, `= "x"`, nodeFile + ":14: vm_id: must not be a string: restore"},
		"too large a number": {nodeFile, `= 2001`, `= 99999999999999999999`, nodeFile + ":14: vm_id: must not be a number 99999999999999999999"},
		"a merge conflict":   {nodeFile, "  vm_id ", "<<<<<<< HEAD\n  vm_id ", nodeFile + ":14: contains merge conflict markers: restore one version of the file from version control; during a merge, run git checkout --ours"},
		"one in the index":   {"fleet.json", "{", "<<<<<<< HEAD\n{", "fleet.json:1: contains merge conflict markers"},
		"one at the end":     {mainFile, "}\n", "}\n>>>>>>> theirs\n", "contains merge conflict markers"},
		"a value":            {nodeFile, "8192\n", "16384\n", nodeFile + ":4: was edited"},
		"a comment":          {nodeFile, "# Size", "# size", nodeFile + ":4: was edited"},
		"a comment more":     {nodeFile, "module \"", "# mine\nmodule \"", nodeFile + ":8: was edited"},
		"a second value":     {nodeFile, "    full  = false", "    full  = true\n    full  = false", nodeFile + ":26: was edited"},
		"an expression":      {nodeFile, `"debian"`, `lower("debian")`, "Function calls not allowed"},
		"a reference":        {nodeFile, `"debian"`, `var.template`, "Variables not allowed"},
		"an unknown format":  {nodeFile, "format_version = 1", "format_version = 0", nodeFile + ":11: has the unknown format 0"},
		"a newer format":     {nodeFile, "format_version = 1", "format_version = 2", nodeFile + ":11: has format 2, but this numaform supports only formats up to 1: upgrade numaform"},
		"a newer one with more": {
			nodeFile, "format_version = 1", "format_version = 2\n  more = 1",
			nodeFile + ":11: has format 2, but this numaform supports only formats up to 1: upgrade numaform",
		},
		"format of another kind": {nodeFile, "format_version = 1", `format_version = "1"`, nodeFile + ":11: format_version: must not be a string"},
		"no format":              {nodeFile, "  format_version = 1\n", "", "has no format_version"},
		"no source":              {nodeFile, "  source = ", "  origin = ", "has no source"},
		"another module":         {nodeFile, "../../modules", "../modules", nodeFile + ":9: calls a module that does not belong to numaform"},
		"name for a terminal":    {nodeFile, `name           = "workers-2001"`, `name           = "workers\u001b[2J"`, `contains VM workers\x1b[2J, which belongs in`},
		"another name":           {nodeFile, `name           = "workers-2001"`, `name           = "workers-2002"`, "contains VM workers-2002, which belongs in region-1/pve-1/node-workers-2002.tf"},
		"another host":           {nodeFile, `node_name      = "pve-1"`, `node_name      = "pve-2"`, "which belongs in region-1/pve-2/node-workers-2001.tf"},
		"a bad value":            {nodeFile, `policy        = "Shared"`, `policy        = "Best"`, nodeFile + `: vm workers-2001: policy "Best"`},
		"a huge number":          {nodeFile, "8192\n", "1e999999999\n", "memory_mib has a value that numaform does not write"},
		"two modules":            {nodeFile, "module \"", "module \"b\" {\n}\nmodule \"", nodeFile + ":10: has a second module call that is not for security groups"},
		"three modules":          {nodeFile, "module \"", "module \"b\" {\n}\nmodule \"c\" {\n}\nmodule \"", "must contain one module call"},
		"another kind of block":  {nodeFile, "module \"", "output \"b\" {\n}\nmodule \"", nodeFile + `:8: has a block "output"`},
		"another block":          {nodeFile, "  source =", "  providers {\n  }\n  source =", nodeFile + ":9: was edited"},
		"no HCL":                 {nodeFile, "module \"", "module ((", nodeFile + ":8: "},
		"line ends":              {nodeFile, "\n", "\r\n", nodeFile + ":1: was edited"},
		"cut off":                {nodeFile, "\n}\n", "\n}", nodeFile + ":"},
		"no exact provider":      {mainFile, `"0.111.1"`, `">= 0.111.1"`, mainFile + ":9: was edited"},
		"another provider":       {mainFile, "bpg/proxmox", "evil/proxmox", mainFile + ":8: was edited"},
		"main.tf":                {mainFile, "insecure = false", "insecure = true", mainFile + ":21: was edited"},
		"fleet.json gone":        {"fleet.json", remove, "", "fleet.json: is missing"},
		"fleet.json syntax":      {"fleet.json", `"prod",`, `"prod"`, "fleet.json:4: invalid character"},
		"fleet.json unknown":     {"fleet.json", `"cluster_id"`, `"cluster"`, `fleet.json: json: unknown field "cluster"`},
		"fleet.json type":        {"fleet.json", `"prod"`, `7`, "fleet.json:3: json: cannot unmarshal number"},
		"fleet.json format":      {"fleet.json", `version": 1`, `version": 9`, "fleet.json: has format 9, but this numaform supports only formats up to 1: upgrade numaform"},
		"fleet.json more":        {"fleet.json", "\n}\n", "\n}\n{}", "more than one JSON value"},
		"fleet.json value":       {"fleet.json", "https://", "http://", "fleet.json: region region-1: endpoint"},
		"fleet.json credential":  {"fleet.json", `"namespace"`, `"token"`, "set the environment variable KUBE_TOKEN"},
		"module":                 {"modules/proxmox-node/" + modules.Hash() + "/main.tf", "retries      = 1", "retries      = 9", modules.Hash() + "/main.tf:92: was edited: restore the file from version control, or remove the directory"},
		"a file in a module":     {"modules/proxmox-security-groups/" + modules.Hash() + "/zz.tf", "", "", modules.Hash() + "/zz.tf: is not a file of these modules: move"},
		"below a module":         {"modules/proxmox-node/" + modules.Hash() + "/more/main.tf", "", "", modules.Hash() + "/more/main.tf: is not a file of these modules: move"},
		"unknown modules":        {nodeFile, modules.Hash(), "0123456789abcdef", nodeFile + ":9: calls modules 0123456789abcdef, which this numaform does not contain; it contains 2eb0b7e97a74c03e, "},
		"modules of no hash":     {nodeFile, "proxmox-node/" + modules.Hash(), "proxmox-node/evil", nodeFile + ":9: calls modules evil, which this numaform does not contain"},
		"a node without header":  {nodeFile, "# Generated by numaform", "# Made", nodeFile + ": has no numaform header, but the engine would read it: restore"},
		"a file besides":         {"region-1/pve-1/extra.tf", "", "", "region-1/pve-1/extra.tf: was not written by numaform, but the engine would read it: move"},
		"an override":            {"region-1/pve-1/node-workers-2001_override.tf", "", "", "was not written by numaform"},
		"OpenTofu's own":         {"region-1/pve-1/x.tofu", "", "", "was not written by numaform"},
		"variables":              {"region-1/pve-1/terraform.tfvars", "", "", "was not written by numaform"},
		"JSON":                   {"region-1/pve-1/x.tf.json", "", "", "was not written by numaform"},
		"host of unknown region": {"region-9/pve-1/main.tf", "", "", `region "region-9" is not in fleet.json`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files, err := generator.Render(fleetOf(vmAt(somewhere, 2001)))
			if err != nil {
				t.Fatal(err)
			}
			remembering := generator.Current()
			remembering.Memo = &generator.Memo{}
			if _, err := remembering.Parse(files); err != nil {
				t.Fatal(err)
			}
			text, exists := string(files[c.file]), len(files[c.file]) > 0
			if exists && c.old != remove && !strings.Contains(text, c.old) {
				t.Fatalf("no %q in\n%s", c.old, text)
			}
			files[c.file] = []byte(strings.Replace(text, c.old, c.new, 1))
			if c.old == remove {
				delete(files, c.file)
			}
			_, err = generator.Parse(files)
			var where *generator.ParseError
			if !errors.As(err, &where) || where.Hint == "" {
				t.Fatalf("error without location and fix: %v", err)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error:\n%v\nwant:\n%s", err, c.want)
			}
			if _, again := remembering.Parse(files); again == nil || again.Error() != err.Error() {
				t.Errorf("with the files before the edit in memory:\n%v\nwant:\n%v", again, err)
			}
		})
	}
}

// TestParseIgnoresOtherFiles checks that Parse ignores files that the engine does not read.
func TestParseIgnoresOtherFiles(t *testing.T) {
	t.Parallel()
	want := fleetOf(vmAt(somewhere, 2001))
	files, err := generator.Render(want)
	if err != nil {
		t.Fatal(err)
	}
	older := anotherVersion()
	for name, content := range older {
		files[generator.ModuleFile(modules.HashOf(older), name)] = content
	}
	delete(files, generator.ModuleFile(modules.Hash(), "proxmox-node/main.tf"))
	for _, name := range []string{
		"README.md", ".gitignore", "region-1/pve-1/.terraform.lock.hcl", "region-1/pve-1/terraform.tfstate",
		"region-1/pve-1/" + generator.ImportFile, "region-1/pve-1/notes.txt", "region-1/templates/pve-1/main.tf", "docs/x.tf", "region-1/rotation.json",
	} {
		files[name] = []byte("anything")
	}
	checkParse(t, want, files)
}

// TestParseWithoutMain checks that Parse accepts a root without main.tf, as after a revert of
// the commit that added a host's first VM. The next Render restores the file.
func TestParseWithoutMain(t *testing.T) {
	t.Parallel()
	want := fleetOf(vmAt(somewhere, 2001))
	files, err := generator.Render(want)
	if err != nil {
		t.Fatal(err)
	}
	delete(files, mainFile)
	checkParse(t, want, generator.Select(files))
}

// TestAnotherRelease checks that Parse accepts the modules of another version of numaform only
// if the operator allows them, and that the next Render keeps each VM's modules but requires
// this version's provider.
func TestAnotherRelease(t *testing.T) {
	t.Parallel()
	other := generator.Current()
	other.Modules, other.Provider = anotherVersion(), "0.112.0-rc1"
	vm := vmAt(somewhere, 2001)
	vm.Module = ""
	before, err := other.Render(fleetOf(vm))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(before[mainFile]), `version = "0.112.0-rc1"`) {
		t.Errorf("another provider is required:\n%s", before[mainFile])
	}
	// Its modules may be called only if the operator allows them, whatever the fleet
	// contains.
	var unknown *generator.ParseError
	if _, err := generator.Parse(before); !errors.As(err, &unknown) || unknown.File != nodeFile || unknown.Line != 9 {
		t.Errorf("unknown modules: %v", err)
	}
	ours := generator.Current()
	ours.Allowed = map[string]map[string][]byte{modules.HashOf(other.Modules): other.Modules}
	parsed, err := ours.Parse(before)
	if err != nil {
		t.Fatal(err)
	}
	if want := modules.HashOf(other.Modules); parsed.VMs[0].Module != want {
		t.Errorf("the VM calls modules %s, want %s", parsed.VMs[0].Module, want)
	}
	after, err := generator.Render(parsed)
	if err != nil {
		t.Fatal(err)
	}
	for name := range modules.Files() {
		delete(before, generator.ModuleFile(modules.HashOf(other.Modules), name))
		delete(after, generator.ModuleFile(modules.Hash(), name))
	}
	if diff := cmp.Diff([]string{mainFile}, changed(before, after)); diff != "" {
		t.Errorf("changed files (-want +got):\n%s", diff)
	}
	if !strings.Contains(string(after[mainFile]), `version = "`+generator.ProviderVersion+`"`) {
		t.Errorf("the provider version was not updated:\n%s", after[mainFile])
	}
}

// TestCarries checks that the modules that node files may call are returned once each, in
// order.
func TestCarries(t *testing.T) {
	t.Parallel()
	ours := generator.Current()
	ours.Allowed = map[string]map[string][]byte{"0000000000000000": nil, modules.Hash(): nil}
	want := slices.Compact(slices.Sorted(slices.Values(append(modules.Hashes(), modules.Hash(), "0000000000000000"))))
	if diff := cmp.Diff(want, ours.Carries()); diff != "" {
		t.Errorf("modules (-want +got):\n%s", diff)
	}
}

// anotherVersion returns modules that no release has.
func anotherVersion() map[string][]byte {
	files := modules.Files()
	files["proxmox-node/main.tf"] = append([]byte("# another\n"), files["proxmox-node/main.tf"]...)
	return files
}

func TestParseNothing(t *testing.T) {
	t.Parallel()
	got, err := generator.Parse(generator.Files{"README.md": nil})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fleet.Fleet{}, got); diff != "" {
		t.Errorf("fleet (-want +got):\n%s", diff)
	}
}

// TestTwoBranches checks that the files of two branches that each added one VM parse as a
// fleet with both.
func TestTwoBranches(t *testing.T) {
	t.Parallel()
	one, err := generator.Render(fleetOf(vmAt(somewhere, 2001)))
	if err != nil {
		t.Fatal(err)
	}
	two, err := generator.Render(fleetOf(vmAt(somewhere, 2002)))
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(one, two)
	checkParse(t, fleetOf(vmAt(somewhere, 2001), vmAt(somewhere, 2002)), one)
}
