package guard

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// labelPattern matches a module's label, which is the VM's name. If the name begins with
// a digit, the label has a leading underscore, because HCL identifiers do not begin with
// a digit.
const labelPattern = `((?:_[0-9]|[a-z])(?:[a-z0-9-]*[a-z0-9])?)`

// addressPattern matches our addresses; its group is the module's label.
var addressPattern = regexp.MustCompile(`^module\.` + labelPattern + `\.proxmox_virtual_environment_vm\.node$`)

// label returns the module label of one of our addresses, or "".
func label(address string) string {
	match := addressPattern.FindStringSubmatch(address)
	if match == nil {
		return ""
	}
	return match[1]
}

// nameOf returns the name of the VM at one of our addresses.
func nameOf(address string) string { return strings.TrimPrefix(label(address), "_") }

func importID(host topology.HostName, vmid fleet.VMID) string {
	return string(host) + "/" + strconv.Itoa(int(vmid))
}

// readIntent fills wanted from the intent.
func (j *judge) readIntent() {
	for _, list := range []struct {
		operation operation
		targets   []Target
	}{
		{opCreate, j.intent.Create},
		{opDelete, j.intent.Delete},
		{opImport, j.intent.Import},
		{opUpdate, j.intent.Update},
	} {
		for _, target := range list.targets {
			j.want(list.operation, target)
		}
	}
	vmids := map[fleet.VMID]string{}
	for _, address := range slices.Sorted(maps.Keys(j.wanted)) {
		vmid := j.wanted[address].VMID
		if other, ok := vmids[vmid]; ok {
			j.deny(RuleIntent, address, fmt.Sprintf("VMID %d is wanted for %s too: give each VM its own", vmid, other))
		}
		vmids[vmid] = address
	}
}

func (j *judge) want(op operation, target Target) {
	if other, ok := j.wanted[target.Address]; ok {
		j.deny(RuleIntent, target.Address,
			fmt.Sprintf("wanted as %s and as %s: a plan does one thing to a VM", other.operation, op))
	}
	switch {
	case j.intent.ClusterID == "" || target.Key == "" || target.Host == "":
		j.deny(RuleIntent, target.Address, "the intent lacks cluster id, key or host: without them the VM cannot be told from others")
	case target.VMID < fleet.MinVMID || target.VMID > fleet.MaxVMID:
		j.deny(RuleIntent, target.Address, fmt.Sprintf("VMID %d is not one of Proxmox'", target.VMID))
	case j.intent.VMIDs != (fleet.VMIDRange{}) && !j.intent.VMIDs.Contains(target.VMID):
		j.deny(RuleIntent, target.Address, fmt.Sprintf("VMID %d is outside of vmid_range, %d to %d, so the VM is not written to: "+
			"widen vmid_range in numaform.yaml if the VM is numaform's", target.VMID, j.intent.VMIDs.Lower, j.intent.VMIDs.Upper))
	case label(target.Address) == "":
		j.deny(RuleIntent, target.Address, "not an address of a numaform VM: want module.<name>."+ResourceType+".node")
	}
	j.wanted[target.Address] = &wish{Target: target, operation: op, inputs: j.inputs(target, op)}
}

// inputs parses the arguments of a target's file. The deletion of a VM needs none.
func (j *judge) inputs(target Target, op operation) *inputs {
	if j.recorded || op == opDelete || len(target.Inputs) == 0 {
		return nil
	}
	in, err := readInputs(target.Inputs)
	if err != nil {
		j.deny(RuleIntent, target.Address, err.Error())
		return nil
	}
	if in.VMID != int64(target.VMID) || in.Host != string(target.Host) || in.Name != nameOf(target.Address) || in.ClusterID != j.intent.ClusterID {
		j.deny(RuleIntent, target.Address, "VMID, host, name and cluster of the VM's file are not those of the intent")
	}
	return in
}

// take returns the wish for op at an address and marks it as fulfilled, or returns nil.
func (j *judge) take(op operation, address string) *wish {
	w := j.wanted[address]
	if w == nil || w.operation != op || w.done {
		return nil
	}
	w.done = true
	return w
}

// missing denies a plan that lacks a part of the intent.
func (j *judge) missing() {
	for _, address := range slices.Sorted(maps.Keys(j.wanted)) {
		w := j.wanted[address]
		if !w.done && (!w.served || w.operation != opUpdate) {
			j.deny(RuleMissing, address, fmt.Sprintf("the plan does not %s it (VM %d on %s): "+
				"the files, the state and the request disagree; plan again from fresh files, or import what exists", w.operation, w.VMID, w.Host))
		}
	}
}
