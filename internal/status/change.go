package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/state/guard"
)

// Result describes how a change ended, according to its records.
func Result(entry *audit.Entry) string {
	text := "unfinished"
	switch {
	case entry.Unreadable != "":
		text = "unreadable"
	case entry.Outcome != nil:
		failed := 0
		hosts := slices.Concat(entry.Outcome.Hosts, entry.Outcome.Templates)
		for _, host := range hosts {
			if host.Error != "" {
				failed++
			}
		}
		text = "done in " + entry.Outcome.Duration.Round(100*time.Millisecond).String()
		if failed > 0 {
			text = fmt.Sprintf("failed on %d of %d hosts", failed, len(hosts))
		}
	}
	switch {
	case !entry.Verified:
		return doubted(entry.Doubt) + ": " + text
	case entry.Unreadable != "" || entry.Outcome != nil && !entry.OutcomeVerified:
		return doubted(entry.OutcomeDoubt) + " outcome: " + text
	}
	return text
}

// doubted describes a record that is not verified in one word.
func doubted(doubt audit.Doubt) string {
	if doubt == audit.DoubtForged || doubt == audit.DoubtUnsealed {
		return string(doubt)
	}
	return "unverified"
}

// By names the user who ran a change and the users who approved it.
func By(change *audit.Change) string {
	var approvers []string
	add := func(approver string) {
		if approver != "" && !slices.Contains(approvers, approver) {
			approvers = append(approvers, approver)
		}
	}
	for _, host := range change.Hosts {
		add(host.Approver)
	}
	for _, host := range change.Templates {
		add(host.Approver)
	}
	if len(approvers) == 0 {
		return change.Actor
	}
	return change.Actor + ", approved by " + strings.Join(approvers, ", ")
}

// Decision returns the strictest decision of the guard about any host of a change.
func Decision(change *audit.Change) guard.Decision {
	decision := guard.Allow
	for _, host := range change.Hosts {
		decision = min(decision, host.Verdict.Decision)
	}
	for _, host := range change.Templates {
		decision = min(decision, host.Verdict.Decision)
	}
	return decision
}
