package guestsim

import (
	"errors"
	"fmt"
)

// Step is the phase of a guest in which a problem occurred.
type Step string

// The steps of a guest.
const (
	StepSeed        Step = "seed"        // the disc, or a document on it
	StepKubelet     Step = "kubelet"     // its configuration, flags or bootstrap kubeconfig
	StepCertificate Step = "certificate" // the token, or the request that uses it
	StepRegister    Step = "register"    // the Node
	StepHeartbeat   Step = "heartbeat"   // the Node's status or lease
	StepPod         Step = "pod"
)

// Problem is an error that a correct guest never encounters. It is recorded once, even if
// the guest retries.
type Problem struct {
	VM   string
	VMID int
	Step Step
	Err  error
}

func (p Problem) String() string { return fmt.Sprintf("vm %s: %s: %v", p.VM, p.Step, p.Err) }

// stepError is an error with the step in which it occurred.
type stepError struct {
	step Step
	err  error
}

func (e *stepError) Error() string { return e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }

// at adds the step to an error; it returns nil for nil.
func at(step Step, err error) error {
	if err == nil {
		return nil
	}
	return &stepError{step: step, err: err}
}

// report records a problem unless it is already recorded.
func (m *machine) report(err error) {
	problem := Problem{VM: m.name, VMID: m.id, Err: err, Step: StepKubelet}
	var where *stepError
	if errors.As(err, &where) {
		problem.Step = where.step
	}
	g := m.guests
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, known := range g.problems {
		if known.String() == problem.String() {
			return
		}
	}
	g.problems = append(g.problems, problem)
}
