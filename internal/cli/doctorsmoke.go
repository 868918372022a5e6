package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/doctor"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// smokePool is the NodePool of the VM that --smoke creates.
const smokePool = "numaform-smoke"

// smokeDemand is a pod that only that pool accepts, and the pool. The class precedes it.
const smokeDemand = `
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: numaform-smoke}
spec:
  template:
    spec:
      nodeClassRef: {group: numaform.dev, kind: ProxmoxNodeClass, name: numaform-smoke}
      requirements: []
---
apiVersion: v1
kind: Pod
metadata: {name: numaform-smoke, namespace: default}
spec:
  nodeSelector: {karpenter.sh/nodepool: numaform-smoke}
  containers:
  - name: smoke
    image: registry.example/smoke
    resources: {requests: {cpu: 100m, memory: 64Mi}}
`

// smokeTest creates a small VM and removes it again, through all stages of a change.
func (o *doctorOptions) smokeTest(ctx context.Context, process Process, classes []v1alpha1.ProxmoxNodeClass, failed int) doctor.Finding {
	finding := doctor.Finding{Check: "smoke"}
	if o.class != "" {
		finding.Where = "class " + o.class
	}
	if failed > 0 {
		finding.Status, finding.What = doctor.Skip, fmt.Sprintf("not tried, as %d checks failed", failed)
		return finding
	}
	i := slices.IndexFunc(classes, func(c v1alpha1.ProxmoxNodeClass) bool { return o.class == "" || c.Name == o.class })
	if i < 0 {
		finding.Status, finding.What = doctor.Fail, "there is no such ProxmoxNodeClass"
		finding.Fix = "correct --smoke-class, or what -f or --kubeconfig names"
		return finding
	}
	finding.Where = "class " + classes[i].Name
	what, err := o.smokeRoad(ctx, process, &classes[i])
	finding.Status, finding.What = doctor.OK, what
	if err != nil {
		finding.Status, finding.What = doctor.Fail, err.Error()
	}
	return finding
}

// smokeRoad returns what was created, or why it failed. It also removes the VMs of an
// earlier smoke test.
func (o *doctorOptions) smokeRoad(ctx context.Context, process Process, class *v1alpha1.ProxmoxNodeClass) (what string, err error) {
	dir, err := os.MkdirTemp("", "numaform-smoke-")
	if err != nil {
		return "", fmt.Errorf("making a small VM: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	demand, err := smokeObjects(class)
	if err != nil {
		return "", fmt.Errorf("making a small VM: %w", err)
	}
	file := filepath.Join(dir, "smoke.yaml")
	if err := os.WriteFile(file, demand, 0o600); err != nil {
		return "", fmt.Errorf("making a small VM: %w", err)
	}
	road := options{config: o.config, kubeconfig: o.kubeconfig, kubeContext: o.kubeContext, output: "text", autoApprove: true}
	road.own = func() (*scheduling.Cluster, error) {
		objects, err := scheduling.Load([]string{file})
		if err != nil {
			return nil, err
		}
		return scheduling.FromObjects(objects), nil
	}
	quiet := process
	quiet.Stdout, quiet.Stdin = process.Stderr, strings.NewReader("")
	if left, err := road.smokeVMs(ctx, quiet); err != nil || len(left) > 0 {
		if err = errors.Join(err, road.removeSmoke(ctx, quiet, left)); err != nil {
			return "", err
		}
	}
	return road.there(ctx, quiet)
}

// there creates a VM and removes it again, even if the creation failed.
func (o *options) there(ctx context.Context, process Process) (string, error) {
	started := time.Now()
	made := change(ctx, process, o, proposeSmoke)
	took := time.Since(started)
	vms, err := o.smokeVMs(ctx, process)
	if err != nil || len(vms) == 0 {
		return "", errors.Join(made, err)
	}
	started = time.Now()
	if err := errors.Join(made, o.removeSmoke(ctx, process, vms)); err != nil {
		return "", err
	}
	return fmt.Sprintf("made VM %s (%s) on %s in %s, and removed it in %s", vms[0].Name, vms[0].InstanceType, vms[0].Host,
		took.Round(100*time.Millisecond), time.Since(started).Round(100*time.Millisecond)), nil
}

// smokeObjects are the inputs of the decision: the class under the pool's name, without a
// seed, because the VM should not join.
func smokeObjects(class *v1alpha1.ProxmoxNodeClass) ([]byte, error) {
	own := v1alpha1.ProxmoxNodeClass{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.Group + "/v1alpha1", Kind: v1alpha1.KindProxmoxNodeClass},
		ObjectMeta: metav1.ObjectMeta{Name: smokePool},
		Spec:       *class.Spec.DeepCopy(),
	}
	own.Spec.Metadata, own.Spec.Kubelet = v1alpha1.Metadata{Type: v1alpha1.MetadataNone}, nil
	text, err := yaml.Marshal(own)
	return append(text, smokeDemand...), err
}

// proposeSmoke is like propose, but fails if a pod is not placed, and if there is
// unfinished work by others, because the change is applied without confirmation.
func proposeSmoke(ctx context.Context, process Process, o *options) (*proposal, error) {
	p, err := propose(ctx, process, o)
	if err != nil {
		return nil, err
	}
	for _, refusal := range p.decision.Refused {
		return nil, fmt.Errorf("making a small VM: no place for it: %s", refusal.Reason)
	}
	if p.change.Unfinished() {
		return nil, errors.New("making a small VM: the fleet and Proxmox differ, and what is unfinished would be applied with it: " +
			"see it with numaform plan, finish it with numaform apply, then try again; nothing was changed")
	}
	return p, nil
}

// smokeVMs returns the fleet's VMs that smoke tests created.
func (o *options) smokeVMs(ctx context.Context, process Process) ([]fleet.VM, error) {
	s, err := open(ctx, process, o)
	if err != nil {
		return nil, err
	}
	current, _, err := s.scaler.Fleet(ctx)
	return slices.DeleteFunc(current.VMs, func(vm fleet.VM) bool { return vm.Pool != smokePool }), err
}

// removeSmoke removes the VMs and checks that they are gone.
func (o *options) removeSmoke(ctx context.Context, process Process, vms []fleet.VM) error {
	if len(vms) == 0 {
		return nil
	}
	names := make([]string, len(vms))
	for i := range vms {
		names[i] = vms[i].Name
	}
	err := change(ctx, process, o, func(ctx context.Context, process Process, o *options) (*proposal, error) {
		return proposeRemoval(ctx, process, o, names)
	})
	if err != nil {
		return fmt.Errorf("removing the small VM: %w: then run `numaform remove %s`", err, strings.Join(names, " "))
	}
	s, err := open(ctx, process, o)
	if err != nil {
		return err
	}
	for i := range vms {
		host := s.snapshot.Host(vms[i].Host)
		if host != nil && slices.ContainsFunc(host.Guests, func(g topology.Guest) bool { return g.Key == string(vms[i].Key) }) {
			return fmt.Errorf("removing the small VM: %s is still there: look at the tasks of host %s", vms[i].Name, vms[i].Host)
		}
	}
	return nil
}
