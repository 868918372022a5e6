package operator

import (
	"errors"
	"fmt"
	"os"
	"reflect"
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
			return guard.Rules{}, fmt.Errorf("reading policy.files: %w: %s", err, readFix(err, "correct the path"))
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
		return guard.Rules{}, errors.New("reading policy: policy.replace_default is set, but policy.files is empty, so every change would be denied: set policy.files, or remove policy.replace_default")
	}
	return rules, nil
}

// over overrides limits with the values that are set.
func (l *Limits) over(limits *guard.Limits) {
	if l.Window != nil {
		limits.WindowSeconds = int64(*l.Window / time.Second)
	}
	set := func(target, value *int) {
		if value != nil {
			*target = *value
		}
	}
	for amount, configured := range map[*guard.Amount]Amount{
		&limits.PerChange: l.PerChange,
		&limits.PerWindow: l.PerWindow,
		&limits.PerHost:   l.PerHost,
		&limits.PerPool:   l.PerPool,
	} {
		set(&amount.Creates, configured.Creates)
		set(&amount.Deletes, configured.Deletes)
	}
	set(&limits.MaxUpdates, l.MaxUpdates)
	set(&limits.MaxImports, l.MaxImports)
	set(&limits.BreakAfter, l.BreakAfter)
}

// check returns an error for each invalid limit.
func (l *Limits) check() []error {
	var mistakes []error
	if l.Window != nil && *l.Window <= 0 {
		mistakes = append(mistakes, fmt.Errorf("policy.limits.window: %s: must be %s", *l.Window, positiveDuration))
	}
	walkKeys(reflect.ValueOf(*l), "policy.limits", func(path string, value reflect.Value) {
		if limit, ok := value.Interface().(*int); ok && limit != nil && *limit < 0 {
			mistakes = append(mistakes, fmt.Errorf("%s: %d: must be 0 or more", path, *limit))
		}
	})
	return mistakes
}
