package guard

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Target is one VM of an intent, with the data that identifies it.
type Target struct {
	// Address is the resource's address:
	// module.<label>.proxmox_virtual_environment_vm.node.
	Address string            `json:"address"`
	VMID    fleet.VMID        `json:"vmid"`
	Key     fleet.Key         `json:"key"`
	Host    topology.HostName `json:"host"`
	// Pool is the name of the VM's NodePool.
	Pool string `json:"pool,omitempty"`
	// Module is the hash of the modules that the VM's file calls.
	Module string `json:"module,omitempty"`
	// Addresses are the static addresses in the VM's file.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// AddressProblem is the reason why the VM must not be created or woken with these
	// addresses, or empty.
	AddressProblem string `json:"-"`
	// ClassVMIDs is the range of VMIDs of the VM's class; zero if the class has none.
	ClassVMIDs fleet.VMIDRange `json:"class_vmids,omitzero"`
	// Inputs are the arguments of the VM's file, as returned by generator.Inputs. The
	// plan's values are compared with the values that the modules derive from them.
	Inputs []byte `json:"-"`
	// Incomplete marks an import of a VM whose create was interrupted before the VM ever
	// ran: the import may set any attribute in its file.
	Incomplete bool `json:"incomplete,omitempty"`
	// Drained marks a delete whose Node is drained, never joined, or no longer exists.
	// Without it, the delete is denied.
	Drained bool `json:"drained,omitempty"`
	// Gone marks a delete whose Node no longer exists, so that there is no evidence that
	// it was ever drained. It is not set for a standby VM that does not run, because this
	// VM never had a Node.
	Gone bool `json:"gone,omitempty"`
	// Blocked is the reason why the Node is not drained yet, or empty if none is known.
	Blocked string `json:"blocked,omitempty"`
}

// Name returns the name of the VM, or "" if the address is not one of ours.
func (t Target) Name() string { return nameOf(t.Address) }

// ImportID returns the ID by which the provider imports the VM: "<host>/<vmid>".
func (t Target) ImportID() string { return string(t.Host) + "/" + strconv.Itoa(int(t.VMID)) }

// Intent is the requested change on one host. A plan must contain all of it and nothing
// else.
type Intent struct {
	// ClusterID is the cluster ID in our VMs' markers.
	ClusterID string   `json:"cluster_id"`
	Create    []Target `json:"create,omitempty"`
	Delete    []Target `json:"delete,omitempty"`
	Import    []Target `json:"import,omitempty"`
	Update    []Target `json:"update,omitempty"`
	// Wake are standby VMs to start. Nothing else about them may change.
	Wake []Target `json:"wake,omitempty"`
	// Targeted is set for a plan that is restricted to the targets. It changes nothing
	// else, so the engine may mark it as incomplete.
	Targeted bool `json:"targeted,omitempty"`
	// VMIDs is numaform's range: changes of VMs outside it are denied. The zero value
	// allows all VMIDs.
	VMIDs fleet.VMIDRange `json:"-"`
	// Claims are the CPUs that belong to guests, from a fresh reading of the host. A
	// guest's own claims do not conflict with it.
	Claims []Claim `json:"claims,omitempty"`
	// Addresses are the static addresses of all VMs of the fleet, on this host and on others.
	Addresses []AddressClaim `json:"address_claims,omitempty"`
}

// AddressClaim is a static address of a VM.
type AddressClaim struct {
	Address netip.Addr `json:"address"`
	Key     fleet.Key  `json:"key"`
	// VM is the VM's name, for the reader.
	VM string `json:"vm"`
}

// Claim is a set of host CPUs that belong to a guest, by its live affinity or its marker.
type Claim struct {
	Host topology.HostName `json:"host"`
	CPUs topology.CPUSet   `json:"cpus"`
	// Guest is the guest's name, for the reader.
	Guest string     `json:"guest,omitempty"`
	VMID  fleet.VMID `json:"vmid"`
}

// operation is the change that an intent requests for a VM.
type operation string

const (
	opCreate operation = "create"
	opDelete operation = "delete"
	opImport operation = "import"
	opUpdate operation = "update"
	opWake   operation = "wake"
)

// request is one target of the intent, and whether the plan fulfills it.
type request struct {
	Target
	operation operation
	inputs    *inputs
	// template is the target, if it is a template.
	template *fleet.Template
	done     bool
	// regrouped is set if the VM's security groups change, which is sufficient for an
	// update.
	regrouped bool
}

// labelPattern matches a module's label, which is the VM's name. If the name begins with
// a digit, the label has a leading underscore, because HCL identifiers do not begin with
// a digit.
const labelPattern = `((?:_[0-9]|[a-z])(?:[a-z0-9-]*[a-z0-9])?)`

// label returns the module label of the address of a VM or of a template, or "".
func label(address string) string {
	match := partPattern.FindStringSubmatch(address)
	if match == nil || match[2] != "" || match[3] != nodeVM && match[3] != templateVM {
		return ""
	}
	return match[1]
}

// nameOf returns the name of the VM at one of our addresses.
func nameOf(address string) string { return strings.TrimPrefix(label(address), "_") }

// readIntent fills requests from the intent.
func (c *checker) readIntent() {
	for _, list := range []struct {
		operation operation
		targets   []Target
	}{
		{opCreate, c.intent.Create},
		{opDelete, c.intent.Delete},
		{opImport, c.intent.Import},
		{opUpdate, c.intent.Update},
		{opWake, c.intent.Wake},
	} {
		for _, target := range list.targets {
			r := c.request(list.operation, target)
			// The deletion of a VM needs no file.
			if c.recorded || r.operation == opDelete || len(target.Inputs) == 0 {
				continue
			}
			in, err := readInputs(target.Inputs)
			if err != nil {
				c.deny(RuleIntent, target.Address, err.Error())
				continue
			}
			if in.VMID != int64(target.VMID) || in.Host != string(target.Host) || in.Name != nameOf(target.Address) || in.ClusterID != c.intent.ClusterID {
				c.deny(RuleIntent, target.Address, "VMID, host, name or cluster of the VM's file differs from the intent: plan again")
			}
			r.inputs = in
		}
	}
}

// request checks one target and adds it to the requests.
func (c *checker) request(op operation, target Target) *request {
	if other, ok := c.requests[target.Address]; ok {
		c.deny(RuleIntent, target.Address,
			fmt.Sprintf("requested as %s and as %s: request one operation for a VM", other.operation, op))
	}
	switch {
	case c.intent.ClusterID == "" || target.Key == "" || target.Host == "":
		c.deny(RuleIntent, target.Address, "the intent lacks cluster ID, key or host, so the VM cannot be identified: plan again")
	case target.VMID < fleet.MinVMID || target.VMID > fleet.MaxVMID:
		c.deny(RuleIntent, target.Address, fmt.Sprintf("VMID %d is not valid in Proxmox: it must be from %d to %d", target.VMID, fleet.MinVMID, fleet.MaxVMID))
	case c.outside(op, target) != "":
		c.deny(RuleIntent, target.Address, c.outside(op, target))
	case label(target.Address) == "" || !strings.HasSuffix(target.Address, "."+c.contents.vm):
		c.deny(RuleIntent, target.Address, "not the address of a numaform VM: it must be module.<name>."+c.contents.vm)
	}
	r := &request{Target: target, operation: op}
	c.requests[target.Address] = r
	return r
}

// outside returns why a change of a VM with that VMID is denied, or "".
func (c *checker) outside(op operation, target Target) string {
	all, own := c.intent.VMIDs, target.ClassVMIDs
	switch {
	case (c.contents.bounded || all != fleet.VMIDRange{}) && !all.Contains(target.VMID) && op != opKeep:
		return fmt.Sprintf("VMID %d is outside %s, %d to %d, so numaform does not change the VM: "+
			"if the VM belongs to numaform, widen %[2]s in numaform.yaml", target.VMID, c.contents.vmids, all.Lower, all.Upper)
	case op == opCreate && own != (fleet.VMIDRange{}) && !own.Contains(target.VMID):
		return fmt.Sprintf("VMID %d is outside spec.vmidRange of its class, %d to %d: plan again", target.VMID, own.Lower, own.Upper)
	}
	return ""
}

// take returns the request for op at an address and marks it as fulfilled, or returns
// nil.
func (c *checker) take(op operation, address string) *request {
	r := c.requests[address]
	if r == nil || r.operation != op || r.done {
		return nil
	}
	r.done = true
	return r
}

// missing denies a plan that lacks a part of the intent.
func (c *checker) missing() {
	for address, r := range c.requests {
		if !r.done && (!r.regrouped || r.operation != opUpdate) {
			c.deny(RuleMissing, address, fmt.Sprintf("the plan does not %s it (VM %d on %s): "+
				"the files, the state and the request disagree; plan again, or import the VM if it exists", r.operation, r.VMID, r.Host))
		}
	}
}
