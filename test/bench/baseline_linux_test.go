package bench_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/numaform/numaform/examples"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
)

// maxPlanGrowth is the maximum CPU time of a plan relative to a plan of the baseline, which does
// not start the helper that restricts each process of the engine: see docs/adr/0015.
const maxPlanGrowth = 1.15

// measureVariable is the environment variable that makes this test binary run its arguments
// as a program, and write the CPU time of the program and its children to the named file.
const measureVariable = "NUMAFORM_BENCH_MEASURE"

func TestMain(m *testing.M) {
	if report := os.Getenv(measureVariable); report != "" {
		if err := measure(report); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// prSetChildSubreaper is PR_SET_CHILD_SUBREAPER: orphaned descendants become children of
// this process.
const prSetChildSubreaper = 36

func measure(report string) error {
	if err := os.Unsetenv(measureVariable); err != nil {
		return err
	}
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); errno != 0 {
		return fmt.Errorf("becoming a subreaper: %w", errno)
	}
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return err
	}
	for {
		if _, err := syscall.Wait4(-1, nil, 0, nil); errors.Is(err, syscall.ECHILD) {
			break
		} else if err != nil && !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &usage); err != nil {
		return err
	}
	return os.WriteFile(report, []byte(strconv.FormatInt(usage.Utime.Nano()+usage.Stime.Nano(), 10)), 0o600)
}

// planned is a fleet that one numaform program created and plans repeatedly.
type planned struct {
	b       *testing.B
	program string
	dir     string
	env     []string
}

// plannedVMs is the number of VMs in a planned fleet.
const plannedVMs = 10

// BenchmarkPlanAgainstBaseline compares the CPU time of a plan, including its engine and
// provider, with the CPU time of a plan of the baseline. The two programs take turns; each
// plans its own fleet of the same VMs.
func BenchmarkPlanAgainstBaseline(b *testing.B) {
	current := filepath.Join(b.TempDir(), "numaform")
	build := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-s -w", "-o", current, "github.com/numaform/numaform/cmd/numaform")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("building numaform: %v\n%s", err, out)
	}
	old, now := newPlanned(b, filepath.Join(testenv.Baseline(b), "numaform")), newPlanned(b, current)
	for b.Loop() {
		before, after := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
		for range 2 * repetitions {
			// Use the minimum: other load on the machine only adds to it.
			before, after = min(before, old.plan()), min(after, now.plan())
		}
		ratio := after.Seconds() / before.Seconds()
		b.ReportMetric(before.Seconds(), "baseline-cpu-s")
		b.ReportMetric(after.Seconds(), "cpu-s")
		b.ReportMetric(ratio, "x-cpu-of-baseline")
		if ratio > maxPlanGrowth {
			b.Errorf("a plan takes %v of CPU, %.2f times the baseline's %v, want at most %.2f", after, ratio, before, maxPlanGrowth)
		}
	}
	b.ReportMetric(0, "ns/op")
}

func newPlanned(b *testing.B, program string) *planned {
	b.Helper()
	p := &planned{b: b, program: program, dir: b.TempDir()}
	p.must(os.MkdirAll(filepath.Join(p.dir, "hosts"), 0o755))
	for _, name := range []string{"hosts/pve-2.json", "nodes-settings.json"} {
		content, err := fs.ReadFile(examples.Quickstart(), name)
		p.must(err)
		p.write(name, string(content))
	}
	hosts, err := pvesim.LoadHosts(filepath.Join(p.dir, "hosts"), testenv.Region, testenv.Template)
	p.must(err)
	server, err := pvesim.New(pvesim.Config{Hosts: hosts})
	p.must(err)
	p.must(server.Start("127.0.0.1:0"))
	b.Cleanup(func() { p.must(server.Close()) })
	p.write("pve-root-ca.pem", string(server.CertPEM()))
	p.write("token", pvesim.DefaultTokenSecret)
	p.write("numaform.yaml", fmt.Sprintf(`clusterID: bench
clusters:
- {region: %s, url: %q, ca_file: pve-root-ca.pem, token_id: %q, token_secret_file: token, vmid_range: {lower: 2000, upper: 2999}, machines: {pve-2: hosts/pve-2.json}}
topology_file: nodes-settings.json
engine: {binary: %q, plugin_dir: %q}
fleet: {dir: fleet, backend: {type: local}}
`, testenv.Region, server.URL(), pvesim.DefaultToken, testenv.Engine(b), testenv.PluginDir(b)))
	p.write("pods.yaml", fmt.Sprintf(plannedPods, plannedVMs))
	p.write("nothing.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: control-plane}\nspec: {unschedulable: true}\n")
	tmp, err := os.MkdirTemp("", "nf")
	p.must(err)
	b.Cleanup(func() { p.must(os.RemoveAll(tmp)) })
	env := slices.DeleteFunc(testenv.CleanEnv(), func(entry string) bool {
		return strings.HasPrefix(entry, "TMPDIR=") || strings.HasPrefix(entry, "HOME=")
	})
	p.env = append(env, "HOME="+p.dir, "TMPDIR="+tmp)
	p.run("apply", "-f", "pods.yaml", "--auto-approve")
	p.plan() // exclude one-time work
	return p
}

const plannedPods = `apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata: {name: shared}
spec: {region: homelab, template: {name: debian-13-k8s}, clone: linked, placement: {policy: Shared, overcommit: "2"}}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: workers}
spec:
  limits: {cpu: "64", memory: 256Gi}
  template:
    spec:
      nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: shared}
      requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: web}}}
      containers:
      - {name: web, image: registry.example/web:1, resources: {requests: {cpu: 500m, memory: 512Mi}}}
`

func (p *planned) must(err error) {
	p.b.Helper()
	if err != nil {
		p.b.Fatal(err)
	}
}

func (p *planned) write(name, text string) {
	p.must(os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600))
}

// plan runs a plan without changes, and returns its CPU time.
func (p *planned) plan() time.Duration {
	p.b.Helper()
	return p.run("plan", "-f", "nothing.yaml", "--detailed-exitcode")
}

func (p *planned) run(args ...string) time.Duration {
	p.b.Helper()
	self, err := os.Executable()
	p.must(err)
	report := filepath.Join(p.dir, "cpu")
	cmd := exec.CommandContext(context.Background(), self, slices.Concat([]string{p.program}, args)...)
	var said bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = p.dir, append(slices.Clone(p.env), measureVariable+"="+report), &said, &said
	if err := cmd.Run(); err != nil {
		p.b.Fatalf("numaform %s: %v\n%s", strings.Join(args, " "), err, said.String())
	}
	text, err := os.ReadFile(report)
	p.must(err)
	nanoseconds, err := strconv.ParseInt(string(text), 10, 64)
	p.must(err)
	return time.Duration(nanoseconds)
}
