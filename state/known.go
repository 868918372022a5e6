package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
	tfjson "github.com/hashicorp/terraform-json"
)

// knownFile is the file in which a workspace records what it left in the state.
const knownFile = "known.json"

// known is the content of the state after this workspace's last write, plus what a
// started apply adds.
type known struct {
	Addresses []string `json:"addresses"`
	// Deleting are the addresses that a started apply removes.
	Deleting []string `json:"deleting,omitempty"`
}

// LostResourcesError reports that the backend's state differs from what a successful
// apply left: another client wrote it meanwhile.
type LostResourcesError struct {
	Dir string
	// Lost are resources that exist but are missing from the state: import them.
	Lost []string
	// Regained are resources that were destroyed but are in the state again: forget them.
	Regained []string
}

// Error says what is wrong with which state, and how to fix it.
func (e *LostResourcesError) Error() string {
	var parts []string
	if len(e.Lost) > 0 {
		parts = append(parts, "has lost "+strings.Join(e.Lost, ", "))
	}
	if len(e.Regained) > 0 {
		parts = append(parts, "holds again what was destroyed, "+strings.Join(e.Regained, ", "))
	}
	return fmt.Sprintf("state of %s %s: someone else wrote it during the apply; run numaform again, which imports what exists and forgets "+
		"what does not, and see that no other numaform, tofu or terraform works on this state", e.Dir, strings.Join(parts, ", and "))
}

// knownOf returns the state's content before a plan and after it, and what the plan
// removes, all by address.
func knownOf(plan *tfjson.Plan) (before []string, after known) {
	before = managed(plan.PriorState)
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

// managed lists a state's resources, without data sources and deposed objects.
func managed(s *tfjson.State) []string {
	if s == nil || s.Values == nil || s.Values.RootModule == nil {
		return nil
	}
	var addresses []string
	var walk func(*tfjson.StateModule)
	walk = func(m *tfjson.StateModule) {
		for _, r := range m.Resources {
			if r.Mode == tfjson.ManagedResourceMode && r.DeposedKey == "" {
				addresses = append(addresses, r.Address)
			}
		}
		for _, child := range m.ChildModules {
			walk(child)
		}
	}
	walk(s.Values.RootModule)
	slices.Sort(addresses)
	return addresses
}

// without returns the elements of a that are not in b.
func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}

// both returns the elements that are in a and in b.
func both(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return !slices.Contains(b, s) })
}

// compare returns what this workspace left in the state and a plan did not find there. It
// records the state if a complete plan finds nothing missing.
func (w *Workspace) compare(plan *tfjson.Plan, settled bool) ([]string, error) {
	k, err := w.recall()
	if err != nil {
		return nil, err
	}
	before, _ := knownOf(plan)
	if settled {
		if err := w.remember(known{Addresses: before}); err != nil {
			return nil, err
		}
	}
	if k == nil {
		return nil, nil
	}
	return without(k.Addresses, before), nil
}

// verify checks that the backend's state is what an apply left.
func (w *Workspace) verify(ctx context.Context, left known) error {
	if backendOf(w.config.Dir).kind != "local" {
		pulled, err := w.pull(ctx)
		if err != nil {
			return err
		}
		addresses, err := addressesOf([]byte(pulled))
		if err != nil {
			return fmt.Errorf("reading the state of %s: %w", w.config.Dir, err)
		}
		lost, regained := without(left.Addresses, addresses), both(left.Deleting, addresses)
		if len(lost)+len(regained) > 0 {
			return &LostResourcesError{Dir: w.config.Dir, Lost: lost, Regained: regained}
		}
	}
	return w.remember(known{Addresses: left.Addresses})
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

func (w *Workspace) remember(k known) error {
	content, err := json.Marshal(k)
	if err != nil {
		return fmt.Errorf("remembering the state of %s: %w", w.config.Dir, err)
	}
	if err := renameio.WriteFile(w.private(knownFile), content, 0o600); err != nil {
		return fmt.Errorf("remembering the state of %s: %w", w.config.Dir, err)
	}
	return nil
}

// recall returns the record, or nil. It ignores a file that cannot be read.
func (w *Workspace) recall() (*known, error) {
	content, err := os.ReadFile(w.private(knownFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // a new directory has no record
	}
	if err != nil {
		return nil, fmt.Errorf("recalling the state of %s: %w", w.config.Dir, err)
	}
	var k known
	if err := json.Unmarshal(content, &k); err != nil {
		return nil, nil //nolint:nilnil,nilerr // as above
	}
	return &k, nil
}
