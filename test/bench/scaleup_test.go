package bench_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/luthermonson/go-proxmox"
	"golang.org/x/sync/errgroup"

	"github.com/numaform/numaform/internal/pvesim"
)

// batchWindow is the controller's --batch-idle-duration: how long it waits for further
// pods. It is a setting, and excluded from the comparison.
const batchWindow = time.Second

// scaleUps are the measured cases: the number of VMs at once, the duration of a clone, and
// the maximum time relative to direct calls; without a limit it is only reported. Direct
// calls create no seeds and no tokens, so the case of 20 VMs with seeds, each of which
// first has its NodeClaim, has no limit.
var scaleUps = []struct {
	vms   int
	clone time.Duration
	seeds bool
	limit float64
}{
	{vms: 1, clone: 5 * time.Second, limit: 1.4},
	{vms: 20, clone: 5 * time.Second, limit: 1.8},
	{vms: 1, clone: 20 * time.Second, limit: 1.15},
	{vms: 20, clone: 20 * time.Second, limit: 1.25},
	{vms: 1, clone: 5 * time.Second, seeds: true, limit: 1.4},
	{vms: 20, clone: 5 * time.Second, seeds: true},
}

// BenchmarkScaleUp measures, on a real control plane, the time from the creation of the
// last pod to the call that starts the last VM, on 5 hosts with 5 VMs each. It compares
// this with clone, config and start in direct calls on the same hosts, all concurrently.
// The batch window is subtracted. A table shows where the remaining time goes.
func BenchmarkScaleUp(b *testing.B) {
	for _, up := range scaleUps {
		b.Run(fmt.Sprintf("vms=%d/clone=%s/seeds=%t", up.vms, up.clone, up.seeds), func(b *testing.B) {
			var ratios []float64
			for b.Loop() {
				c := newCluster(b, 5)
				c.pool("before", "  metadata: {type: cdrom}")
				c.pool("bare", "")
				c.pods("before", "old", 25)
				c.running("old", 25)
				c.quiet()
				// Clients poll each second whether a clone has finished: with slightly
				// shorter clones they see it after the full seconds, and not sometimes a
				// second later.
				c.sim.SetDelays(pvesim.Delays{Clone: up.clone - 50*time.Millisecond, Start: time.Second})
				pool := "bare"
				if up.seeds {
					pool = "before"
				}
				for round := range max(1, 3/up.vms) {
					ratios = append(ratios, c.scaleUp(pool, fmt.Sprintf("new-%d", round), up.vms))
				}
			}
			slices.Sort(ratios)
			median := ratios[len(ratios)/2]
			b.ReportMetric(median, "planned/direct")
			b.ReportMetric(0, "ns/op")
			if up.limit > 0 && median > up.limit {
				b.Errorf("scaling up takes %.2f times what direct calls take, want at most %.2f", median, up.limit)
			}
		})
	}
}

// scaleUp creates pods that need that many VMs, and returns the time relative to direct
// calls.
func (c *cluster) scaleUp(pool, app string, vms int) float64 {
	c.b.Helper()
	direct := c.directly(vms)
	before, computed := usage(c.b), c.computed()
	began := c.pods(pool, app, vms)
	planned := c.started(began, vms).Sub(began) - batchWindow
	programs, loaded := since(before, usage(c.b)), load()
	c.quiet()
	parts := spent(computed, c.computed())
	c.b.Logf("direct %.2f s, planned %.2f s without the batch window of %s: %.2f times; load average %s\n%s\nCPU seconds of other programs until then: %s\nseconds of computing: %s",
		direct.Seconds(), planned.Seconds(), batchWindow, planned.Seconds()/direct.Seconds(), loaded, c.table(began), programs, parts)
	return planned.Seconds() / direct.Seconds()
}

// load returns the load averages of the machine, which help to interpret ratios.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}

// started waits until the start of that many VMs was requested, and returns when the last
// was.
func (c *cluster) started(since time.Time, vms int) time.Time {
	c.b.Helper()
	var starts []time.Time
	c.until(fmt.Sprintf("%d VMs are started", vms), 10*time.Minute, func() bool {
		starts = c.calls(since, http.MethodPost, "/status/start")
		return len(starts) >= vms
	})
	return starts[vms-1]
}

// calls returns the times of matching calls.
func (c *cluster) calls(since time.Time, method, suffix string) []time.Time {
	var times []time.Time
	for _, call := range c.sim.Calls() {
		if call.Method == method && strings.HasSuffix(call.Path, suffix) && call.Time.After(since) {
			times = append(times, call.Time)
		}
	}
	return times
}

// directly creates VMs with go-proxmox, all concurrently, and returns the time until the
// start of the last one was requested. The VMs are then removed.
func (c *cluster) directly(vms int) time.Duration {
	c.b.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.sim.CertPEM())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, MaxIdleConnsPerHost: vms}
	defer transport.CloseIdleConnections()
	api := proxmox.NewClient(c.sim.URL()+"/api2/json", proxmox.WithHTTPClient(&http.Client{Transport: transport}),
		proxmox.WithAPIToken(pvesim.DefaultToken, pvesim.DefaultTokenSecret))
	began := time.Now()
	var group errgroup.Group
	for i := range vms {
		host := &c.hosts[i%len(c.hosts)]
		group.Go(func() error { return makeByGoProxmox(api, string(host.Name), host.Templates[0].VMID, 5000+i) })
	}
	if err := group.Wait(); err != nil {
		c.b.Fatal(err)
	}
	took := c.started(began, vms).Sub(began)
	for i := range vms {
		c.sim.RemoveGuest(5000 + i)
	}
	c.quiet()
	return took
}

// makeByGoProxmox clones, configures and starts a VM.
func makeByGoProxmox(api *proxmox.Client, host string, template, vmid int) error {
	ctx := context.Background()
	var source, vm proxmox.VirtualMachine
	source.New(api, host, template)
	vm.New(api, host, vmid)
	name := fmt.Sprintf("direct-%d", vmid)
	_, task, err := source.Clone(ctx, &proxmox.VirtualMachineCloneOptions{NewID: vmid, Name: name})
	if err != nil {
		return fmt.Errorf("cloning %s: %w", name, err)
	}
	if err := task.WaitFor(ctx, 60); err != nil {
		return fmt.Errorf("waiting for the clone of %s: %w", name, err)
	}
	if err := vm.ConfigSync(ctx, proxmox.VirtualMachineOption{Name: "cores", Value: 2}, proxmox.VirtualMachineOption{Name: "memory", Value: 8192}); err != nil {
		return fmt.Errorf("configuring %s: %w", name, err)
	}
	if _, err := vm.Start(ctx); err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	return nil
}

// moment is the times at which hosts or VMs reached a stage of a scale-up.
type moment struct {
	stage string
	times []time.Time
}

// moments returns the stages of a scale-up, in order.
func (c *cluster) moments(began time.Time) []moment {
	c.b.Helper()
	said := func(text string) []time.Time {
		var times []time.Time
		for _, line := range c.log.since(began) {
			if strings.Contains(line.text, text) {
				times = append(times, line.at)
			}
		}
		return times
	}
	runs := c.engineRuns(began)
	ran := func(command string) []time.Time {
		var times []time.Time
		for _, run := range runs[command] {
			times = append(times, run.began)
		}
		return times
	}
	return []moment{
		{"the batch window ended", []time.Time{began.Add(batchWindow)}},
		{"VMs placed and reserved, a NodeClaim made", said("created nodeclaim")},
		{"fleet read, change rendered, planning begins", said("\tplanning\t")},
		{"engine: init", ran("init")},
		{"engine: plan", ran("plan")},
		{"engine: show", ran("show")},
		{"judged, recorded, host read, seed uploaded", said("\tapplying: ")},
		{"engine: apply", ran("apply")},
		{"provider: clone", c.calls(began, http.MethodPost, "/clone")},
		{"provider: start", c.calls(began, http.MethodPost, "/status/start")},
	}
}

// engineRun is one run of the engine.
type engineRun struct {
	began time.Time
	cpu   time.Duration
}

// engineRuns returns the finished runs of the engine, by command.
func (c *cluster) engineRuns(since time.Time) map[string][]engineRun {
	c.b.Helper()
	text, err := os.ReadFile(c.engineLog())
	if err != nil {
		c.b.Fatal(err)
	}
	runs := map[string][]engineRun{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) != 4 {
			c.b.Fatalf("the engine's runs have line %q", line)
		}
		nanoseconds, err := strconv.ParseInt(fields[0], 10, 64)
		user, userErr := time.ParseDuration(fields[2])
		system, systemErr := time.ParseDuration(fields[3])
		if err := errors.Join(err, userErr, systemErr); err != nil {
			c.b.Fatalf("the engine's runs have line %q: %v", line, err)
		}
		if at := time.Unix(0, nanoseconds); at.After(since) {
			runs[fields[1]] = append(runs[fields[1]], engineRun{at, user + system})
		}
	}
	return runs
}

// table shows when the first and the last host or VM reached each stage, and the CPU time
// of the engine.
func (c *cluster) table(began time.Time) string {
	c.b.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "seconds after the last pod, with the batch window of %s:\n%-46s %7s %7s %5s\n", batchWindow, "stage begins", "first", "last", "count")
	for _, m := range c.moments(began) {
		if len(m.times) == 0 {
			fmt.Fprintf(&text, "%-46s %7s %7s %5d\n", m.stage, "-", "-", 0)
			continue
		}
		first, last := slices.MinFunc(m.times, time.Time.Compare), slices.MaxFunc(m.times, time.Time.Compare)
		fmt.Fprintf(&text, "%-46s %7.2f %7.2f %5d\n", m.stage, first.Sub(began).Seconds(), last.Sub(began).Seconds(), len(m.times))
	}
	runs := c.engineRuns(began)
	text.WriteString("CPU seconds of the engine:")
	var all time.Duration
	for _, command := range slices.Sorted(maps.Keys(runs)) {
		var cpu time.Duration
		for _, run := range runs[command] {
			cpu += run.cpu
		}
		all += cpu
		fmt.Fprintf(&text, " %s %.2f,", command, cpu.Seconds())
	}
	fmt.Fprintf(&text, " all %.2f", all.Seconds())
	return text.String()
}
