package bench_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scaler"
)

// model is a VM created by the engine, from which others are derived.
type model struct {
	vm    *fleet.VM
	state stateFile
	raw   []resource
	conf  map[string]string
}

// stateFile is a state in the engine's format 4.
type stateFile struct {
	Version   int            `json:"version"`
	Engine    string         `json:"terraform_version"`
	Serial    int            `json:"serial"`
	Lineage   string         `json:"lineage"`
	Outputs   map[string]any `json:"outputs"`
	Resources []resource     `json:"resources"`
	Checks    any            `json:"check_results"`
}

// resource is one resource of a state.
type resource struct {
	Module    string     `json:"module"`
	Mode      string     `json:"mode"`
	Type      string     `json:"type"`
	Name      string     `json:"name"`
	Provider  string     `json:"provider"`
	Instances []instance `json:"instances"`
}

// instance is the only instance of a resource.
type instance struct {
	Schema     int            `json:"schema_version"`
	Attributes map[string]any `json:"attributes"`
	Sensitive  []any          `json:"sensitive_attributes"`
	Identity   any            `json:"identity_schema_version,omitempty"`
	Private    string         `json:"private,omitempty"`
}

// learn reads the result of applying a VM from state and Proxmox.
func (f *fixture) learn(b *testing.B, vm *fleet.VM) *model {
	b.Helper()
	content, err := os.ReadFile(f.statePath(vm.Host))
	if err != nil {
		b.Fatal(err)
	}
	m := &model{vm: vm}
	if err := json.Unmarshal(content, &m.state); err != nil {
		b.Fatal(err)
	}
	m.raw = m.state.Resources
	guest, ok := f.sim.Guest(int(vm.VMID))
	if !ok || len(m.raw) != 1 {
		b.Fatalf("vm %s was not made: %d resources", vm.Name, len(m.raw))
	}
	m.conf = guest.Config
	return m
}

// inputs are the arguments of a VM's module call that differ between VMs.
type inputs struct {
	description string
	numa        []map[string]any
}

// inputsOf reads a VM's file.
func inputsOf(b *testing.B, change *scaler.Change, vm *fleet.VM) inputs {
	b.Helper()
	file, diagnostics := hclsyntax.ParseConfig(change.AfterFiles[generator.NodeFile(vm)], vm.Name, hcl.InitialPos)
	if diagnostics.HasErrors() {
		b.Fatal(diagnostics)
	}
	body, ok := file.Body.(*hclsyntax.Body)
	if !ok || len(body.Blocks) != 1 {
		b.Fatalf("the file of vm %s is not one module call", vm.Name)
	}
	read := func(name string, into any) {
		value, diagnostics := body.Blocks[0].Body.Attributes[name].Expr.Value(nil)
		if diagnostics.HasErrors() {
			b.Fatal(diagnostics)
		}
		text, err := ctyjson.Marshal(value, value.Type())
		if err != nil {
			b.Fatal(err)
		}
		if err := json.Unmarshal(text, into); err != nil {
			b.Fatal(err)
		}
	}
	var in inputs
	var lines []string
	read("description", &lines)
	read("numa", &in.numa)
	in.description = strings.Join(lines, "\n")
	for i, cell := range in.numa {
		cell["device"] = fmt.Sprintf("numa%d", i)
		cell["memory"] = cell["memory_mib"]
		delete(cell, "memory_mib")
	}
	return in
}

// resources returns a VM's resources in the state.
func (m *model) resources(b *testing.B, vm *fleet.VM, in inputs) []resource {
	b.Helper()
	text, err := json.Marshal(m.raw)
	if err != nil {
		b.Fatal(err)
	}
	// Name and VMID are also part of the serial number, the volume's name and more.
	text = []byte(m.renamed(string(text), vm))
	var made []resource
	if err := json.Unmarshal(text, &made); err != nil {
		b.Fatal(err)
	}
	attributes := made[0].Instances[0].Attributes
	attributes["vm_id"] = int(vm.VMID)
	attributes["node_name"] = string(vm.Host.Host)
	attributes["description"] = in.description
	attributes["numa"] = in.numa
	for _, clone := range attributes["clone"].([]any) {
		clone.(map[string]any)["vm_id"] = int(vm.Source.VMID)
		clone.(map[string]any)["node_name"] = string(vm.Host.Host)
	}
	return made
}

// renamed replaces the model's name and VMID by a VM's. The disk remains the template's,
// because PutGuest creates no volumes.
func (m *model) renamed(text string, vm *fleet.VM) string {
	text = strings.ReplaceAll(text, fmt.Sprintf("vm-%d-disk-0", m.vm.VMID), fmt.Sprintf("base-%d-disk-0", vm.Source.VMID))
	return strings.ReplaceAll(text, fmt.Sprint(int(m.vm.VMID)), fmt.Sprint(int(vm.VMID)))
}

// guest returns a VM in the form of Proxmox.
func (m *model) guest(vm *fleet.VM, in inputs) pvesim.Guest {
	conf := maps.Clone(m.conf)
	serial := func(vm *fleet.VM) string {
		return base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%s/%d", vm.Name, vm.VMID))
	}
	for key, value := range conf {
		switch key {
		case "name", "scsi0":
			conf[key] = m.renamed(value, vm)
		case "smbios1":
			conf[key] = strings.ReplaceAll(value, serial(m.vm), serial(vm))
		}
	}
	conf["description"] = in.description
	for _, cell := range in.numa {
		conf[cell["device"].(string)] = fmt.Sprintf("cpus=%s,hostnodes=%s,memory=%v,policy=%s", cell["cpus"], cell["hostnodes"], cell["memory"], cell["policy"])
	}
	return pvesim.Guest{VMID: int(vm.VMID), Host: string(vm.Host.Host), Config: conf, Running: true}
}
