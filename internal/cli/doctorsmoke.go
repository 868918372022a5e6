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
	"github.com/numaform/numaform/topology"
)

// smokePool is the name of the NodePool and ProxmoxNodeClass of a smoke test.
const smokePool = "numaform-smoke"

// smokeDemand is the NodePool of a smoke test, and a pod that only this NodePool accepts.
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

// runSmokeTest creates and removes a small VM, through all stages of a change, unless a
// check failed.
func (o *doctorOptions) runSmokeTest(ctx context.Context, process Process, classes []v1alpha1.ProxmoxNodeClass, failed int) doctor.Finding {
	finding := doctor.Finding{Check: "smoke"}
	if o.class != "" {
		finding.Where = "class " + o.class
	}
	if failed > 0 {
		finding.Status = doctor.Skip
		finding.What = fmt.Sprintf("not run, because %s failed", topology.Count(failed, "check"))
		return finding
	}
	i := slices.IndexFunc(classes, func(c v1alpha1.ProxmoxNodeClass) bool { return o.class == "" || c.Name == o.class })
	if i < 0 {
		finding.Status = doctor.Fail
		finding.What = "the ProxmoxNodeClass does not exist"
		if o.class == "" {
			finding.What = "no ProxmoxNodeClass exists"
		}
		finding.Fix = "correct --smoke-class, -f or --kubeconfig"
		return finding
	}
	finding.Where = "class " + classes[i].Name
	finding.Status = doctor.OK
	var err error
	if finding.What, err = o.createAndRemove(ctx, process, &classes[i]); err != nil {
		finding.Status = doctor.Fail
		finding.What = err.Error()
	}
	return finding
}

// createAndRemove creates a VM, removes it, and returns its description. It removes the VM
// even if the VM's creation failed. It fails if a VM of an earlier smoke test still exists.
func (o *doctorOptions) createAndRemove(ctx context.Context, process Process, class *v1alpha1.ProxmoxNodeClass) (what string, err error) {
	dir, err := os.MkdirTemp("", "numaform-smoke-")
	if err != nil {
		return "", fmt.Errorf("creating the smoke test's VM: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// own is a copy of the class without a seed, because the VM must not join.
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
		return "", fmt.Errorf("creating the smoke test's VM: %w", err)
	}
	smoke := &options{config: o.config, files: []string{file}, kubeconfig: o.kubeconfig, output: "text", autoApprove: true, smoke: true}
	process.Stdout = process.Stderr
	process.Stdin = strings.NewReader("")

	left, err := smoke.smokeVMs(ctx, process)
	if err != nil {
		return "", err
	}
	if len(left) > 0 {
		// Removing the VM without confirmation could also apply changes of other users.
		return "", fmt.Errorf("creating the smoke test's VM: the fleet still contains VM %s of an earlier smoke test; no VM was created: "+
			"run `numaform remove %[1]s`, then run the smoke test again", left[0].Name)
	}
	started := time.Now()
	_, createErr := change(ctx, process, smoke, func(ctx context.Context, process Process, o *options) (*proposal, error) {
		p, err := propose(ctx, process, o)
		switch {
		case err != nil:
			return nil, err
		case len(p.decision.Refused) > 0:
			return nil, fmt.Errorf("creating the smoke test's VM: %s", p.decision.Refused[0].Reason)
		case p.change.Unfinished(): // such changes would be applied without confirmation
			return nil, errors.New("creating the smoke test's VM: the fleet has unfinished changes, which would be applied without confirmation; no VM was created: " +
				"review them with numaform plan, finish them with numaform apply, and run the smoke test again")
		}
		return p, nil
	})
	took := time.Since(started)
	vms, err := smoke.smokeVMs(ctx, process)
	if err != nil || len(vms) == 0 {
		return "", errors.Join(createErr, err)
	}
	started = time.Now()
	if err := errors.Join(createErr, smoke.removeSmoke(ctx, process, vms)); err != nil {
		return "", err
	}
	return fmt.Sprintf("created VM %s (%s) on %s in %s, and removed it in %s", vms[0].Name, vms[0].InstanceType, vms[0].Host,
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

// removeSmoke removes the VMs and checks that they no longer exist in Proxmox.
func (o *options) removeSmoke(ctx context.Context, process Process, vms []fleet.VM) error {
	names := make([]string, len(vms))
	for i := range vms {
		names[i] = vms[i].Name
	}
	if _, err := change(ctx, process, o, removal(names)); err != nil {
		return fmt.Errorf("removing the smoke test's VM: %w: after fixing this, run `numaform remove %s`", err, strings.Join(names, " "))
	}
	s, err := open(ctx, process, o)
	if err != nil {
		return err
	}
	for i := range vms {
		host := s.snapshot.Host(vms[i].Host)
		if host != nil && slices.ContainsFunc(host.Guests, func(g topology.Guest) bool { return vms[i].IsGuest(s.config.ClusterID, host.Region, &g) }) {
			return fmt.Errorf("removing the smoke test's VM: VM %s still exists: check the task log of host %s", vms[i].Name, vms[i].Host)
		}
	}
	return nil
}
