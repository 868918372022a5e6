package cli

import (
	"bytes"
	"context"
	"io"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/control"
	"github.com/numaform/numaform/internal/cpumap"
	"github.com/numaform/numaform/internal/doctor"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/status"
	"github.com/numaform/numaform/internal/term"
	"github.com/numaform/numaform/topology"
)

// Views are the inputs of the commands that show a fleet.
type Views struct {
	ClusterID string
	Fleet     fleet.Fleet
	Snapshot  topology.Snapshot
	History   []audit.Entry
	Pending   []Pending
	LockedBy  string
}

// Pending is a change that is pending approval.
type Pending = status.Pending

// Output returns the output of a command, such as "status" or "get hosts -o wide".
func (v *Views) Output(command string, terminal term.Terminal) string {
	var out bytes.Buffer
	w := &printer{Terminal: terminal, w: &out}
	r := v.report()
	switch command {
	case "status":
		w.status(r, false)
	case "status -o wide":
		w.status(r, true)
	case "get vms":
		w.vmTable(r.VMs, false)
	case "get vms -o wide":
		w.vmTable(r.VMs, true)
	case "get hosts":
		w.hostTable(r.Hosts, false)
	case "topology -o table":
		w.topology(&v.Snapshot, &v.Fleet, v.ClusterID, false)
	case "topology -o wide":
		w.topology(&v.Snapshot, &v.Fleet, v.ClusterID, true)
	case "topology -o map":
		owners := map[topology.HostID]cpumap.Ownership{}
		for i := range v.Snapshot.Hosts {
			host := &v.Snapshot.Hosts[i]
			owners[host.ID()] = cpumap.Owners(host, v.Fleet.On(host.ID()))
		}
		return string(draw(terminal, v.Snapshot.Hosts, owners, v.ClusterID))
	default:
		panic("unknown command " + command)
	}
	return out.String()
}

func (v *Views) report() *status.Report {
	r := status.New(v.ClusterID, &v.Fleet, &v.Snapshot, v.History)
	r.Pending = v.Pending
	if v.LockedBy != "" {
		r.Locks = []status.Lock{{Where: "fleet", Holder: v.LockedBy}}
	}
	r.Next = nextAfter(r, 0, &options{config: "numaform.yaml"}, podSource{known: true})
	return r
}

// StatusOfRequests returns the output of status about what users requested in a namespace of a
// cluster.
func StatusOfRequests(ctx context.Context, kubeconfig, namespace string) (string, error) {
	o := clusterOptions{kubeconfig: operator.Kubeconfig{Path: kubeconfig}}
	_, k, err := o.open()
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	var r status.Report
	addRequests(ctx, &r, control.New(k, namespace))
	w := &printer{w: &out}
	w.status(&r, false)
	return out.String(), w.err
}

// DoctorText returns the output of doctor for findings.
func DoctorText(findings doctor.Report, terminal term.Terminal) string {
	var out bytes.Buffer
	w := &printer{Terminal: terminal, w: &out}
	sum := newDoctorReport(findings)
	o := doctorOptions{options: options{config: "numaform.yaml", files: []string{"manifests"}}, namespace: defaultNamespace}
	w.doctor(&sum, o.next(sum.Failed, podSource{flags: o.source(), known: true}))
	return out.String()
}

// Watch repeats show as a command with --watch does.
func Watch(ctx context.Context, process Process, interval time.Duration, show func(stdout io.Writer) error) error {
	o := watching{watch: true, interval: interval}
	return o.run(ctx, process, func(_ context.Context, process Process, _ term.Terminal) error { return show(process.Stdout) })
}
