package state

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/hashicorp/terraform-exec/tfexec"
	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// knownFile is the file in which a workspace records the content of the state after its
// last write.
const knownFile = "known.json"

// knownState lists the resources in the state after this workspace's last write, plus the
// ones that a started apply adds.
type knownState struct {
	Addresses []string `json:"addresses"`
	// Deleting are the addresses that a started apply removes.
	Deleting []string `json:"deleting,omitempty"`
}

// LostResourcesError reports that the backend's state differs from what a successful
// apply left: another client wrote it meanwhile.
type LostResourcesError struct {
	Dir string
	// Lost are resources that the apply left in the state but that are missing from it:
	// import them if they exist.
	Lost []string
	// Regained are resources that were destroyed but are in the state again: forget them.
	Regained []string
}

// Error names the state, the differences and the fix.
func (e *LostResourcesError) Error() string {
	var parts []string
	if len(e.Lost) > 0 {
		parts = append(parts, "has lost "+strings.Join(e.Lost, ", "))
	}
	if len(e.Regained) > 0 {
		parts = append(parts, "again contains the destroyed "+strings.Join(e.Regained, ", "))
	}
	return fmt.Sprintf("state of %s %s: another client wrote it during the apply; run numaform again, which imports existing resources and "+
		"forgets the others, and make sure that no other numaform, tofu or terraform uses this state", e.Dir, strings.Join(parts, ", and "))
}

// knownOf returns the state's content before a plan and after it, and what the plan
// removes, all by address.
func knownOf(plan *tfjson.Plan) (before []string, after knownState) {
	// Data sources and deposed objects are not counted.
	if prior := plan.PriorState; prior != nil && prior.Values != nil && prior.Values.RootModule != nil {
		modules := []*tfjson.StateModule{prior.Values.RootModule}
		for i := 0; i < len(modules); i++ {
			for _, r := range modules[i].Resources {
				if r.Mode == tfjson.ManagedResourceMode && r.DeposedKey == "" {
					before = append(before, r.Address)
				}
			}
			modules = append(modules, modules[i].ChildModules...)
		}
		slices.Sort(before)
	}
	after.Addresses = slices.Clone(before)
	for _, rc := range plan.ResourceChanges {
		if rc.Change == nil || rc.Mode != tfjson.ManagedResourceMode || rc.DeposedKey != "" {
			continue
		}
		switch actions := rc.Change.Actions; {
		case actions.Delete(), actions.Forget():
			after.Deleting = append(after.Deleting, rc.Address)
		default:
			after.Addresses = append(after.Addresses, rc.Address)
			if rc.PreviousAddress != "" && rc.PreviousAddress != rc.Address {
				after.Deleting = append(after.Deleting, rc.PreviousAddress)
			}
		}
	}
	slices.Sort(after.Addresses)
	after.Addresses = without(slices.Compact(after.Addresses), after.Deleting)
	slices.Sort(after.Deleting)
	return before, after
}

// without returns the elements of a that are not in b.
func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}

// compare returns the resources that this workspace left in the state but that a plan did
// not find there. If unchanged is set, which means that a complete plan changes nothing,
// compare also records the content of the state.
func (w *Workspace) compare(plan *tfjson.Plan, unchanged bool) ([]string, error) {
	known, err := w.readKnown()
	if err != nil {
		return nil, err
	}
	before, _ := knownOf(plan)
	if unchanged {
		if err := w.writeKnown(knownState{Addresses: before}); err != nil {
			return nil, err
		}
	}
	if known == nil {
		return nil, nil
	}
	return without(known.Addresses, before), nil
}

// verify records the content of the state after an apply. It returns a LostResourcesError
// if the backend's state, unless it is local, does not match the result of the apply.
func (w *Workspace) verify(ctx context.Context, left knownState) error {
	if w.root.backend != "local" {
		pulled, err := w.pull(ctx)
		if err != nil {
			return err
		}
		addresses, err := addressesOf([]byte(pulled))
		if err != nil {
			return fmt.Errorf("reading the state of %s: %w", w.config.Dir, err)
		}
		lost := without(left.Addresses, addresses)
		regained := without(left.Deleting, without(left.Deleting, addresses))
		if len(lost)+len(regained) > 0 {
			return &LostResourcesError{Dir: w.config.Dir, Lost: lost, Regained: regained}
		}
	}
	return w.writeKnown(knownState{Addresses: left.Addresses})
}

// addressesOf lists the managed resources of a state. Empty content has none.
func addressesOf(content []byte) ([]string, error) {
	if len(content) == 0 {
		return nil, nil
	}
	resources, err := parseState(content)
	if err != nil {
		return nil, err
	}
	var addresses []string
	for i := range resources {
		addresses = append(addresses, resources[i].Address)
	}
	return addresses, nil
}

func (w *Workspace) writeKnown(k knownState) error {
	content, err := json.Marshal(k)
	if err == nil {
		err = renameio.WriteFile(w.private(knownFile), content, 0o600)
	}
	if err != nil {
		return fmt.Errorf("recording the content of the state of %s: %w", w.config.Dir, err)
	}
	return nil
}

// readKnown returns the record, or nil if it does not exist or cannot be parsed.
func (w *Workspace) readKnown() (*knownState, error) {
	content, err := os.ReadFile(w.private(knownFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // a new directory has no record
	}
	if err != nil {
		return nil, fmt.Errorf("reading the recorded content of the state of %s: %w", w.config.Dir, err)
	}
	var k knownState
	if err := json.Unmarshal(content, &k); err != nil {
		return nil, nil //nolint:nilnil,nilerr // as above
	}
	return &k, nil
}

// Forget removes resources from the state and does not change them in Proxmox. It is for
// entries that are not correct: a tainted one, whose VM can be imported afterwards, one of
// a VM that does not exist, or one with a VMID that now belongs to an unmanaged guest.
func (w *Workspace) Forget(ctx context.Context, addresses ...string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.prepare(ctx); err != nil {
		return err
	}
	for _, address := range addresses {
		operation := "forgetting " + address + " in"
		err := w.locking(ctx, operation, func(ctx context.Context) error {
			return w.command(ctx, operation, func(tf *tfexec.Terraform) error { return tf.StateRm(ctx, address) })
		})
		if err != nil {
			return err
		}
	}
	known, err := w.readKnown()
	if err != nil || known == nil {
		return err
	}
	known.Addresses = without(known.Addresses, addresses)
	return w.writeKnown(*known)
}

// Resource is a resource in the state.
type Resource struct {
	Address string
	// Tainted is set if the next plan would replace the resource: see Forget.
	Tainted bool
	// VMID, Host and Description are zero if the resource has none.
	VMID        fleet.VMID
	Host        topology.HostName
	Description string
}

// Resources returns the resources in the backend's state, sorted by address. It reads the
// state without its lock; only the first init of a Kubernetes backend takes the lock.
func (w *Workspace) Resources(ctx context.Context) ([]Resource, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.prepare(ctx); err != nil {
		return nil, err
	}
	pulled, err := w.pull(ctx)
	if err != nil || pulled == "" {
		return nil, err
	}
	resources, err := parseState([]byte(pulled))
	if err != nil {
		return nil, fmt.Errorf("reading the state of %s: %w", w.config.Dir, err)
	}
	return resources, nil
}

// parseState lists the managed resources of a state of format 4.
func parseState(content []byte) ([]Resource, error) {
	var s struct {
		Resources []struct {
			Module    string `json:"module"`
			Mode      string `json:"mode"`
			Type      string `json:"type"`
			Name      string `json:"name"`
			Instances []struct {
				IndexKey   any    `json:"index_key"`
				Status     string `json:"status"`
				Deposed    string `json:"deposed"`
				Attributes struct {
					VMID        any `json:"vm_id"`
					Host        any `json:"node_name"`
					Description any `json:"description"`
				} `json:"attributes"`
			} `json:"instances"`
		} `json:"resources"`
	}
	if err := json.Unmarshal(content, &s); err != nil {
		return nil, err
	}
	var resources []Resource
	for _, r := range s.Resources {
		if r.Mode != "managed" {
			continue
		}
		address := r.Type + "." + r.Name
		if r.Module != "" {
			address = r.Module + "." + address
		}
		for _, i := range r.Instances {
			if i.Deposed != "" {
				continue
			}
			one := Resource{Address: address, Tainted: i.Status == "tainted"}
			switch key := i.IndexKey.(type) {
			case float64:
				one.Address += fmt.Sprintf("[%d]", int64(key))
			case string:
				one.Address += fmt.Sprintf("[%q]", key)
			}
			if vmid, ok := i.Attributes.VMID.(float64); ok {
				one.VMID = fleet.VMID(vmid)
			}
			host, _ := i.Attributes.Host.(string)
			one.Host = topology.HostName(host)
			one.Description, _ = i.Attributes.Description.(string)
			resources = append(resources, one)
		}
	}
	slices.SortFunc(resources, func(a, b Resource) int { return cmp.Compare(a.Address, b.Address) })
	return resources, nil
}
