package faults_test

import (
	"context"
	"encoding/json"
	"net"
	"sync"
	"testing"
)

// doorman is the test's side of the shim. The shim calls the doorman before each start of
// the engine.
type doorman struct {
	listener net.Listener
	ctx      context.Context //nolint:containedctx // the lifetime of the test
	// mu guards the fields below.
	mu     sync.Mutex
	gates  []doorGate
	visits []visit
}

// doorGate is a gate for engines with a command, before they start or after they end.
type doorGate struct {
	command string
	ended   bool
	gate    *gate
}

func newDoorman(t *testing.T) *doorman {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &doorman{listener: listener, ctx: t.Context()}
	var open sync.WaitGroup
	open.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			open.Go(func() { d.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close() // it is only closed here
		open.Wait()
	})
	return d
}

// serve responds to one visit. A killed shim does not receive the response.
func (d *doorman) serve(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // see above
	var v visit
	if json.NewDecoder(conn).Decode(&v) != nil {
		return
	}
	d.mu.Lock()
	d.visits = append(d.visits, v)
	var here *gate
	answer := answerGo
	for _, g := range d.gates {
		switch {
		case g.command != v.Command:
		case g.ended == v.Ended:
			here = g.gate
		case g.ended:
			answer = answerStay
		}
	}
	d.mu.Unlock()
	if here != nil {
		here.pass(d.ctx, "engine "+v.Command)
	}
	_, _ = conn.Write([]byte(answer)) // see above
}

// hold arms a gate for the next engine with a command.
func (d *doorman) hold(command string, ended bool) *gate {
	g := newGate()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gates = append(d.gates, doorGate{command, ended, g})
	return g
}

// applied returns the hashes of the plans that engines were started with.
func (d *doorman) applied() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var hashes []string
	for _, v := range d.visits {
		if v.Command == "apply" && !v.Ended {
			hashes = append(hashes, v.Plan)
		}
	}
	return hashes
}
