package pvesim_test

import (
	"context"
	"testing"

	"github.com/numaform/numaform/test/sim/pvesim"
)

// TestFaultHit checks that Hit delays a clone before Proxmox executes it or, with After,
// before Proxmox responds.
func TestFaultHit(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]bool{"before": false, "after": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, cluster())
			begun, release, calls := make(chan pvesim.Call), make(chan struct{}), 0
			c.server.AddFault(pvesim.Fault{Method: "POST", Path: "/clone$", Skip: 1, Times: 1, After: after, Hit: func(_ context.Context, call pvesim.Call) {
				calls++
				begun <- call
				<-release
			}})
			c.call("POST", vm9000+"/clone", "newid", "101")
			answer := make(chan int, 1)
			go func() { answer <- c.call("POST", vm9000+"/clone", "newid", "102").status }()
			if call := <-begun; call.Params["newid"] != "102" || call.Status != 0 {
				t.Errorf("held %+v", call)
			}
			if _, begun := c.server.Guest(102); begun && !after {
				t.Error("the request was executed before Hit returned")
			}
			if after {
				until(t, func() bool { _, made := c.server.Guest(102); return made })
			}
			close(release)
			if status := <-answer; status != 200 || calls != 1 {
				t.Errorf("answered %d after %d hits, want 200 after 1", status, calls)
			}
			until(t, func() bool { _, made := c.server.Guest(102); return made })
		})
	}
}
