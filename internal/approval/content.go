package approval

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/state/guard"
)

// hashFormat distinguishes the hashes of this algorithm from others.
const hashFormat = "numaform scaleplan 1"

// identity is a part of a ScalePlan's hash: the change of one VM. New VMs are identified
// by their properties, regardless of their VMID; existing VMs by their key.
type identity struct {
	Action   string `json:"action"`
	Host     string `json:"host"`
	NodePool string `json:"node_pool"`
	Key      string `json:"key,omitempty"`
	Change   string `json:"change,omitempty"`
}

// hashOf returns the hash of a plan. It stays the same as long as the plan makes the same
// change to the same fleet, independent of the requester and the time: pods, reasons, the
// guard's verdict, and names, VMIDs and keys of VMs to be created are not included.
func hashOf(direction v1alpha1.ScaleDirection, vms []v1alpha1.ScalePlanVM) (string, error) {
	list := make([]identity, len(vms))
	for i := range vms {
		vm := &vms[i]
		list[i] = identity{Action: string(vm.Action), Host: vm.Host, NodePool: vm.NodePool, Change: vm.Change}
		if vm.Action != v1alpha1.ScalePlanCreate {
			list[i].Key = vm.Key
		}
	}
	slices.SortFunc(list, func(a, b identity) int {
		return cmp.Or(cmp.Compare(a.Action, b.Action), cmp.Compare(a.Host, b.Host), cmp.Compare(a.NodePool, b.NodePool),
			cmp.Compare(a.Key, b.Key), cmp.Compare(a.Change, b.Change))
	})
	return digest([]any{hashFormat, direction, list})
}

func digest(value any) (string, error) {
	content, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("hashing: %w", err)
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:]), nil
}

// changeOf returns the hash of a plan's changes to a VM and its security groups, without
// the VM's name, VMID and key, and without the pods' requests and the reason for the
// placement. It returns "" if the plan does not change them.
func changeOf(plan *tfjson.Plan, target guard.Target) (string, error) {
	var changes []any
	for _, change := range plan.ResourceChanges {
		if change.Address != target.Address && guard.VMOf(change.Address) != target.Address {
			continue
		}
		if change.Change == nil || (change.Change.Actions.NoOp() && change.Change.Importing == nil) {
			continue
		}
		neutral, err := neutral(change, target)
		if err != nil {
			return "", fmt.Errorf("hashing the change of %s: %w", change.Address, err)
		}
		changes = append(changes, neutral)
	}
	if len(changes) == 0 {
		return "", nil
	}
	return digest(changes)
}

// typeOf returns the instance type of a VM that a plan creates, or "".
func typeOf(plan *tfjson.Plan, address string) string {
	for _, change := range plan.ResourceChanges {
		if change.Address != address || change.Change == nil {
			continue
		}
		attributes, _ := change.Change.After.(map[string]any)
		blocks, _ := attributes["smbios"].([]any)
		if len(blocks) == 0 {
			return ""
		}
		block, _ := blocks[0].(map[string]any)
		product, _ := block["product"].(string)
		return product
	}
	return ""
}

// neutral returns a change without the parts that differ in each plan: the name, the VMID
// and the key of its VM, and the lines of its description with the pods' requests and the
// reason for the placement.
func neutral(change *tfjson.ResourceChange, target guard.Target) (any, error) {
	content, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}

	name, vmid := target.Name(), fmt.Sprint(int(target.VMID))
	var pairs []string
	if seed := fleet.SeedVolume("s", "c", target.VMID, target.Key); seed != "" {
		// Match the part of the seed's name that follows the cluster ID.
		pairs = append(pairs, strings.TrimPrefix(seed, "s:iso/numaform-c"), "-*.iso")
	}
	pairs = append(pairs, name+"/"+vmid, "*/*", name, "*")
	if target.Key != "" {
		pairs = append(pairs, string(target.Key), "*")
	}
	placeholders := strings.NewReplacer(pairs...)

	var replace func(field string, value any) any
	replace = func(field string, value any) any {
		switch value := value.(type) {
		case map[string]any:
			for name, inner := range value {
				value[name] = replace(name, inner)
			}
		case []any:
			for i, inner := range value {
				value[i] = replace(field, inner)
			}
		case json.Number:
			if field == "vm_id" && value.String() == vmid {
				return "*"
			}
		case string:
			if field == "description" {
				var lines strings.Builder
				for line := range strings.Lines(value) {
					if !strings.HasPrefix(line, "Asked: ") && !strings.HasPrefix(line, "Reason: ") {
						lines.WriteString(line)
					}
				}
				value = strings.TrimRight(lines.String(), "\n")
			}
			return placeholders.Replace(value)
		}
		return value
	}
	return replace("", value), nil
}
