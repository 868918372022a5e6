package scaler_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// truthTable is the file with the table of all combinations.
const truthTable = "../../state/DESIGN.md"

// combination is the state of one VM in files, state, Proxmox and the cluster.
type combination struct{ file, state, guest, node string }

func (c combination) String() string {
	return strings.Join([]string{c.file, c.state, c.guest, c.node}, " | ")
}

// combinations returns all combinations.
func combinations() []combination {
	var all []combination
	for _, file := range []string{"desired", "removed", "lost", "none"} {
		for _, entry := range []string{"none", "complete", "tainted", "no groups", "groups tainted", "groups only"} {
			for _, guest := range []string{"ours", "incomplete", "moved", "absent", "other owner", "unmarked", "VMID only", "hidden", "host down"} {
				for _, node := range []string{"drained", "in use"} {
					all = append(all, combination{file, entry, guest, node})
				}
			}
		}
	}
	return all
}

// truthRow is a row of the table.
type truthRow struct {
	text    string
	cells   [4][]string
	action  string
	matched bool
}

func (r *truthRow) matches(c combination) bool {
	for i, word := range []string{c.file, c.state, c.guest, c.node} {
		if r.cells[i][0] != "any" && !slices.Contains(r.cells[i], word) {
			return false
		}
	}
	return true
}

// readTruth returns the rows of the table. It fails the test if a row has an action that
// the table of actions below it does not list.
func readTruth(t *testing.T) []*truthRow {
	t.Helper()
	content, err := os.ReadFile(truthTable)
	if err != nil {
		t.Fatal(err)
	}
	actions := map[string]bool{}
	var rows []*truthRow
	section := ""
	for line := range strings.Lines(string(content)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch header := strings.Join(cells, "|"); {
		case header == "|File|State|Guest|Node|Action|" || header == "|action|effect|":
			section = header
		case len(cells) < 3:
			section = ""
		case strings.HasPrefix(cells[1], "---"):
		case section == "|action|effect|":
			actions[cells[1]] = true
		case section != "":
			row := &truthRow{text: header, action: cells[5]}
			for i := range row.cells {
				row.cells[i] = strings.Split(cells[i+1], ", ")
			}
			rows = append(rows, row)
		}
	}
	for _, row := range rows {
		for _, action := range strings.Split(row.action, ", ") {
			if !actions[action] {
				t.Errorf("row %s: %q is no action that the table below explains", row.text, action)
			}
		}
	}
	return rows
}

// TestTruth compares the code with the table in state/DESIGN.md: each combination has a
// row, each row has a combination, and the scaler performs the action in the row.
func TestTruth(t *testing.T) {
	t.Parallel()
	rows := readTruth(t)
	rules := guard.DefaultRules()
	known, stages := map[string]bool{}, map[stage]*scaler.Scaler{}
	for _, c := range combinations() {
		for _, word := range []string{c.file, c.state, c.guest, c.node} {
			known[word] = true
		}
		i := slices.IndexFunc(rows, func(row *truthRow) bool { return row.matches(c) })
		if i < 0 {
			t.Errorf("no row says what to do about %s", c)
			continue
		}
		rows[i].matched = true
		all := scenes(c)
		for _, scene := range all {
			key := scene.stage()
			if stages[key] == nil {
				stages[key] = key.build(t)
			}
			scene.numaform = stages[key]
		}
		t.Run(strings.ReplaceAll(c.String(), " ", "_"), func(t *testing.T) {
			t.Parallel()
			for _, scene := range all {
				if got := scene.act(t, rules); got != rows[i].action {
					t.Errorf("%s: it does %q, row %s", scene.name, got, rows[i].text)
				}
			}
		})
	}
	for _, row := range rows {
		if !row.matched {
			t.Errorf("row %s is never reached", row.text)
		}
		for _, word := range slices.Concat(row.cells[:]...) {
			if word != "any" && !known[word] {
				t.Errorf("row %s: %q is no such case", row.text, word)
			}
		}
	}
}

// scene is one way in which a combination arises.
type scene struct {
	combination
	name string
	vm   fleet.VM
	// earlier marks a file that an earlier change removed.
	earlier  bool
	snapshot *topology.Snapshot
	// held lists the addresses in the state, and tainted the tainted ones among them.
	held, tainted []string
	numaform      *scaler.Scaler
}

// stage is a fleet with its history and its cluster, shared by many scenes.
type stage struct{ file, made, removing, interrupted, busy bool }

func (s *scene) stage() stage {
	return stage{
		file: s.file == "desired" || (s.file == "removed" && !s.earlier), made: s.file == "lost", removing: s.earlier,
		interrupted: s.guest == "incomplete" || s.earlier, busy: s.node == "in use",
	}
}

// build writes the fleet's files and history.
func (s stage) build(t *testing.T) *scaler.Scaler {
	t.Helper()
	node, files := truthVM(), []fleet.VM{vm(pve2, 2009)}
	if s.file {
		files = append(files, node)
	}
	numaform := newScaler(t, func(config *scaler.Config) {
		config.Drained = func(_ context.Context, name string) error {
			if s.busy && name == node.Name {
				return errors.New("2 pods run on it")
			}
			return nil
		}
	}, files...)
	if s.made {
		numaform.Made(t, node)
	}
	switch {
	case s.removing:
		numaform.Begin(t, pve1, node)
	case s.interrupted:
		numaform.Begin(t, pve1)
	}
	return numaform
}

// truthVM is the VM of all combinations.
func truthVM() fleet.VM {
	node := vm(pve1, 2000)
	node.SecurityGroups = []string{"k8s"}
	return node
}

// scenes returns the ways in which a combination arises, all with the same action.
func scenes(c combination) []*scene {
	node := truthVM()
	addresses := generator.Addresses(&node)
	held := map[string][]string{
		"complete": addresses, "tainted": addresses[:1], "no groups": addresses[:1], "groups tainted": addresses, "groups only": addresses[1:],
	}
	tainted := map[string][]string{"tainted": addresses[:1], "groups tainted": addresses[1:]}
	var all []*scene
	for name, seen := range sights(c.guest, node) {
		all = append(all, &scene{combination: c, name: name, vm: node, snapshot: seen, held: held[c.state], tainted: tainted[c.state]})
	}
	if c.file == "removed" {
		for _, now := range slices.Clone(all) {
			before := *now
			before.earlier, before.name = true, now.name+", earlier"
			all = append(all, &before)
		}
	}
	return all
}

// sights returns the possible snapshots for a word in the Guest column, by name.
func sights(guest string, node fleet.VM) map[string]*topology.Snapshot {
	switch guest {
	case "ours":
		return map[string]*topology.Snapshot{"on its host": snapshot(guestOf(node))}
	case "moved":
		return map[string]*topology.Snapshot{"on pve-2": away(guestOf(node))}
	case "incomplete":
		return map[string]*topology.Snapshot{"stopped": snapshot(stopped(guestOf(node)))}
	case "other owner":
		return map[string]*topology.Snapshot{
			"stranger": snapshot(stranger(node.VMID)), "elsewhere": away(stranger(node.VMID)), "another numaform": snapshot(ofAnother(guestOf(node))),
		}
	case "unmarked":
		tagged := stranger(node.VMID)
		tagged.Tags = []string{"numaform-" + clusterID}
		return map[string]*topology.Snapshot{"name": snapshot(unmarked(guestOf(node))), "tag": snapshot(tagged), "moved": away(unmarked(guestOf(node)))}
	case "VMID only":
		seen := away(unmarked(guestOf(node)))
		seen.Hosts[1].Online = false
		return map[string]*topology.Snapshot{"moved": seen}
	case "hidden":
		seen := snapshot()
		seen.Regions[0].HidesGuests = true
		return map[string]*topology.Snapshot{"not listed": seen}
	case "host down":
		unquorate := snapshot(guestOf(node))
		unquorate.Regions[0].Quorate = false
		return map[string]*topology.Snapshot{"down": down(snapshot(guestOf(node))), "no guest known": down(snapshot()), "no quorum": unquorate}
	}
	return map[string]*topology.Snapshot{"gone": snapshot()}
}

// away returns a snapshot with the guest on pve-2.
func away(guest topology.Guest) *topology.Snapshot {
	seen := snapshot()
	seen.Hosts[1].Guests = []topology.Guest{guest}
	return seen
}

// act runs the scaler's steps before an apply and right before it, and returns the
// action.
func (s *scene) act(t *testing.T, rules guard.Rules) string {
	t.Helper()
	change := s.propose(t)
	var done []string
	if len(change.Renumbered) > 0 {
		done = append(done, "new VMID")
	}
	done = append(done, s.decide(t, change, rules)...)
	done = slices.DeleteFunc(done, func(word string) bool { return word == "" })
	if len(done) == 0 {
		return "nothing"
	}
	return strings.Join(done, ", ")
}

// decide follows the steps of a complete plan of the host and returns the actions.
func (s *scene) decide(t *testing.T, change *scaler.Change, rules guard.Rules) (done []string) {
	t.Helper()
	w, err := s.numaform.Look(t.Context(), change, pve1)
	if err != nil {
		return []string{refusal(t, err)}
	}
	plan := s.plan(change, nil)
	step, err := w.Compare(plan)
	if err == nil && len(step.Forget) > 0 {
		done = append(done, "forget")
		s.forget(t, step.Forget)
		plan = s.plan(change, nil)
		if step, err = w.Compare(plan); len(step.Forget) > 0 {
			t.Errorf("%s: it forgets %v again", s.name, step.Forget)
		}
	}
	restored, historyErr := s.numaform.Adopt(t.Context(), change, w, plan)
	switch {
	case historyErr != nil:
		t.Fatal(historyErr)
	case restored && s.earlier:
		if next := s.decide(t, change, rules); len(next) != 1 || !strings.HasPrefix(next[0], "import") {
			t.Errorf("%s: its file came back, and it does %q", s.name, next)
		}
		return append(done, refusal(t, err))
	case restored:
		return append(append(done, "restore"), s.decide(t, change, rules)...)
	case err != nil && s.earlier && as[*scaler.OutsideStateError](err):
		t.Errorf("%s: its file does not come back, so it can never be removed", s.name)
	case err != nil:
		return append(done, refusal(t, err))
	}
	return append(done, s.judge(t, change, w, step, rules))
}

// propose returns the change for a VM in the combination's state.
func (s *scene) propose(t *testing.T) *scaler.Change {
	t.Helper()
	if s.file != "removed" || s.earlier {
		return propose(t, s.numaform, s.snapshot)
	}
	change, err := s.numaform.ProposeRemoval(t.Context(), s.snapshot, []string{s.vm.Name})
	if err != nil {
		t.Fatal(err)
	}
	return change
}

// judge returns the action on the VM, or why there is none, according to the guard and the
// scaler's last checks before the apply.
func (s *scene) judge(t *testing.T, change *scaler.Change, w *scaler.HostView, step scaler.Recovery, rules guard.Rules) string {
	t.Helper()
	plan := s.plan(change, slices.Concat(step.Imports, step.Partial))
	w.TakenOut(plan)
	s.numaform.CheckNodes(t.Context(), w)
	intent := w.Intent(plan, step.Imports)
	for _, vm := range step.Partial {
		intent.Update = append(intent.Update, guard.Target{Address: generator.Address(&vm), VMID: vm.VMID, Key: vm.Key, Host: vm.Host.Host, Pool: vm.Pool})
	}
	for _, finding := range guard.Check(plan, intent, rules).Findings {
		switch finding.Rule {
		case guard.RuleDrained:
			return "deny"
		case guard.RuleSurplus, guard.RuleMissing, guard.RuleReplace, guard.RuleIntent, guard.RuleAddress, guard.RuleIdentity:
			return "denied: " + finding.String()
		}
	}
	if err := w.StillFree(intent); err != nil {
		return refusal(t, err)
	}
	return s.intended(t, intent, change)
}

// intended returns the intent's operation on the VM, or the report about it.
func (s *scene) intended(t *testing.T, intent guard.Intent, change *scaler.Change) string {
	t.Helper()
	var words []string
	address := generator.Address(&s.vm)
	for _, list := range []struct {
		word    string
		targets []guard.Target
	}{
		{"create", intent.Create}, {"import", intent.Import}, {"add the groups", intent.Update}, {"delete", intent.Delete},
	} {
		for _, target := range list.targets {
			if target.Address != address {
				continue
			}
			if target.Incomplete {
				list.word += " and finish"
			}
			words = append(words, list.word)
		}
	}
	if told := change.Warnings(); len(words) == 0 && len(told) > 0 {
		return "report"
	}
	return strings.Join(words, " and ")
}

// refusal returns the action for an error.
func refusal(t *testing.T, err error) string {
	t.Helper()
	switch {
	case as[*scaler.HostDownError](err):
		return "wait"
	case as[*scaler.MarkerLostError](err), as[*scaler.HiddenError](err), as[*scaler.MovedError](err):
		return "report"
	case as[*scaler.OutsideStateError](err):
		return "adopt first"
	}
	return fmt.Sprintf("fail: %v", err)
}

// forget removes entries from the state.
func (s *scene) forget(t *testing.T, addresses []string) {
	t.Helper()
	for _, address := range addresses {
		i := slices.Index(s.held, address)
		if i < 0 {
			t.Fatalf("%s: the state has no %s", s.name, address)
		}
		s.held = slices.Delete(slices.Clone(s.held), i, i+1)
	}
}

// plan returns an engine's plan of pve-1 for the files after the change and the state.
func (s *scene) plan(change *scaler.Change, imported []fleet.VM) *tfjson.Plan {
	plan := &tfjson.Plan{FormatVersion: "1.2"}
	calls := map[string]bool{}
	for _, vm := range change.After.VMs {
		if vm.Host != pve1 {
			continue
		}
		for _, address := range generator.Addresses(&vm) {
			calls[address] = true
			one := resource(vm, address)
			switch importing := slices.ContainsFunc(imported, func(one fleet.VM) bool { return one.Key == vm.Key }); {
			case slices.Contains(s.held, address) && slices.Contains(s.tainted, address):
				one.Change.Actions = tfjson.Actions{tfjson.ActionDelete, tfjson.ActionCreate}
				one.ActionReason = tfjson.ActionReasonReplaceBecauseTainted
			case slices.Contains(s.held, address):
				one.Change.Actions = tfjson.Actions{tfjson.ActionNoop}
			case importing:
				one.Change.Actions = tfjson.Actions{tfjson.ActionNoop}
				one.Change.Importing = &tfjson.Importing{ID: importIDs(vm)[address]}
			default:
				one.Change.Actions, one.Change.Before = tfjson.Actions{tfjson.ActionCreate}, nil
				delete(one.Change.After.(map[string]any), "id")
			}
			plan.ResourceChanges = append(plan.ResourceChanges, one)
		}
	}
	for _, address := range s.held {
		if !calls[address] {
			one := resource(s.vm, address)
			one.Change.Actions, one.Change.After = tfjson.Actions{tfjson.ActionDelete}, nil
			plan.ResourceChanges = append(plan.ResourceChanges, one)
		}
	}
	return plan
}

func importIDs(vm fleet.VM) map[string]string {
	found := map[string]string{}
	for _, one := range generator.Imports(&vm) {
		found[one.Address] = one.ID
	}
	return found
}

// resource returns one of a VM's resources with the values by which the scaler and the
// guard identify it.
func resource(vm fleet.VM, address string) *tfjson.ResourceChange {
	parts := strings.Split(address, ".")
	values := map[string]any{"vm_id": json.Number(fmt.Sprint(vm.VMID)), "node_name": string(vm.Host.Host)}
	if parts[2] == guard.ResourceType {
		values["name"], values["description"] = vm.Name, fleet.Marker{ClusterID: clusterID, Key: vm.Key}.String()
		values["clone"], values["id"] = []any{map[string]any{}}, fmt.Sprint(vm.VMID)
	}
	return &tfjson.ResourceChange{
		Address: address, ModuleAddress: parts[0] + "." + parts[1], Mode: tfjson.ManagedResourceMode, Type: parts[2], Name: parts[3],
		ProviderName: guard.Provider, Change: &tfjson.Change{Before: values, After: values},
	}
}
