package bench_test

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/pvesim"
)

// class is the kind of a NodePool's VMs.
type class struct {
	// resize makes the disk larger than the template's, seeds makes VMs join with a seed.
	resize, seeds bool
}

// resizedGiB is the size of a resized disk.
const resizedGiB = 40

// name returns the name of the NodeClass and NodePool, which is also the end of a row's
// name.
func (k class) name() string {
	name := "bare"
	if k.seeds {
		name = "seeds"
	}
	if k.resize {
		name += "-resize"
	}
	return name
}

// scaleUps are the measured scale-ups.
var scaleUps = []struct {
	vms   int
	clone time.Duration
	class class
}{
	{vms: 1, clone: 5 * time.Second},
	{vms: 1, clone: 5 * time.Second, class: class{resize: true}},
	{vms: 1, clone: 5 * time.Second, class: class{seeds: true}},
	{vms: 1, clone: 5 * time.Second, class: class{resize: true, seeds: true}},
	{vms: 1, clone: 20 * time.Second},
	{vms: 20, clone: 5 * time.Second},
	{vms: 20, clone: 5 * time.Second, class: class{resize: true}},
	{vms: 20, clone: 5 * time.Second, class: class{seeds: true}},
	{vms: 20, clone: 5 * time.Second, class: class{resize: true, seeds: true}},
	{vms: 20, clone: 20 * time.Second},
}

// nodes is the number of nodes before a scale-up, in the idle row, and in a removal.
const nodes = 20

// manyVMs is the number of VMs in a large burst.
const manyVMs = 200

// BenchmarkRoad measures the time from a pod to the call that starts its VM, and from a
// node to the call that deletes its VM, on a real control plane. It also measures an idle
// controller and a restart. A row creates everything that it needs, so it can run alone.
// With -v, it also prints the stages and the kinds of requests.
func BenchmarkRoad(b *testing.B) {
	small := lazily(func() *cluster {
		c := newCluster(b, testbed{machine: "xeon-6230-2s-snc2", hosts: 5})
		c.burst("old", nodes, class{seeds: true})
		c.settle()
		return c
	})
	for _, up := range scaleUps {
		b.Run(fmt.Sprintf("vms=%d/clone=%s/%s", up.vms, up.clone, up.class.name()), func(b *testing.B) {
			c := small(b)
			least(b, func() figures {
				defer c.restore()
				return c.scaleUp(up.vms, up.clone, up.class)
			})
		})
	}
	b.Run(fmt.Sprintf("idle-%d", nodes), func(b *testing.B) {
		c := small(b)
		least(b, func() figures { return c.idle(time.Minute) })
	})
	b.Run(fmt.Sprintf("remove-%d", nodes), func(b *testing.B) {
		c := small(b)
		least(b, func() figures {
			c.burst("leaving", nodes, class{seeds: true})
			defer c.restore()
			return c.remove()
		})
	})

	// These hosts have enough CPUs for manyVMs VMs with dedicated CPUs.
	large := testbed{machine: "epyc-7763-2s-nps1-assumed", hosts: 5}
	b.Run(fmt.Sprintf("burst-%d", manyVMs), func(b *testing.B) {
		c := newCluster(b, large)
		c.settle()
		least(b, func() figures {
			defer c.restore()
			return c.scaleUp(manyVMs, 5*time.Millisecond, class{})
		})
	})
	many := lazily(func() *cluster {
		c := newCluster(b, large)
		c.burst("old", manyVMs, class{seeds: true})
		c.settle()
		return c
	})
	b.Run(fmt.Sprintf("plus-one-at-%d", manyVMs), func(b *testing.B) {
		c := many(b)
		least(b, func() figures {
			defer c.restore()
			return c.scaleUp(1, 5*time.Second, class{})
		})
	})
	b.Run(fmt.Sprintf("idle-%d", manyVMs), func(b *testing.B) {
		c := many(b)
		least(b, func() figures { return c.idle(time.Minute) })
	})
	b.Run(fmt.Sprintf("restart-%d", manyVMs), func(b *testing.B) {
		c := many(b)
		least(b, func() figures {
			defer c.restore()
			return c.restart()
		})
	})
}

// lazily returns a function that builds a cluster when the first row needs it.
func lazily(build func() *cluster) func(b *testing.B) *cluster {
	var c *cluster
	tried := false
	return func(b *testing.B) *cluster {
		b.Helper()
		if !tried {
			tried = true
			c = build()
		}
		if c == nil {
			b.Fatal("an earlier row could not build the cluster")
		}
		c.b = b
		return c
	}
}

// delay sets the duration of a clone. A start takes a second.
func (c *cluster) delay(clone time.Duration) {
	if clone > time.Second {
		// Clients poll a clone's status every second. With a slightly shorter clone, they
		// always see its end after the full seconds, and not sometimes a second later.
		clone -= 50 * time.Millisecond
	}
	c.sim.SetDelays(pvesim.Delays{Clone: clone, Start: time.Second})
}

// burst creates nodes in batches, with Proxmox tasks of 5 ms.
func (c *cluster) burst(app string, vms int, class class) {
	c.b.Helper()
	const most = 50
	c.sim.SetDelays(pvesim.Delays{})
	for made := 0; made < vms; made += most {
		part := fmt.Sprintf("%s-%d", app, made)
		c.pods(class, part, min(most, vms-made))
		c.running(part, min(most, vms-made))
	}
	c.quiet()
}

// scaleUp creates pods that need the given number of VMs and measures until the last VM is
// started, compared with direct calls on the same hosts.
func (c *cluster) scaleUp(vms int, clone time.Duration, class class) figures {
	c.b.Helper()
	c.delay(clone)
	direct := c.direct().create(vms, class)
	c.removeDirect(vms)
	c.quiet()

	c.sim.ResetCalls()
	began, powered := time.Now(), c.poweredOn.Load()
	c.pods(class, "new", vms)
	c.until(fmt.Sprintf("%d VMs are started", vms), 10*time.Minute, func() bool { return c.poweredOn.Load()-powered >= int64(vms) })
	starts, clones := c.calls(began, http.MethodPost, "/status/start"), c.calls(began, http.MethodPost, "/clone")
	ended := slices.MaxFunc(starts, time.Time.Compare)
	batched := c.said(began, "batched pods")
	if len(clones) != vms || len(starts) != vms || len(batched) == 0 {
		c.b.Fatalf("%d clones, %d starts and %d batches of pods for %d VMs", len(clones), len(starts), len(batched), vms)
	}

	f := c.cost(began, ended)
	f["pod-to-first-clone-s"] = slices.MinFunc(clones, time.Time.Compare).Sub(began).Seconds()
	f["pod-to-last-start-s"] = ended.Sub(began).Seconds()
	f["direct-s"] = direct.Seconds()
	if clone > time.Second { // a ratio to direct calls that take almost no time is meaningless
		f["x-direct"] = ended.Sub(batched[0]).Seconds() / direct.Seconds()
	}
	c.b.Logf("%s", c.table(began))
	return f
}

// removeDirect removes the VMs of direct calls without calls to the API.
func (c *cluster) removeDirect(vms int) {
	for i := range vms {
		c.sim.RemoveGuest(directVMID + i)
	}
}

// remove measures the removal of the nodes created since settle until the deletion of the
// last VM is requested, compared with direct calls after the same drains.
func (c *cluster) remove() figures {
	c.b.Helper()
	c.sim.SetDelays(pvesim.Delays{Start: time.Second, Stop: time.Second})
	d := c.direct()
	d.create(nodes, class{})
	direct := d.delete(nodes)
	c.deletePods()
	c.quiet()

	c.sim.ResetCalls()
	began, destroyed := time.Now(), c.destroyed.Load()
	drained := c.drained()
	c.deleteClaims()
	c.until(fmt.Sprintf("%d VMs are deleted", nodes), 10*time.Minute, func() bool { return c.destroyed.Load()-destroyed >= nodes })
	deletions, drains := c.deletions(began), drained()
	if len(deletions) != nodes || len(drains) != nodes {
		own, provider := c.toProxmox(began, time.Now())
		c.b.Fatalf("%d deletions and %d drains of %d nodes; requests:\n%s%s", len(deletions), len(drains), nodes, own, provider)
	}
	ended := slices.MaxFunc(deletions, time.Time.Compare)
	lastDrained := slices.MaxFunc(drains, time.Time.Compare)

	f := c.cost(began, ended)
	f["last-drain-s"] = lastDrained.Sub(began).Seconds()
	f["first-delete-s"] = slices.MinFunc(deletions, time.Time.Compare).Sub(began).Seconds()
	f["last-delete-s"] = ended.Sub(began).Seconds()
	f["direct-s"] = lastDrained.Add(direct).Sub(began).Seconds()
	f["x-direct"] = f["last-delete-s"] / f["direct-s"]
	return f
}

// idle measures a period without changes.
func (c *cluster) idle(period time.Duration) figures {
	c.b.Helper()
	c.quiet()
	c.sim.ResetCalls()
	began := time.Now()
	<-time.After(period)
	return c.cost(began, began.Add(period))
}

// restart measures the time from the start of the controller to the plan for a pod that
// was already pending.
func (c *cluster) restart() figures {
	c.b.Helper()
	c.stop()
	c.sim.SetDelays(pvesim.Delays{})
	c.pods(class{}, "new", 1)
	began := time.Now()
	c.start()
	c.until("a change is planned", 10*time.Minute, func() bool { return len(c.said(began, "planning")) > 0 })
	planned := c.said(began, "planning")[0]
	f := c.cost(began, planned)
	f["start-to-plan-s"] = planned.Sub(began).Seconds()
	c.quiet()
	return f
}

// cost returns the resources that the controller and its child processes used in a period.
func (c *cluster) cost(from, to time.Time) figures {
	c.b.Helper()
	before, after := c.used.at(from), c.used.at(to)
	own, provider := c.toProxmox(from, to)
	kubernetes := c.toKubernetes(from, to)
	c.b.Logf("load average %s\nnumaform's requests to Proxmox:\n%sthe provider's:\n%sto Kubernetes:\n%s", load(), own, provider, kubernetes)
	controller := (after.controller - before.controller).Seconds()
	engines := (after.engines - before.engines).Seconds()
	providers := (after.providers - before.providers).Seconds()
	return figures{
		"controller-cpu-s":    controller,
		"engine-cpu-s":        engines,
		"provider-cpu-s":      providers,
		"cpu-s":               controller + engines + providers,
		"proxmox-requests":    float64(own.total() + provider.total()),
		"provider-requests":   float64(provider.total()),
		"kubernetes-requests": float64(kubernetes.total()),
		"peak-MiB":            float64(c.used.peak(from, to)) / (1 << 20),
		"controller-MiB":      float64(after.resident) / (1 << 20),
	}
}

// load returns the load averages of the machine, to help interpret the figures.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}

// calls returns the times of the calls whose path ends with a suffix.
func (c *cluster) calls(since time.Time, method, suffix string) []time.Time {
	return c.matching(since, method, func(path string) bool { return strings.HasSuffix(path, suffix) })
}

// deletions returns the times of the calls that delete VMs.
func (c *cluster) deletions(since time.Time) []time.Time {
	return c.matching(since, http.MethodDelete, regexp.MustCompile(`/qemu/\d+/?$`).MatchString)
}

func (c *cluster) matching(since time.Time, method string, path func(string) bool) []time.Time {
	var times []time.Time
	for _, call := range c.sim.Calls() {
		if call.Method == method && call.Time.After(since) && path(call.Path) {
			times = append(times, call.Time)
		}
	}
	return times
}

// table returns the times at which the first and the last host or VM reached each stage of
// a scale-up.
func (c *cluster) table(began time.Time) string {
	c.b.Helper()
	said := func(message string) []time.Time { return c.said(began, message) }
	ran := func(command string) []time.Time { return c.used.runsSince(began, command) }
	var text strings.Builder
	fmt.Fprintf(&text, "seconds after the first pod:\n%-46s %7s %7s %5s\n", "stage begins", "first", "last", "count")
	for _, stage := range []struct {
		name  string
		times []time.Time
	}{
		{"deciding: the batch of pods is complete", said("batched pods")},
		{"NodeClaim created", said("created nodeclaim")},
		{"planning: fleet read, change rendered", said("planning")},
		{"engine: init", ran("init")},
		{"engine: plan", ran("plan")},
		{"engine: show", ran("show")},
		{"applying: checked, recorded, host read", said("applying: ")},
		{"engine: apply", ran("apply")},
		{"provider: clone", c.calls(began, http.MethodPost, "/clone")},
		{"provider: start", c.calls(began, http.MethodPost, "/status/start")},
	} {
		if len(stage.times) == 0 {
			fmt.Fprintf(&text, "%-46s %7s %7s %5d\n", stage.name, "-", "-", 0)
			continue
		}
		first, last := slices.MinFunc(stage.times, time.Time.Compare), slices.MaxFunc(stage.times, time.Time.Compare)
		fmt.Fprintf(&text, "%-46s %7.2f %7.2f %5d\n", stage.name, first.Sub(began).Seconds(), last.Sub(began).Seconds(), len(stage.times))
	}
	return text.String()
}
