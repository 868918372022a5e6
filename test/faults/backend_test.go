package faults_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// backend stores states and locks over HTTP for the http backend, and fails on demand.
type backend struct {
	url string
	// mu guards the fields below.
	mu            sync.Mutex
	states, locks map[string][]byte
	// written contains every state that was ever saved.
	written [][]byte
	gates   []backendGate
	fails   func(r *http.Request) bool
}

// backendGate is a gate for requests with a method while an operation holds the lock. If
// after is set, the gate stops them once they are executed.
type backendGate struct {
	method, operation string
	after             bool
	gate              *gate
}

func newBackend(t *testing.T) *backend {
	t.Helper()
	b := &backend{states: map[string][]byte{}, locks: map[string][]byte{}}
	server := httptest.NewServer(b)
	t.Cleanup(server.Close)
	b.url = server.URL
	return b
}

// The operations that take a lock, as named by the engines.
const (
	operationPlan  = "OperationTypePlan"
	operationApply = "OperationTypeApply"
)

// hold arms a gate.
func (b *backend) hold(method, operation string, after bool) *gate {
	g := newGate()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gates = append(b.gates, backendGate{method, operation, after, g})
	return g
}

// failing makes a request fail if fails returns true for it. With nil, all requests
// succeed.
func (b *backend) failing(fails func(r *http.Request) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fails = fails
}

// ServeHTTP implements http.Handler.
func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	b.mu.Lock()
	failing := b.fails != nil && b.fails(r)
	b.mu.Unlock()
	if failing {
		http.Error(w, "the backend is down", http.StatusServiceUnavailable)
		return
	}
	operation := b.operation(r, body)
	if !b.pass(r, operation, false) {
		return
	}
	status, answer := b.answer(r, body)
	b.pass(r, operation, true)
	w.WriteHeader(status)
	_, _ = w.Write(answer) // the client may be dead
}

// operation returns the operation of the current or requested lock.
func (b *backend) operation(r *http.Request, body []byte) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	account := b.locks[r.URL.Path]
	if r.Method == "LOCK" {
		account = body
	}
	var lock struct{ Operation string }
	if json.Unmarshal(account, &lock) != nil {
		return ""
	}
	return lock.Operation
}

func (b *backend) pass(r *http.Request, operation string, after bool) bool {
	b.mu.Lock()
	gates := slices.Clone(b.gates)
	b.mu.Unlock()
	for _, g := range gates {
		if g.method == r.Method && g.operation == operation && g.after == after {
			if !g.gate.pass(r.Context(), fmt.Sprintf("backend %s for %s", r.Method, operation)) {
				return false
			}
		}
	}
	return true
}

func (b *backend) answer(r *http.Request, body []byte) (int, []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	path := r.URL.Path
	switch r.Method {
	case http.MethodGet:
		if b.states[path] == nil {
			return http.StatusNoContent, nil
		}
		return http.StatusOK, b.states[path]
	case http.MethodPost:
		b.states[path] = body
		b.written = append(b.written, body)
	case "LOCK":
		if b.locks[path] != nil {
			return http.StatusLocked, b.locks[path]
		}
		b.locks[path] = body
	case "UNLOCK":
		delete(b.locks, path)
	default:
		return http.StatusMethodNotAllowed, nil
	}
	return http.StatusOK, nil
}

// unlock removes the locks, as an operator does after making sure that no process holds
// them.
func (b *backend) unlock() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.locks)
}

// locked returns the current locks.
func (b *backend) locked() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var locks []string
	for _, path := range slices.Sorted(maps.Keys(b.locks)) {
		locks = append(locks, path+": "+string(b.locks[path]))
	}
	return locks
}

// saved returns the number of saved states.
func (b *backend) saved() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.states)
}

// vms returns the VMIDs in the states of a host, and the tainted ones.
func (b *backend) vms(t *testing.T, host string) (vmids, tainted []int) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for path, content := range b.states {
		if strings.Contains(path, host) {
			there, bad := vmsOf(t, content)
			vmids, tainted = append(vmids, there...), append(tainted, bad...)
		}
	}
	slices.Sort(vmids)
	return vmids, tainted
}

// vmsOf reads the VMs of a state.
func vmsOf(t *testing.T, content []byte) (vmids, tainted []int) {
	t.Helper()
	var state struct {
		Resources []struct {
			Type      string `json:"type"`
			Instances []struct {
				Status     string `json:"status"`
				Attributes struct {
					VMID int `json:"vm_id"`
				} `json:"attributes"`
			} `json:"instances"`
		} `json:"resources"`
	}
	if err := json.Unmarshal(content, &state); err != nil {
		t.Fatalf("reading a state: %v", err)
	}
	for _, resource := range state.Resources {
		for _, instance := range resource.Instances {
			if resource.Type != "proxmox_virtual_environment_vm" {
				continue
			}
			vmids = append(vmids, instance.Attributes.VMID)
			if instance.Status != "" {
				tainted = append(tainted, instance.Attributes.VMID)
			}
		}
	}
	return vmids, tainted
}
