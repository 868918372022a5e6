// Package fleetsim simulates the result of applying a large fleet: the guests in a
// simulated Proxmox, and the states of their hosts. The engine creates one VM; the others
// are derived from it. Start at Learn.
package fleetsim

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/pvesim"
)

// Model is a VM created by the engine, from which others are derived.
type Model struct {
	vm    *fleet.VM
	state stateFile
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

// Learn returns a model of a VM, from a state that contains only the VM's resource, and
// from its guest.
func Learn(vm *fleet.VM, state []byte, guest pvesim.GuestState) (*Model, error) {
	m := &Model{vm: vm, conf: guest.Config}
	if err := json.Unmarshal(state, &m.state); err != nil {
		return nil, fmt.Errorf("reading the state of vm %s: %w", vm.Name, err)
	}
	if len(m.state.Resources) != 1 {
		return nil, fmt.Errorf("reading the state of vm %s: it has %d resources, must have exactly 1", vm.Name, len(m.state.Resources))
	}
	return m, nil
}

// Host returns the state of a host with these VMs, and their guests. files are the
// generated files of the fleet; n must be different for each host.
func (m *Model) Host(n int, files generator.Files, vms []fleet.VM) (state []byte, guests []pvesim.Guest, err error) {
	made := m.state
	made.Resources = nil
	made.Lineage = fmt.Sprintf("00000000-0000-4000-8000-%012d", n)
	for i := range vms {
		vm := &vms[i]
		in, err := inputsOf(files, vm)
		if err != nil {
			return nil, nil, fmt.Errorf("reading the file of vm %s: %w", vm.Name, err)
		}
		resources, err := m.resources(vm, in)
		if err != nil {
			return nil, nil, fmt.Errorf("deriving the state of vm %s: %w", vm.Name, err)
		}
		made.Resources = append(made.Resources, resources...)
		guests = append(guests, m.guest(vm, in))
	}
	state, err = json.MarshalIndent(made, "", "  ")
	return state, guests, err
}

// inputs are the arguments of a VM's module call that are read from its file: the
// description and the NUMA cells. The others come from the fleet.VM or from the model.
type inputs struct {
	description string
	numa        []map[string]any
}

// inputsOf reads the inputs of a VM from its file.
func inputsOf(files generator.Files, vm *fleet.VM) (inputs, error) {
	var in inputs
	file, diagnostics := hclsyntax.ParseConfig(files[generator.NodeFile(vm)], vm.Name, hcl.InitialPos)
	if diagnostics.HasErrors() {
		return in, diagnostics
	}
	body, ok := file.Body.(*hclsyntax.Body)
	if !ok || len(body.Blocks) != 1 {
		return in, fmt.Errorf("it must contain exactly one module call")
	}
	read := func(name string, into any) error {
		value, diagnostics := body.Blocks[0].Body.Attributes[name].Expr.Value(nil)
		if diagnostics.HasErrors() {
			return diagnostics
		}
		text, err := ctyjson.Marshal(value, value.Type())
		if err != nil {
			return err
		}
		return json.Unmarshal(text, into)
	}
	var lines []string
	if err := read("description", &lines); err != nil {
		return in, err
	}
	if err := read("numa", &in.numa); err != nil {
		return in, err
	}
	in.description = strings.Join(lines, "\n")
	for i, cell := range in.numa {
		cell["device"] = fmt.Sprintf("numa%d", i)
		cell["memory"] = cell["memory_mib"]
		delete(cell, "memory_mib")
	}
	return in, nil
}

// resources returns a VM's resources in the state.
func (m *Model) resources(vm *fleet.VM, in inputs) ([]resource, error) {
	text, err := json.Marshal(m.state.Resources)
	if err != nil {
		return nil, err
	}
	// Name and VMID are also part of the serial number, the volume's name and more.
	text = []byte(m.renamed(string(text), vm))
	var made []resource
	if err := json.Unmarshal(text, &made); err != nil {
		return nil, err
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
	return made, nil
}

// renamed replaces the model's VMID, which is also part of the model's name, with the VMID
// of vm. It replaces the model's disk with the template's, because PutGuest creates no
// volumes.
func (m *Model) renamed(text string, vm *fleet.VM) string {
	text = strings.ReplaceAll(text, fmt.Sprintf("vm-%d-disk-0", m.vm.VMID), fmt.Sprintf("base-%d-disk-0", vm.Source.VMID))
	return strings.ReplaceAll(text, fmt.Sprint(int(m.vm.VMID)), fmt.Sprint(int(vm.VMID)))
}

// guest returns the Proxmox guest of a VM.
func (m *Model) guest(vm *fleet.VM, in inputs) pvesim.Guest {
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
