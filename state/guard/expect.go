package guard

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"
)

// expect compares the values that a change plans with the values that the VM's modules
// derive from its inputs, attribute by attribute. It detects a modified module, and a
// newer provider with attributes unknown to numaform.
func (c *checker) expect(rc *tfjson.ResourceChange, r *request) {
	if r.inputs == nil {
		c.deny(RuleExpected, rc.Address, "the intent lacks the arguments of the VM's file, so the plan cannot be compared with them: plan again")
		return
	}
	module, known := nodeModules[r.Module]
	if !known {
		c.deny(RuleExpected, rc.Address, fmt.Sprintf("this version of numaform does not support the modules %.40q: "+
			"use the version that wrote the VM's file, or replace the node", r.Module))
		return
	}
	if r.inputs.Standby && !module.standby {
		c.deny(RuleExpected, rc.Address, fmt.Sprintf("the VM's file sets standby, which the modules %.40q do not support: restore the file, or replace the node", r.Module))
		return
	}
	if r.inputs.options() && !module.options {
		c.deny(RuleExpected, rc.Address, fmt.Sprintf("the VM's file sets options of hardware or network devices, which the modules %.40q do not support: restore the file, or replace the node", r.Module))
		return
	}
	if !module.deviceGroups && slices.ContainsFunc(r.inputs.SecurityGroups, func(group string) bool { return strings.Contains(group, "@") }) {
		c.deny(RuleExpected, rc.Address, fmt.Sprintf("the VM's file has security groups of network devices, which the modules %.40q do not support: restore the file, or replace the node", r.Module))
		return
	}
	if r.inputs.Clone.Host != "" && !module.remote {
		c.deny(RuleExpected, rc.Address, fmt.Sprintf("the VM's file clones a template of another host, which the modules %.40q do not support: restore the file, or replace the node", r.Module))
		return
	}
	if module.adopted && rc.Change.Before == nil {
		c.deny(RuleExpected, rc.Address, fmt.Sprintf("numaform adopted VM %d, and cannot create it again: "+
			"if the VM no longer exists, run numaform remove %s, and the pods get another node", r.VMID, nameOf(rc.Address)))
		return
	}
	expected := module.node(r.inputs)
	if module.adopted {
		expected = adoptedNode(module, r.inputs)
	}
	if rc.Type == FirewallType {
		expected = groupsOf(r.inputs)
	}
	c.compare(rc, expected)
}

// compare compares the values that a change plans with the expected ones.
func (c *checker) compare(rc *tfjson.ResourceChange, expected values) {
	compared := comparison{checker: c, address: rc.Address, existing: rc.Change.Before != nil && !rc.Change.Actions.Replace()}
	compared.object("", expected, attributes(rc.Change.After), attributes(rc.Change.Before), rc.Change.AfterUnknown)
}

// comparison compares the planned values of one resource.
type comparison struct {
	*checker
	address string
	// existing is set for a resource that is updated or imported rather than created.
	existing bool
}

// object compares the attributes of a resource or of one of its blocks.
func (c *comparison) object(path string, expected, after, before values, unknown any) {
	if unknown == true {
		c.differs(path, "is not known before the apply", expected)
		return
	}
	unknowns := attributes(unknown)
	names := map[string]bool{}
	for _, object := range []values{expected, after, unknowns} {
		for name := range object {
			names[name] = true
		}
	}
	for name := range names {
		at := name
		if path != "" {
			at = path + "." + name
		}
		c.attribute(at, expected[name], after[name], before[name], unknowns[name])
	}
}

// attribute compares one attribute.
func (c *comparison) attribute(path string, expected, after, before, unknown any) {
	switch want := expected.(type) {
	case computed:
		if !zero(after) && (!c.existing || !equal(after, before)) {
			c.differs(path, "is set", nil)
		}
		return
	case ignored:
		if c.existing {
			if !zero(unknown) || !equal(after, before) {
				c.differs(path, "would change", nil)
			}
			return
		}
		expected = want.initial
	}
	if blocks, ok := expected.([]any); ok && len(blocks) > 0 {
		c.blocks(path, blocks, list(after), list(before), unknown)
		return
	}
	if !zero(unknown) {
		c.differs(path, "is not known before the apply", expected)
		return
	}
	if !equal(expected, after) {
		c.differs(path, "is "+shown(after), expected)
	}
}

// blocks compares two lists of blocks.
func (c *comparison) blocks(path string, expected, after, before []any, unknown any) {
	unknowns := list(unknown)
	switch {
	case unknown == true || len(unknowns) > len(expected):
		c.differs(path, "is not known before the apply", nil)
		return
	case len(after) != len(expected):
		c.differs(path, fmt.Sprintf("has %d elements", len(after)), len(expected))
		return
	}
	for i, want := range expected {
		at := path + "[" + strconv.Itoa(i) + "]"
		var was, isUnknown any
		if i < len(before) {
			was = before[i]
		}
		if i < len(unknowns) {
			isUnknown = unknowns[i]
		}
		if inner, ok := want.(values); ok {
			c.object(at, inner, attributes(after[i]), attributes(was), isUnknown)
			continue
		}
		c.attribute(at, want, after[i], was, isUnknown)
	}
}

// differs denies an attribute. how must contain a planned value only as returned by shown,
// because the value may be a credential.
func (c *comparison) differs(path, how string, expected any) {
	message := path + " " + how
	switch expected := expected.(type) {
	case nil:
	case string, bool, int, int64:
		message += ", expected " + shown(expected)
	}
	c.deny(RuleExpected, c.address, message+": the modules do not derive this from its file; plan again")
}

// maxShown limits the length of a shown string, to far less than the length of a token.
const maxShown = 16

// shown returns a value for a message; it only describes a value that may be a
// credential.
func shown(v any) string {
	switch t := v.(type) {
	case nil:
		return "empty"
	case string:
		if len(t) > maxShown || len(secretIn(t)) > 0 {
			return fmt.Sprintf("a string of %d bytes", len(t))
		}
		return strconv.Quote(t)
	case []any, map[string]any:
		if zero(t) {
			return "empty"
		}
		return "not empty"
	}
	return fmt.Sprint(v) // a number or boolean
}
