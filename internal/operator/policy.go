package operator

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/numaform/numaform/state/guard"
)

// Rules returns what the guard works with: the shipped rules and limits, and what
// the configuration says otherwise. Rules that cannot be loaded are an error.
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

// over writes what is set over the shipped limits.
func (l *Limits) over(limits *guard.Limits) {
	if l.Window > 0 {
		limits.WindowSeconds = int64(l.Window / time.Second)
	}
	l.PerChange.over(&limits.PerChange)
	l.PerWindow.over(&limits.PerWindow)
	l.PerHost.over(&limits.PerHost)
	l.PerPool.over(&limits.PerPool)
	for _, pair := range []struct{ from, to *int }{
		{&l.MaxUpdates, &limits.MaxUpdates}, {&l.MaxImports, &limits.MaxImports}, {&l.BreakAfter, &limits.BreakAfter},
	} {
		if *pair.from > 0 {
			*pair.to = *pair.from
		}
	}
}

func (a Amount) over(amount *guard.Amount) {
	if a.Creates > 0 {
		amount.Creates = a.Creates
	}
	if a.Deletes > 0 {
		amount.Deletes = a.Deletes
	}
}
