package generator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/topology"
)

// parseNode parses one node file and adds its VM to the fleet.
func (p *parser) parseNode(name string) error {
	n := &nodeFile{parser: p, name: name, content: p.files[name]}
	if err := n.nested(); err != nil {
		return err
	}
	vm, err := n.parse()
	if err != nil {
		return err
	}
	if want := NodeFile(&vm); want != name {
		return &ParseError{File: name, Problem: fmt.Sprintf("holds vm %s, whose file is %s", vm.Name, want), Mend: mendRestore}
	}
	p.fleet.VMs = append(p.fleet.VMs, vm)
	return nil
}

// groupsArgument is the argument of groupsCall.
const groupsArgument = "security_groups"

type nodeFile struct {
	parser  *parser
	name    string
	content []byte
}

func (n *nodeFile) fail(line int, format string, args ...any) error {
	return &ParseError{File: n.name, Line: line, Problem: fmt.Sprintf(format, args...), Mend: mendRestore}
}

func (n *nodeFile) failDiagnostics(diagnostics hcl.Diagnostics) error {
	first := diagnostics[0]
	line := 0
	if first.Subject != nil {
		line = first.Subject.Start.Line
	}
	return &ParseError{
		File: n.name, Line: line, Problem: first.Summary + "; " + first.Detail, Mend: mendRestore, Err: diagnostics,
	}
}

func (n *nodeFile) parse() (fleet.VM, error) {
	attributes, groups, err := n.calls()
	if err == nil {
		err = errors.Join(n.constant(attributes), n.constant(groups))
	}
	if err != nil {
		return fleet.VM{}, err
	}
	if err := n.checkFormat(attributes); err != nil {
		return fleet.VM{}, err
	}
	source, err := n.text(attributes, "source")
	if err != nil {
		return fleet.VM{}, err
	}
	hash, line := path.Base(source), attributes["source"].NameRange.Start.Line
	if source != moduleSource(modules.NodeModule, hash) {
		return fleet.VM{}, n.fail(line, "calls a module that is not numaform's")
	}
	// This check comes before the arguments, because a module of another version may have
	// others.
	if n.parser.carried(hash) == nil {
		return fleet.VM{}, n.parser.unknownModules(n.name, line, hash)
	}
	delete(attributes, "source")
	var content call
	if err := n.decode(attributes, &content); err != nil {
		return fleet.VM{}, err
	}
	var extra groupsCall
	if err := n.decode(groups, &extra); err != nil {
		return fleet.VM{}, err
	}
	vm, err := n.vm(hash, &content)
	vm.SecurityGroups = extra.SecurityGroups
	return vm, err
}

// calls returns the arguments of the file's module calls: the call of the VM and, if the
// VM has security groups, the groups argument of the second call. Anything else in the
// file is found by the comparison with Render's output.
func (n *nodeFile) calls() (vm, groups hclsyntax.Attributes, err error) {
	parsed, diagnostics := hclsyntax.ParseConfig(n.content, n.name, hcl.InitialPos)
	if diagnostics.HasErrors() {
		return nil, nil, n.failDiagnostics(diagnostics)
	}
	body, ok := parsed.Body.(*hclsyntax.Body)
	if !ok || len(body.Attributes) > 0 || len(body.Blocks) < 1 || len(body.Blocks) > 2 {
		return nil, nil, n.fail(1, "does not consist of one module call, or two with that of security groups")
	}
	for _, block := range body.Blocks {
		if block.Type != "module" {
			return nil, nil, n.fail(block.TypeRange.Start.Line, "has a block %q, which numaform does not write", block.Type)
		}
		for _, inner := range block.Body.Blocks {
			return nil, nil, n.fail(inner.TypeRange.Start.Line, "has a block %q, which numaform does not write", inner.Type)
		}
	}
	if len(body.Blocks) == 1 {
		return body.Blocks[0].Body.Attributes, nil, nil
	}
	second := body.Blocks[1]
	attribute, ok := second.Body.Attributes[groupsArgument]
	if !ok {
		return nil, nil, n.fail(second.TypeRange.Start.Line, "has a second module call that is not of security groups")
	}
	return body.Blocks[0].Body.Attributes, hclsyntax.Attributes{groupsArgument: attribute}, nil
}

// checkFormat runs before all other checks, so that a newer file is reported as newer and
// not as invalid.
func (n *nodeFile) checkFormat(attributes hclsyntax.Attributes) error {
	attribute, ok := attributes["format_version"]
	if !ok {
		return n.fail(1, "has no format_version")
	}
	value, diagnostics := attribute.Expr.Value(nil)
	if diagnostics.HasErrors() {
		return n.failDiagnostics(diagnostics)
	}
	line := attribute.NameRange.Start.Line
	if value.IsNull() || value.Type() != cty.Number {
		return n.fail(line, "format_version is not a number")
	}
	format, _ := value.AsBigFloat().Int64()
	if format != FormatVersion {
		return formatError(n.name, line, int(format))
	}
	return nil
}

func (n *nodeFile) text(attributes hclsyntax.Attributes, name string) (string, error) {
	attribute, ok := attributes[name]
	if !ok {
		return "", n.fail(1, "has no %s", name)
	}
	value, diagnostics := attribute.Expr.Value(nil)
	if diagnostics.HasErrors() {
		return "", n.failDiagnostics(diagnostics)
	}
	if value.IsNull() || value.Type() != cty.String {
		return "", n.fail(attribute.NameRange.Start.Line, "%s is not a text", name)
	}
	return value.AsString(), nil
}

// decode decodes the attributes into into, one by one so that an error has the
// attribute's line.
func (n *nodeFile) decode(attributes hclsyntax.Attributes, into any) error {
	for _, attribute := range sortedAttributes(attributes) {
		value, diagnostics := attribute.Expr.Value(nil)
		if diagnostics.HasErrors() {
			return n.failDiagnostics(diagnostics)
		}
		line := attribute.NameRange.Start.Line
		text, err := jsonOf(value)
		if err != nil {
			return n.fail(line, "%s has a value that numaform does not write", attribute.Name)
		}
		decoder := json.NewDecoder(bytes.NewReader(
			append(append([]byte(`{"`+attribute.Name+`":`), text...), '}'),
		))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(into); err != nil {
			return n.fail(line, "%s: %s", attribute.Name, jsonProblem(err))
		}
	}
	return nil
}

// maxExponent limits numbers to the range of a float64. Beyond that, a few characters of
// HCL make a number whose digits fill the memory.
const maxExponent = 1100

var errHugeNumber = errors.New("number out of range")

func jsonOf(value cty.Value) ([]byte, error) {
	err := cty.Walk(value, func(_ cty.Path, v cty.Value) (bool, error) {
		if v.IsNull() || v.Type() != cty.Number {
			return true, nil
		}
		if exponent := v.AsBigFloat().MantExp(nil); exponent > maxExponent || exponent < -maxExponent {
			return false, errHugeNumber
		}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return ctyjson.Marshal(value, value.Type())
}

// jsonProblem translates an error of encoding/json into HCL terms.
func jsonProblem(err error) string {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return fmt.Sprintf("%s is not what numaform writes there", kind.Value)
	}
	return strings.Replace(strings.TrimPrefix(err.Error(), "json: "), "unknown field", "unknown attribute", 1)
}

func (n *nodeFile) vm(hash string, c *call) (fleet.VM, error) {
	host := hostOf(n.name)
	vm := fleet.VM{
		Key: c.Record.Key, VMID: c.VMID, Name: c.Name, Seed: c.Seed, Timeouts: c.Timeouts, Module: hash,
		Spec: specOf(c),
		Placement: fleet.Placement{
			Host: topology.HostID{Region: host.Region, Host: c.Host}, CPUs: topology.CPUs(c.Record.VCPUPins...),
			VCPUPins: c.Record.VCPUPins, L3: c.Record.L3, Reason: c.Record.Reason,
		},
		Source: fleet.Source{
			VMID: c.Clone.VMID, DiskInterface: c.Record.Source.DiskInterface, DiskGiB: c.Record.Source.DiskGiB,
			Storage: c.Record.Source.Storage, Options: c.Record.Source.Options,
		},
	}
	for i, numa := range c.NUMA {
		guest, guestErr := topology.ParseCPUSet(strings.ReplaceAll(numa.CPUs, ";", ","))
		nodes, nodesErr := topology.ParseCPUSet(strings.ReplaceAll(numa.HostNodes, ";", ","))
		if err := errors.Join(guestErr, nodesErr); err != nil {
			return fleet.VM{}, n.fail(0, "numa%d: %v", i, err)
		}
		vm.Cells = append(vm.Cells, topology.NUMACell{
			GuestCPUs: guest, HostNodes: nodes, MemoryMiB: numa.MemoryMiB, Policy: numa.Policy,
		})
	}
	return vm, nil
}

func specOf(c *call) fleet.Spec {
	spec := fleet.Spec{
		Pool: c.Record.Pool, NodeClass: c.Record.NodeClass, InstanceType: c.InstanceType, CapacityType: c.Record.CapacityType,
		VCPUs: c.CPU.Sockets * c.CPU.Cores, MemoryMiB: c.MemoryMiB,
		Policy: c.Record.Policy, PinWith: c.Record.PinWith, Emulator: c.Record.Emulator, Overcommit: c.Record.Overcommit,
		HugePages: hugePagesOf(c.HugePages), Spread: c.Record.Spread, WholeCores: c.Record.WholeCores,
		Template: c.Record.Template, TemplateVMID: c.Record.TemplateVMID, Clone: fleet.CloneLinked, CPUType: c.CPU.Type,
		DiskGiB: c.Record.DiskGiB, Storage: c.Record.Storage, SeedStorage: c.Record.SeedStorage, Tags: c.Tags,
		ResourcePool: c.ResourcePool, Demand: c.Record.Demand, DataDisks: dataDisksOf(c.DataDisks), PCIDevices: c.PCIDevices,
		Labels: labelMap(c.Record.Labels),
	}
	if c.Clone.Full {
		spec.Clone = fleet.CloneFull
	}
	for _, d := range c.Networks {
		spec.Networks = append(spec.Networks, fleet.Network{
			Bridge: d.Bridge, Model: d.Model, Firewall: d.Firewall, MTU: d.MTU, VLAN: d.VLAN, MAC: d.MAC,
		})
	}
	return spec
}
