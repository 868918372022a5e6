package approval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/logkey"
)

// candidacy identifies a VM, by its key, that is a candidate for a kind of disruption.
type candidacy struct{ by, key string }

// Methods wraps Karpenter's disruption methods with approval: a command that needs
// approval is not started, so no node is tainted, until the same command has been
// approved. It calls build twice, because a method remembers that it found nothing to do:
// the methods in free handle the NodePools that need no approval, those in held, less often,
// the NodePools that do, so that a pending command does not hide others.
func (a *Approvals) Methods(build func() []disruption.Method) (free, held []disruption.Method) {
	wrap := func(manual bool) []disruption.Method {
		methods := build()
		for i, inner := range methods {
			methods[i] = &method{Method: inner, approvals: a, manual: manual}
		}
		return methods
	}
	return wrap(false), wrap(true)
}

// Manual reports whether a NodePool's scale-ups or scale-downs need approval. A disruption
// can contain both.
func (a *Approvals) Manual(pool *karpv1.NodePool) bool {
	return a.modeOf(pool, v1alpha1.ScaleDown) == ModeManual || a.modeOf(pool, v1alpha1.ScaleUp) == ModeManual
}

// method is one of Karpenter's methods, restricted to the NodePools that need approval or
// to the NodePools that do not.
type method struct {
	disruption.Method
	approvals *Approvals
	// manual is set if the method handles the NodePools that need approval.
	manual bool

	// mu guards computed.
	mu sync.Mutex
	// computed is when the inner method was last called for NodePools that need approval.
	computed time.Time
}

var _ disruption.NodePoolTotalsSetter = (*method)(nil)

// SetNodePoolTotals passes the totals to the inner method.
func (m *method) SetNodePoolTotals(totals map[string]disruption.NodePoolTotals) {
	if setter, ok := m.Method.(disruption.NodePoolTotalsSetter); ok {
		setter.SetNodePoolTotals(totals)
	}
}

// requestedBy returns the method's name in ScalePlans.
func (m *method) requestedBy() string {
	parts := []string{"disruption", string(m.Reason())}
	if kind := m.ConsolidationType(); kind != "" {
		parts = append(parts, kind)
	}
	return strings.ToLower(strings.Join(parts, "/"))
}

// ShouldDisrupt reports whether the method handles the candidate's NodePool and the inner
// method accepts the candidate. The method for NodePools that need approval rejects
// candidates of static NodePools.
func (m *method) ShouldDisrupt(ctx context.Context, candidate *disruption.Candidate) bool {
	a := m.approvals
	// Static NodePools reserve replacements as soon as a command is computed, so their
	// commands cannot wait.
	if a.Manual(candidate.NodePool) != m.manual || (m.manual && candidate.OwnedByStaticNodePool()) || !m.Method.ShouldDisrupt(ctx, candidate) {
		return false
	}
	if m.manual {
		a.mu.Lock()
		a.seen[candidacy{by: m.requestedBy(), key: keyOf(candidate)}] = a.config.Clock.Now()
		a.mu.Unlock()
	}
	return true
}

// ComputeCommands returns the commands that may start now, and proposes ScalePlans for the
// others. It returns none while numaform is paused.
func (m *method) ComputeCommands(ctx context.Context, budgets map[string]int, candidates ...*disruption.Candidate) ([]disruption.Command, error) {
	if m.approvals.config.Paused() {
		return nil, nil
	}
	if !m.manual {
		return m.compute(ctx, budgets, nil, candidates)
	}
	plans, err := m.approvals.readPlans(ctx)
	if err != nil {
		return nil, err
	}
	plans = slices.DeleteFunc(plans, func(plan v1alpha1.ScalePlan) bool { return plan.Spec.RequestedBy != m.requestedBy() })

	undecided := slices.Clone(candidates)
	for i := range plans {
		if !m.approvals.approved(&plans[i], plans[i].Spec.PlanHash) {
			continue
		}
		keys := deletes(plans[i].Spec.VMs)
		undecided = slices.DeleteFunc(undecided, func(c *disruption.Candidate) bool { return keys[keyOf(c)] })
		// Compute an approved command again from just its nodes, with the current budgets,
		// PDBs and simulated scheduling.
		approved := slices.DeleteFunc(slices.Clone(candidates), func(c *disruption.Candidate) bool { return !keys[keyOf(c)] })
		if len(approved) != len(keys) {
			continue
		}
		commands, err := m.compute(ctx, budgets, plans[i:i+1], approved)
		if err != nil || len(commands) > 0 {
			return commands, err
		}
	}
	if !m.due() {
		return nil, nil
	}
	return m.compute(ctx, budgets, plans, undecided)
}

// due reports whether it is time to compute new proposals.
func (m *method) due() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.approvals.config.Clock.Now()
	if !m.computed.IsZero() && now.Sub(m.computed) < computeEvery {
		return false
	}
	m.computed = now
	return true
}

// compute calls the inner method, returns the commands that may start, and proposes
// ScalePlans for the others. It only logs errors of proposals.
func (m *method) compute(
	ctx context.Context, budgets map[string]int, plans []v1alpha1.ScalePlan, candidates []*disruption.Candidate,
) ([]disruption.Command, error) {
	if len(candidates) == 0 {
		return nil, nil
	}
	commands, err := m.Method.ComputeCommands(ctx, budgets, candidates...)
	if err != nil || len(commands) == 0 {
		return nil, err
	}
	known, err := m.approvals.readPools(ctx)
	if err != nil {
		return nil, err
	}
	var allowed []disruption.Command
	var errs []error
	for i := range commands {
		ok, err := m.mayStart(ctx, known, plans, &commands[i])
		if ok {
			allowed = append(allowed, commands[i])
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		// A failed proposal must not stop allowed commands: after an error Karpenter
		// drops all of them.
		log.FromContext(ctx).Error(err, "postponed the proposal of a disruption", logkey.Reason, m.requestedBy())
	}
	return allowed, nil
}

// mayStart reports whether a command may start. If not, it proposes a ScalePlan, unless one
// is pending or was recently refused.
func (m *method) mayStart(ctx context.Context, known pools, plans []v1alpha1.ScalePlan, command *disruption.Command) (bool, error) {
	if command.Decision() == disruption.NoOpDecision {
		return false, nil
	}
	a := m.approvals
	reasons := m.reasons(known, command)
	if len(reasons) == 0 {
		return true, nil
	}
	if plans == nil {
		var err error
		if plans, err = a.readPlans(ctx); err != nil {
			return false, err
		}
	}
	d, err := m.draft(command, reasons)
	if err != nil {
		return false, err
	}
	if plan := current(plans, d.hash); plan != nil {
		// The draft has no dry plan yet: the guard evaluates the plan once the nodes are
		// drained.
		return a.mayBegin(ctx, plan, d)
	}
	if a.refused(plans, d.hash) {
		return false, nil
	}

	removed := deletes(d.vms)
	var replaced []v1alpha1.ScalePlan
	for i := range plans {
		plan := &plans[i]
		if a.approved(plan, plan.Spec.PlanHash) {
			for key := range deletes(plan.Spec.VMs) {
				if removed[key] {
					return false, nil // the approved plan waits until it can be carried out as a whole
				}
			}
		}
		if plan.Spec.RequestedBy == d.requestedBy && !isApproved(plan) &&
			slices.ContainsFunc(plan.Spec.NodePools, func(pool string) bool { return slices.Contains(d.pools, pool) }) {
			replaced = append(replaced, *plan)
		}
	}
	a.planning.Lock()
	defer a.planning.Unlock()
	if err := a.planRemoval(ctx, d, command); err != nil {
		return false, fmt.Errorf("planning the removal of %s: %w", strings.Join(command.SourceNodeNames(), ", "), err)
	}
	return false, a.propose(ctx, replaced, d)
}

// reasons returns the reasons why a command needs approval, or nil if it needs none.
func (m *method) reasons(known pools, command *disruption.Command) []string {
	a := m.approvals
	var reasons []string
	for _, candidate := range command.Candidates {
		if a.modeOf(candidate.NodePool, v1alpha1.ScaleDown) == ModeManual {
			reasons = append(reasons, a.manualReason(candidate.NodePool.Name, v1alpha1.ScaleDown))
		}
	}
	for _, replacement := range command.Replacements {
		if a.mode(known, replacement.NodePoolName, v1alpha1.ScaleUp) == ModeManual {
			reasons = append(reasons, "a new node replaces removed ones: "+a.manualReason(replacement.NodePoolName, v1alpha1.ScaleUp))
		}
	}
	slices.Sort(reasons)
	return slices.Compact(reasons)
}
