package seed_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/seed"
	"github.com/numaform/numaform/internal/jointoken"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
)

// told records the reasons of events.
type told []string

func (r *told) Publish(published ...events.Event) {
	for _, event := range published {
		*r = append(*r, event.Reason)
	}
}

// given is a command that a guest agent received.
type given struct {
	VMID  int
	Args  []string
	Input string
}

// agents is a world whose nodes join by their guest agents.
type agents struct {
	*world
	joiner *seed.Joiner
	events told
	// given are the received commands, and ends are the exit codes of the next ones.
	given []given
	ends  []int
}

func newAgents(t *testing.T, class string, command string) *agents {
	t.Helper()
	a := &agents{world: newWorld(t, func(c *seed.Config) { c.Cluster.BootstrapTokens = true })}
	// Commands in guests need more privileges than numaform's token has.
	root := testenv.RootClient(t, a.proxmox)
	region := a.config.Regions[testenv.Region]
	region.Proxmox = root
	a.config.Regions[testenv.Region] = region
	a.proxmox.SetGuestAgents(true)
	a.proxmox.SetAgentExec(func(vmid int, args []string, input string) pvesim.CommandResult {
		a.given = append(a.given, given{vmid, args, input})
		if len(a.ends) == 0 {
			return pvesim.CommandResult{Looks: 1}
		}
		code := a.ends[0]
		a.ends = a.ends[1:]
		return pvesim.CommandResult{ExitCode: code, Stderr: input}
	})
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: class}, StringData: map[string]string{"join-command": command}}
	nc := &v1alpha1.ProxmoxNodeClass{ObjectMeta: metav1.ObjectMeta{Name: class}}
	nc.Spec.Template.Name = testenv.Template
	nc.Spec.Metadata = v1alpha1.Metadata{
		Type: v1alpha1.MetadataAgent, TemplatesRef: &v1alpha1.SecretReference{Name: class}, Token: v1alpha1.TokenBootstrap,
	}
	for _, err := range []error{a.client.Create(t.Context(), secret), a.client.Create(t.Context(), nc)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	a.joiner = seed.NewJoiner(a.seeder(), running, &a.events)
	return a
}

// node adds a VM of a class to the fleet and to the simulated Proxmox.
func (a *agents) node(number fleet.VMID, class string) (fleet.VM, *karpv1.NodeClaim) {
	a.t.Helper()
	vm := a.vm(number, "pve-1")
	a.mu.Lock()
	vm.NodeClass, vm.Seed = class, ""
	a.vms[len(a.vms)-1] = vm
	a.mu.Unlock()
	a.start(vm, true)
	return vm, a.claim(vm)
}

func (a *agents) start(vm fleet.VM, running bool) {
	a.t.Helper()
	err := a.proxmox.PutGuest(pvesim.Guest{
		VMID: int(vm.VMID), Host: string(vm.Host.Host), Running: running,
		Config: map[string]string{
			"name": vm.Name, "memory": "8192", "cores": "2", "agent": "1",
			"description": fleet.Marker{ClusterID: clusterID, Key: vm.Key}.String(),
		},
	})
	if err != nil {
		a.t.Fatal(err)
	}
}

// join reconciles a claim once, and returns the delay until the next time.
func (a *agents) join(claim *karpv1.NodeClaim) time.Duration {
	a.t.Helper()
	result, err := a.joiner.Reconcile(a.t.Context(), now(a.world, claim))
	if err != nil {
		a.t.Fatal(err)
	}
	return result.RequeueAfter
}

// wantSilent checks that a bootstrap token's secret was not printed anywhere.
func (a *agents) wantSilent(token *corev1.Secret) {
	a.t.Helper()
	for _, text := range append(append([]string{logs.String()}, a.recorded...), a.events...) {
		if strings.Contains(text, string(token.Data["token-secret"])) {
			a.t.Errorf("%.2000q holds the secret of %s", text, token.Name)
		}
	}
}

// state returns the progress of a claim's join command.
func (a *agents) state(claim *karpv1.NodeClaim) string {
	a.t.Helper()
	state, _, _ := strings.Cut(now(a.world, claim).Annotations[seed.AnnotationJoin], " 20")
	return state
}

const joinScript = `kubeadm join {{ .Kubernetes.APIServer }} --token {{ .Kubernetes.BootstrapToken }} --node-name {{ .Metadata.Hostname }}
`

// TestJoinsByTheGuestAgent checks that the command runs only once, when the agent responds,
// and that the token is deleted when the node has joined.
func TestJoinsByTheGuestAgent(t *testing.T) {
	a := newAgents(t, "agent-once", joinScript)
	vm, claim := a.node(2701, "agent-once")
	a.proxmox.SetGuestAgents(false)
	if after := a.join(claim); after == 0 || len(a.given) != 0 || len(a.tokens(vm)) != 0 {
		t.Fatalf("ran %v before the agent answers; looks again after %s; tokens %v", a.given, after, a.tokens(vm))
	}
	a.proxmox.SetGuestAgents(true)
	a.join(claim)
	a.join(claim)
	token := now(a.world, jointoken.BootstrapSecret(a.onlyToken(vm).ID))
	reveal := string(token.Data["token-id"]) + "." + string(token.Data["token-secret"])
	want := []given{{2701, seed.JoinShell(), "kubeadm join " + a.cluster.Config.Host + " --token " + reveal + " --node-name " + vm.Name + "\n"}}
	if diff := cmp.Diff(want, a.given); diff != "" {
		t.Fatalf("commands (-want +got):\n%s", diff)
	}
	if got := a.state(claim); got != "done 1" {
		t.Errorf("the claim says %q", got)
	}
	if len(a.recorded) != 1 || !strings.Contains(a.recorded[0], "try 1 of 3: it succeeded") {
		t.Errorf("recorded %q", a.recorded)
	}
	a.set(now(a.world, claim), karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized)
	a.join(claim)
	if got := a.state(claim); got != "joined 1" || len(a.tokens(vm)) != 0 {
		t.Errorf("after the join the claim says %q, tokens %v", got, a.tokens(vm))
	}
	a.wantSilent(token)
}

// TestJoinShell checks the exit codes of scripts, such as one whose first command reads all
// of its stdin.
func TestJoinShell(t *testing.T) {
	for script, want := range map[string]int{
		"#!/bin/sh\ncat >/dev/null\nread -r line\nexit 7\n":                   7,
		"set -e\nfor word in 'a b'; do test \"$word\" = 'a b'; done\n":        0,
		"cat <<'END' >/dev/null\n$nothing `false`\nEND\ntest -z \"$nothing\"": 0,
		"set -eu\nfalse\nexit 3": 1,
		"if":                     2,
	} {
		shell := seed.JoinShell()
		command := exec.CommandContext(t.Context(), shell[0], shell[1:]...)
		command.Stdin = strings.NewReader(script)
		_ = command.Run()
		if got := command.ProcessState.ExitCode(); got != want {
			t.Errorf("%q ended with %d, want %d", script, got, want)
		}
	}
}

// TestJoinShellStopsItsCommand checks that no process of a command runs longer than the limit.
func TestJoinShellStopsItsCommand(t *testing.T) {
	shell := seed.ShortJoinShell(time.Second)
	command := exec.CommandContext(t.Context(), shell[0], shell[1:]...)
	command.Stdin = strings.NewReader("sleep 60 & sleep 60")
	started := time.Now()
	// Both sleeps write to the same pipe, so Output waits until both have ended.
	_, err := command.Output()
	if code := command.ProcessState.ExitCode(); code != 124 || time.Since(started) > 30*time.Second {
		t.Errorf("ended after %s with %d: %v", time.Since(started), code, err)
	}
}

// TestAFailingJoinCommandIsTriedAFewTimes checks the retries of a command that always fails.
func TestAFailingJoinCommandIsTriedAFewTimes(t *testing.T) {
	a := newAgents(t, "agent-failing", joinScript)
	vm, claim := a.node(2702, "agent-failing")
	a.ends = []int{1, 124, 3, 4, 5}
	for range 3 {
		after := a.join(claim)
		if again := a.join(claim); after > 0 && again > after {
			t.Errorf("looks again after %s and %s", after, again)
		}
		a.clock.Step(time.Minute)
	}
	if after := a.join(claim); after < 10*time.Minute {
		t.Errorf("looks again after %s, want when the token expires", after)
	}
	if len(a.given) != 3 || a.state(claim) != "failed 3" {
		t.Errorf("ran %d commands; the claim says %q", len(a.given), a.state(claim))
	}
	if diff := cmp.Diff(told{seed.ReasonJoinFailed, seed.ReasonJoinFailed, seed.ReasonJoinFailed}, a.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if len(a.recorded) != 3 || !strings.Contains(a.recorded[2], "ended with exit code 3") ||
		!strings.Contains(a.recorded[1], "try 2 of 3: the guest stopped the command because it did not end within 5m0s: ") {
		t.Errorf("recorded %q", a.recorded)
	}
	for _, token := range a.tokens(vm) {
		a.wantSilent(now(a.world, jointoken.BootstrapSecret(token.ID)))
	}
}

// TestTokenOfAJoinCommandExpires checks that the record of a token that nobody used is
// deleted when it expires, although the API server may accept the token for longer.
func TestTokenOfAJoinCommandExpires(t *testing.T) {
	a := newAgents(t, "agent-expires", joinScript)
	vm, claim := a.node(2709, "agent-expires")
	a.join(claim)
	after := a.join(claim)
	if after <= 0 || after > 15*time.Minute || len(a.records(vm)) != 1 {
		t.Fatalf("looks again after %s; records %v", after, a.records(vm))
	}
	a.clock.Step(after)
	if after := a.join(claim); after != 0 || len(a.records(vm)) != 0 || a.state(claim) != "done 1" {
		t.Errorf("looks again after %s; records %v; the claim says %q", after, a.records(vm), a.state(claim))
	}
}

// TestAJoinCommandThatNobodySawEnd checks that numaform waits for a command that an earlier
// process started.
func TestAJoinCommandThatNobodySawEnd(t *testing.T) {
	a := newAgents(t, "agent-died", joinScript)
	_, claim := a.node(2703, "agent-died")
	claim.Annotations[seed.AnnotationJoin] = "running 1 " + a.clock.Now().UTC().Format(time.RFC3339)
	if err := a.client.Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	if after := a.join(claim); after < 4*time.Minute || len(a.given) != 0 {
		t.Fatalf("ran %v, looks again after %s", a.given, after)
	}
	a.clock.Step(6 * time.Minute)
	a.join(claim)
	if len(a.given) != 1 || a.state(claim) != "done 2" {
		t.Errorf("ran %d commands; the claim says %q", len(a.given), a.state(claim))
	}
}

// TestAJoinCommandThatOutlivesNumaform checks that the claim still says "running" when
// numaform stops during a command, because the next process then waits for the command.
func TestAJoinCommandThatOutlivesNumaform(t *testing.T) {
	a := newAgents(t, "agent-outlives", joinScript)
	_, claim := a.node(2704, "agent-outlives")
	ctx, stop := context.WithCancel(t.Context())
	a.proxmox.SetAgentExec(func(int, []string, string) pvesim.CommandResult {
		stop()
		return pvesim.CommandResult{Looks: 1000}
	})
	if _, err := a.joiner.Reconcile(ctx, now(a.world, claim)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if got := a.state(claim); got != "running 1" || len(a.events) != 0 {
		t.Errorf("the claim says %q; events %v", got, a.events)
	}
	if len(a.recorded) != 1 || !strings.Contains(a.recorded[0], "try 1 of 3: ") {
		t.Errorf("recorded %q", a.recorded)
	}
}

// TestJoinCommandsAreChecked checks that the conditions of classes report problems of their
// commands.
func TestJoinCommandsAreChecked(t *testing.T) {
	a := newAgents(t, "agent-checked", "join {{ .Values.Password }}")
	nc := &v1alpha1.ProxmoxNodeClass{}
	nc.Name = "agent-checked"
	err := a.seeder().Check(context.Background(), now(a.world, nc))
	if err == nil || !strings.Contains(err.Error(), `rendering join-command, line 1 of the template: <.Values.Password>: key "Password" does not exist`) {
		t.Errorf("got %v", err)
	}
	nc.Spec.Metadata.TemplatesRef.Name = "agent-empty"
	empty := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "agent-empty"}}
	if err := a.client.Create(t.Context(), empty); err != nil {
		t.Fatal(err)
	}
	if err := a.seeder().Check(context.Background(), nc); err == nil || !strings.Contains(err.Error(), "must not be empty: set this key") {
		t.Errorf("got %v", err)
	}
}
