package pvesim

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
)

// firewall is a VM's firewall configuration.
type firewall struct {
	options map[string]string
	rules   []map[string]string
}

func newFirewall() *firewall { return &firewall{options: map[string]string{}} }

// copied returns the copy for a clone: Proxmox copies the file with options and rules.
func (f *firewall) copied() *firewall {
	made := &firewall{options: maps.Clone(f.options)}
	for _, rule := range f.rules {
		made.rules = append(made.rules, maps.Clone(rule))
	}
	return made
}

// clusterFirewall handles GET /cluster/firewall/options.
func clusterFirewall(r *request) (any, error) {
	enable := 0
	if r.s.cfg.Firewall {
		enable = 1
	}
	return map[string]any{"enable": enable}, nil
}

// withFirewall calls do with the guest's firewall while holding the cluster's lock. In
// Proxmox, but not in the simulator, a firewall file can exist without a guest.
func (r *request) withFirewall(write bool, do func(*firewall) (any, error)) (any, error) {
	c := r.s.state
	c.mu.Lock()
	defer c.mu.Unlock()
	g, e := r.guest(GuestVM)
	if e == nil && write {
		e = c.writable()
	}
	if e != nil {
		return nil, e
	}
	return do(g.fw)
}

func getFirewallOptions(r *request) (any, error) {
	return r.withFirewall(false, func(f *firewall) (any, error) {
		result := map[string]any{"digest": f.digest()}
		for key, text := range f.options {
			result[key] = text
			if _, err := strconv.Atoi(text); err == nil {
				result[key] = json.Number(text)
			}
		}
		return result, nil
	})
}

func putFirewallOptions(r *request) (any, error) {
	return r.withFirewall(true, func(f *firewall) (any, error) {
		for _, key := range splitList(r.p["delete"]) {
			delete(f.options, key)
		}
		for key, text := range r.p {
			if !holds([]string{"node", "vmid", "delete", "digest"}, key) {
				f.options[key] = text
			}
		}
		return nil, nil
	})
}

func (f *firewall) digest() string {
	text, _ := json.Marshal([]any{f.options, f.rules})
	return notesDigest(string(text))
}

// ruleEntry returns a rule as in responses of the API: with its position, and with numbers
// where Proxmox returns numbers.
func (f *firewall) ruleEntry(pos int) map[string]any {
	entry := map[string]any{"pos": pos, "digest": f.digest()}
	for key, text := range f.rules[pos] {
		entry[key] = text
		if key == "enable" || key == "ipversion" {
			entry[key] = number(text)
		}
	}
	return entry
}

func listFirewallRules(r *request) (any, error) {
	return r.withFirewall(false, func(f *firewall) (any, error) {
		result := []any{}
		for pos := range f.rules {
			result = append(result, f.ruleEntry(pos))
		}
		return result, nil
	})
}

func getFirewallRule(r *request) (any, error) {
	return r.withFirewall(false, func(f *firewall) (any, error) {
		pos := r.p.number("pos")
		if pos >= len(f.rules) {
			return nil, dief("no rule at position %d", pos)
		}
		entry := f.ruleEntry(pos)
		entry["pos"] = strconv.Itoa(pos) // text, as in the request; the list contains numbers
		return entry, nil
	})
}

// ruleParams returns the parameters of the request that belong to a rule.
func (r *request) ruleParams() map[string]string {
	rule := map[string]string{}
	for key, text := range r.p {
		if !holds([]string{"node", "vmid", "pos", "moveto", "delete", "digest"}, key) {
			rule[key] = text
		}
	}
	return rule
}

func addFirewallRule(r *request) (any, error) {
	return r.withFirewall(true, func(f *firewall) (any, error) {
		pos := 0
		if r.p.has("pos") {
			pos = min(r.p.number("pos"), len(f.rules))
		}
		rule := r.ruleParams()
		if e := verifyRule(rule); e != nil {
			return nil, e
		}
		f.rules = slices.Insert(f.rules, pos, rule)
		return nil, nil
	})
}

func putFirewallRule(r *request) (any, error) {
	return r.withFirewall(true, func(f *firewall) (any, error) {
		pos := r.p.number("pos")
		if pos >= len(f.rules) {
			return nil, dief("no rule at position %d", pos)
		}
		rule := f.rules[pos]
		if r.p.has("moveto") {
			f.rules = slices.Delete(f.rules, pos, pos+1)
			f.rules = slices.Insert(f.rules, min(r.p.number("moveto"), len(f.rules)), rule)
			return nil, nil
		}
		changed := maps.Clone(rule)
		maps.Copy(changed, r.ruleParams())
		for _, key := range splitList(r.p["delete"]) {
			delete(changed, key)
		}
		if e := verifyRule(changed); e != nil {
			return nil, e
		}
		f.rules[pos] = changed
		return nil, nil
	})
}

var (
	vmDevice  = regexp.MustCompile(`^net[0-9]+$`)
	groupName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]+$`)
)

// verifyRule checks type, action and network device of a VM's rule (pve-firewall 6.0.4,
// PVE/Firewall.pm:1731-1738, 1807-1845). A security group need not exist, and neither need the
// device: a rule of a device applies to no other (line 2683).
func verifyRule(rule map[string]string) *apiError {
	kind, action := rule["type"], rule["action"]
	switch {
	case kind == "":
		return oneParamError("type", "missing property")
	case action == "":
		return oneParamError("action", "missing property")
	case kind == "group" && !groupName.MatchString(action):
		return oneParamError("action", "invalid characters in security group name")
	case kind != "group" && kind != "in" && kind != "out":
		return oneParamError("type", "invalid rule type '%s' for rule_env 'vm'", kind)
	case kind != "group" && !holds([]string{"ACCEPT", "DROP", "REJECT"}, action):
		return oneParamError("action", "unknown action '%s'", action)
	case rule["iface"] != "" && !vmDevice.MatchString(rule["iface"]):
		return oneParamError("iface", "value does not match the regex pattern 'net\\d+'")
	}
	return nil
}

func deleteFirewallRule(r *request) (any, error) {
	return r.withFirewall(true, func(f *firewall) (any, error) {
		pos := r.p.number("pos")
		if pos >= len(f.rules) {
			return nil, dief("no rule at position %d", pos)
		}
		f.rules = slices.Delete(f.rules, pos, pos+1)
		return nil, nil
	})
}
