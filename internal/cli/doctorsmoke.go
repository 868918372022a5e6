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
		finding.Status = doctor.Skip
		finding.What = fmt.Sprintf("not tried, as %d checks failed", failed)
		return finding
	}
	i := slices.IndexFunc(classes, func(c v1alpha1.ProxmoxNodeClass) bool { return o.class == "" || c.Name == o.class })
	if i < 0 {
		finding.Status = doctor.Fail
		finding.What = "there is no such ProxmoxNodeClass"
		finding.Fix = "correct --smoke-class, or what -f or --kubeconfig names"
		return finding
	}
	finding.Where = "class " + classes[i].Name
	finding.Status = doctor.OK
	var err error
	if finding.What, err = o.makeAndRemove(ctx, process, &classes[i]); err != nil {
		finding.Status = doctor.Fail
		finding.What = err.Error()
	}
	return finding
}

// makeAndRemove returns what was created, or why it failed. The VM is removed even if its
// creation failed, and so are VMs of an earlier smoke test.
func (o *doctorOptions) makeAndRemove(ctx context.Context, process Process, class *v1alpha1.ProxmoxNodeClass) (what string, err error) {
	dir, err := os.MkdirTemp("", "numaform-smoke-")
	if err != nil {
		return "", fmt.Errorf("making a small VM: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// The class under the pool's name, without a seed, because the VM should not join.
	own := v1alpha1.ProxmoxNodeClass{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.Group + "/v1alpha1", Kind: v1alpha1.KindProxmoxNodeClass},
		ObjectMeta: metav1.ObjectMeta{Name: smokePool},
		Spec:       *class.Spec.DeepCopy(),
	}
	own.Spec.Metadata = v1alpha1.Metadata{Type: v1alpha1.MetadataNone}
	own.Spec.Kubelet = nil
	file := filepath.Join(dir, "smoke.yaml")
	text, err := yaml.Marshal(own)
	if err == nil {
		err = os.WriteFile(file, append(text, smokeDemand...), 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("making a small VM: %w", err)
	}
	smoke := &options{config: o.config, kubeconfig: o.kubeconfig, kubeContext: o.kubeContext, output: "text", autoApprove: true}
	smoke.own = func() (*scheduling.Cluster, error) {
		objects, err := scheduling.Load([]string{file})
		if err != nil {
			return nil, err
		}
		return scheduling.FromObjects(objects), nil
	}
	process.Stdout = process.Stderr
	process.Stdin = strings.NewReader("")

	left, err := smoke.smokeVMs(ctx, process)
	if err = errors.Join(err, smoke.removeSmoke(ctx, process, left)); err != nil {
		return "", err
	}
	started := time.Now()
	made := change(ctx, process, smoke, func(ctx context.Context, process Process, o *options) (*proposal, error) {
		p, err := propose(ctx, process, o)
		switch {
		case err != nil:
			return nil, err
		case len(p.decision.Refused) > 0:
			return nil, fmt.Errorf("making a small VM: no place for it: %s", p.decision.Refused[0].Reason)
		case p.change.Unfinished(): // the change is applied without confirmation
			return nil, errors.New("making a small VM: the fleet and Proxmox differ, and what is unfinished would be applied with it: " +
				"see it with numaform plan, finish it with numaform apply, then try again; nothing was changed")
		}
		return p, nil
	})
	took := time.Since(started)
	vms, err := smoke.smokeVMs(ctx, process)
	if err != nil || len(vms) == 0 {
		return "", errors.Join(made, err)
	}
	started = time.Now()
	if err := errors.Join(made, smoke.removeSmoke(ctx, process, vms)); err != nil {
		return "", err
	}
	return fmt.Sprintf("made VM %s (%s) on %s in %s, and removed it in %s", vms[0].Name, vms[0].InstanceType, vms[0].Host,
		took.Round(100*time.Millisecond), time.Since(started).Round(100*time.Millisecond)), nil
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
	if err := change(ctx, process, o, removal(names)); err != nil {
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
