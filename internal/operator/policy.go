package operator

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/numaform/numaform/state/guard"
)

// Rules returns the guard's rules: the defaults with the configuration's changes. Rules
// that cannot be loaded are an error.
func (c *Config) Rules() (guard.Rules, error) {
	rules := guard.DefaultRules()
	c.Policy.Limits.over(&rules.Limits)
	if c.Policy.ReplaceDefault {
		rules.Policy = nil
	}
	for _, file := range c.Policy.Files {
		text, err := os.ReadFile(file)
		if err != nil {
			return guard.Rules{}, fmt.Errorf("reading policy.files: %w: correct the path", err)
		}
		policy, err := guard.ParsePolicy(file, text)
		if err != nil {
			return guard.Rules{}, err
		}
		if rules.Policy != nil {
			if policy, err = rules.Policy.And(policy); err != nil {
				return guard.Rules{}, fmt.Errorf("reading %s: %w", file, err)
			}
		}
		rules.Policy = policy
	}
	if rules.Policy == nil {
		return guard.Rules{}, errors.New("reading policy: replace_default is set and files names no rules: nothing would ever pass: name a file")
	}
	return rules, nil
}

// over overrides limits with the values that are set.
func (l *Limits) over(limits *guard.Limits) {
	if l.Window > 0 {
		limits.WindowSeconds = int64(l.Window / time.Second)
	}
	l.PerChange.over(&limits.PerChange)
	l.PerWindow.over(&limits.PerWindow)
	l.PerHost.over(&limits.PerHost)
	l.PerPool.over(&limits.PerPool)
	set(&limits.MaxUpdates, l.MaxUpdates)
	set(&limits.MaxImports, l.MaxImports)
	set(&limits.BreakAfter, l.BreakAfter)
}

func (a Amount) over(amount *guard.Amount) {
	set(&amount.Creates, a.Creates)
	set(&amount.Deletes, a.Deletes)
}

func set(target, value *int) {
	if value != nil {
		*target = *value
	}
}

// check refuses limits that make no sense.
func (l *Limits) check() []error {
	var mistakes []error
	values := map[string]*int{
		"per_change.creates": l.PerChange.Creates, "per_change.deletes": l.PerChange.Deletes,
		"per_window.creates": l.PerWindow.Creates, "per_window.deletes": l.PerWindow.Deletes,
		"per_host.creates": l.PerHost.Creates, "per_host.deletes": l.PerHost.Deletes,
		"per_pool.creates": l.PerPool.Creates, "per_pool.deletes": l.PerPool.Deletes,
		"max_updates": l.MaxUpdates, "max_imports": l.MaxImports, "break_after": l.BreakAfter,
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if value := values[name]; value != nil && *value < 0 {
			mistakes = append(mistakes, fmt.Errorf("policy.limits.%s: %d: want 0, for nothing without a person, or more", name, *value))
		}
	}
	return mistakes
}
