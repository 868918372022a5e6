package pvesim_test

import (
	"context"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/test/sim/pvesim"
)

func TestUPIDAndStatus(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	upid := c.call("POST", vm9000+"/clone", "newid", "101").data.(string)
	form := regexp.MustCompile(`^UPID:pve-1:[0-9A-F]{8}:[0-9A-F]{8}:[0-9A-F]{8}:qmclone:9000:numaform@pve!scaler:$`)
	if !form.MatchString(upid) {
		t.Errorf("upid %s", upid)
	}
	if exit := c.await(upid); exit != "OK" {
		t.Fatal(exit)
	}
	status := c.call("GET", "/nodes/pve-1/tasks/"+url.PathEscape(upid)+"/status").data.(map[string]any)
	if status["type"] != "qmclone" || status["user"] != "numaform@pve" || status["tokenid"] != "scaler" || status["id"] != "9000" {
		t.Errorf("status %v", status)
	}
	if got := c.call("GET", "/nodes/pve-2/tasks/"+url.PathEscape(upid)+"/status"); got.status != 400 {
		t.Errorf("the task of another node: %d", got.status)
	}
	if got := c.call("DELETE", "/nodes/pve-2/tasks/"+url.PathEscape(upid)); got.status != 400 {
		t.Errorf("stopping the task of another node: %d", got.status)
	}
	for query, total := range map[string]bool{"source=active": false, "source=all": true, "limit=0": true} {
		if body := c.call("GET", "/nodes/pve-1/tasks?"+query).body; strings.Contains(body, `"total":`) != total || strings.Contains(body, "qmclone") != (query == "source=all") {
			t.Errorf("%s: %s", query, body)
		}
	}
	list := c.call("GET", "/nodes/pve-1/tasks", "typefilter", "qmclone").data.([]any)
	if len(list) != 1 || list[0].(map[string]any)["status"] != "OK" {
		t.Errorf("list %v", list)
	}
}

func TestCloneIsLockedWhileItRuns(t *testing.T) {
	t.Parallel()
	now := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))
	cfg := cluster()
	cfg.Clock, cfg.Delays.Clone = now, time.Minute
	c := start(t, cfg)
	upid := c.call("POST", vm9000+"/clone", "newid", "101").data.(string)
	until(t, func() bool { _, ok := c.server.Guest(101); return ok })
	status := c.call("GET", "/nodes/pve-1/qemu/101/status/current").data.(map[string]any)
	if status["lock"] != "clone" {
		t.Errorf("lock %v, want clone", status["lock"])
	}
	second := c.call("POST", vm9000+"/clone", "newid", "102")
	if second.status != 200 {
		t.Errorf("a second clone of the template: %d %s", second.status, second.reason)
	}
	until(t, func() bool { _, ok := c.server.Guest(102); return ok })
	if got := c.call("POST", vm9000+"/clone", "newid", "101"); got.reason != "unable to create VM 101: config file already exists" {
		t.Errorf("same vmid again: %d %s", got.status, got.reason)
	}
	until(t, func() bool { now.Step(time.Minute); return c.guest(101).Config["lock"] == "" })
	if exit := c.await(upid); exit != "OK" {
		t.Error(exit)
	}
	if lock := c.guest(101).Config["lock"]; lock != "" {
		t.Errorf("lock %q is left", lock)
	}
}

// until polls until done returns true.
func until(t *testing.T, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("waited for too long")
		}
	}
}

func TestLockFileTimeout(t *testing.T) {
	t.Parallel()
	cfg := cluster()
	cfg.Delays.Stop, cfg.LockTimeout = 300*time.Millisecond, 20*time.Millisecond
	c := start(t, cfg)
	upid := c.call("POST", vm100+"/status/stop").data.(string)
	until(t, func() bool { return c.call("PUT", vm100+"/config", "name", "x").status == 500 })
	got := c.call("PUT", vm100+"/config", "name", "x")
	if want := "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout"; got.reason != want {
		t.Errorf("got %d %s, want 500 %s", got.status, got.reason, want)
	}
	if exit := c.await(upid); exit != "OK" {
		t.Error(exit)
	}
}

func TestVMIDOfAnotherHost(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	before := c.guest(100).Raw
	exit := c.run("POST", "/nodes/pve-2/qemu/9001/clone", "newid", "100")
	if want := "close (rename) atomic file '/etc/pve/nodes/pve-2/qemu-server/100.conf' failed: File exists"; exit != want {
		t.Errorf("exit %q, want %q", exit, want)
	}
	if c.guest(100).Raw != before {
		t.Error("the foreign guest changed")
	}
}

func TestFullCloneAndTemplateInUse(t *testing.T) {
	t.Parallel()
	cfg := cluster()
	cfg.Hosts[0].Templates[0].Storage = "tank"
	cfg.Hosts[0].Storages = []pvesim.Storage{{Name: "tank", Type: "zfspool", Active: true, Content: []string{"images"}, TotalMiB: 20 << 10, FreeMiB: 20 << 10}}
	c := start(t, cfg)
	c.clone(101)
	if got := c.guest(101).Config["scsi0"]; got != "tank:base-9000-disk-0/vm-101-disk-0,size=8G" {
		t.Errorf("linked clone has %q", got)
	}
	if exit := c.run("DELETE", vm9000); exit != "base volume 'tank:base-9000-disk-0' is still in use by linked cloned" {
		t.Errorf("deleting the template: %q", exit)
	}
	if exit := c.run("POST", vm9000+"/clone", "newid", "102", "full", "1"); exit != "OK" {
		t.Fatal(exit)
	}
	if got := c.guest(102).Config["scsi0"]; got != "tank:vm-102-disk-0,size=8G" {
		t.Errorf("full clone has %q", got)
	}
	if exit := c.run("POST", vm9000+"/clone", "newid", "103", "full", "1"); !strings.HasPrefix(exit, "clone failed: ") {
		t.Errorf("clone on a full storage: %q", exit)
	}
	if _, left := c.server.Guest(103); left {
		t.Error("a failed clone still exists")
	}
	if exit := c.run("PUT", "/nodes/pve-1/qemu/101/resize", "disk", "scsi0", "size", "7G"); exit != "shrinking disks is not supported" {
		t.Errorf("shrinking: %q", exit)
	}
	if exit := c.run("PUT", "/nodes/pve-1/qemu/101/resize", "disk", "scsi0", "size", "10737418240"); exit != "OK" {
		t.Errorf("growing: %q", exit)
	}
	if got := c.guest(101).Config["scsi0"]; !strings.HasSuffix(got, "size=10G") {
		t.Errorf("after growing: %q", got)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	c.server.AddFault(pvesim.Fault{Method: "POST", Path: "/clone$", Times: 1, Status: 596, Reason: "Connection timed out"})
	if got := c.call("POST", vm9000+"/clone", "newid", "101"); got.status != 596 || got.reason != "Connection timed out" || got.body != "" {
		t.Errorf("596: %+v", got)
	}
	if _, made := c.server.Guest(101); made {
		t.Error("a refused request was executed")
	}
	c.server.AddFault(pvesim.Fault{Method: "POST", Path: "/clone$", Times: 1, After: true, Disconnect: true})
	if got := c.call("POST", vm9000+"/clone", "newid", "101"); got.status != 0 {
		t.Errorf("disconnect: %+v", got)
	}
	until(t, func() bool { g, ok := c.server.Guest(101); return ok && g.Config["lock"] == "" })

	c.server.AddFault(pvesim.Fault{Path: "/clone$", Times: 1, TaskExit: "clone failed: no space"})
	if exit := c.run("POST", vm9000+"/clone", "newid", "102"); !strings.Contains(exit, "no space") {
		t.Errorf("task exit %q", exit)
	}
	if _, left := c.server.Guest(102); left {
		t.Error("a failed clone still exists")
	}
	c.server.AddFault(pvesim.Fault{Path: "/clone$", Times: 1, TaskExit: "unexpected status", LeaveLock: true})
	if exit := c.run("POST", vm9000+"/clone", "newid", "103"); exit != "unexpected status" {
		t.Errorf("task exit %q", exit)
	}
	if exit := c.run("POST", "/nodes/pve-1/qemu/103/status/start"); exit != "VM is locked (clone)" {
		t.Errorf("starting what is locked: %q", exit)
	}

	remove := c.server.AddFault(pvesim.Fault{Path: "^/version$", Hang: true})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.server.URL()+"/api2/json/version", nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := c.http.Do(req); err == nil {
		_ = resp.Body.Close()
		t.Error("a hanging request received a response")
	}
	remove()
	if got := c.call("GET", "/version"); got.status != 200 {
		t.Errorf("after removal: %d", got.status)
	}
}

func TestHostDownAndQuorum(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	c.server.SetHostOnline("pve-1", false)
	check(t, c, []step{
		{"read", "GET", vm100 + "/config", nil, 595, "No route to host"},
		{"write", "POST", vm9000 + "/clone", []string{"newid", "101"}, 595, "No route to host"},
		{"another host", "GET", "/nodes/pve-2/qemu/9001/config", nil, 200, "OK"},
	})
	for _, entry := range c.call("GET", "/cluster/resources", "type", "vm").data.([]any) {
		if e := entry.(map[string]any); e["node"] == "pve-1" && e["status"] != "unknown" {
			t.Errorf("guest of a dead host: %v", e)
		}
	}
	c.server.SetHostOnline("pve-1", true)
	c.server.SetQuorate(false)
	const text = "cluster not ready - no quorum?"
	check(t, c, []step{
		{"clone", "POST", vm9000 + "/clone", []string{"newid", "101"}, 500, text},
		{"start", "POST", vm100 + "/status/start", nil, 500, text},
		{"config", "PUT", vm100 + "/config", []string{"name", "x"}, 500, text},
		{"delete", "DELETE", vm9000, nil, 500, text},
		{"read", "GET", vm100 + "/config", nil, 200, "OK"},
	})
	status := c.call("GET", "/cluster/status").data.([]any)[0].(map[string]any)
	if s, _ := status["quorate"].(interface{ String() string }); s == nil || s.String() != "0" {
		t.Errorf("cluster status %v", status)
	}
}

func TestCallsAndLoad(t *testing.T) {
	t.Parallel()
	c := start(t, cluster())
	c.server.AddFault(pvesim.Fault{Path: "^/cluster/resources$", Delay: 50 * time.Millisecond})
	var wait sync.WaitGroup
	for i := range 40 {
		wait.Go(func() {
			c.call("POST", vm9000+"/clone", "newid", []string{"1001", "1002", "1003", "1004"}[i%4])
			c.call("GET", "/cluster/resources", "type", "vm")
		})
	}
	wait.Wait()
	calls := c.server.Calls()
	won := 0
	for _, call := range calls {
		if call.Method == "POST" && call.Status == 200 {
			won++
		}
		if call.User != pvesim.DefaultToken || (call.Method == "POST" && (call.Host != "pve-1" || call.Params["newid"] == "")) {
			t.Fatalf("call %+v", call)
		}
	}
	if len(calls) != 80 || won < 4 || c.server.MaxInFlight() < 2 {
		t.Errorf("%d calls, %d clones accepted, %d in flight", len(calls), won, c.server.MaxInFlight())
	}
	until(t, func() bool { return len(c.server.Guests()) == 8 })
}
