// Package demo demonstrates numaform's main job on a simulated Proxmox: pods need nodes, a
// rule denies the change, the rule is removed, the diff is applied and committed, and a
// removed node is created again. RunCluster demonstrates it with the controller in a real
// Kubernetes control plane. Both use the command line as a user would. Start at Run; Open
// provides the same stage to tests.
package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/hostagent"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/statesim"
	"github.com/numaform/numaform/topology"
)

// show is a stage with a state server and a git remote.
type show struct {
	*Stage
	states *statesim.Server
}

// Run runs the scenes in order. It stops at the first one with a wrong result, and returns
// an error.
func Run(ctx context.Context, config Config) (err error) {
	screen, config := onScreen(config)
	preparing := screen.Start("starting a simulated Proxmox", 0)
	stage, err := Open(config)
	preparing.Stop()
	if err != nil {
		return fmt.Errorf("preparing the demo: %w", err)
	}
	stage.screen = screen
	s := &show{Stage: stage}
	defer func() { err = errors.Join(err, s.Close()) }()
	if s.states, err = statesim.New(); err != nil {
		return fmt.Errorf("preparing the demo: %w", err)
	}
	defer func() { err = errors.Join(err, s.states.End()) }()
	if err := s.keepRemotely(ctx, s.states.URL); err != nil {
		return fmt.Errorf("preparing the demo: %w", err)
	}
	for _, scene := range []func(context.Context) error{
		s.showTopology, s.plan, s.denied, s.apply, s.committed, s.planAgain, s.busy, s.remove, s.undo, s.history,
	} {
		if err := scene(ctx); err != nil {
			return err
		}
	}
	s.say("The end. The fleet's files are in " + s.remote())
	return nil
}

// remote returns the path of the fleet's repository.
func (s *show) remote() string { return filepath.Join(s.Dir, "fleet.git") }

// keepRemotely configures the fleet to be stored in a git repository with a remote, and the
// states on a server.
func (s *show) keepRemotely(ctx context.Context, url string) error {
	remote := s.remote()
	if _, err := git(ctx, s.Dir, "init", "--quiet", "--bare", "--initial-branch", "main", remote); err != nil {
		return err
	}
	path := filepath.Join(s.Dir, "numaform.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	local := []byte("backend: {type: local}")
	if !bytes.Contains(text, local) {
		return fmt.Errorf("%s does not contain %s", path, local)
	}
	kept := fmt.Sprintf("git: {remote: %q}\n  backend: {type: http, config: {address: %q}}", remote, url)
	return os.WriteFile(path, bytes.Replace(text, local, []byte(kept), 1), 0o600)
}

// git runs the user's git in a directory.
func git(ctx context.Context, dir string, args ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, "git", args...) //nolint:gosec // the demo's own arguments
	command.Dir = dir
	out, err := command.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(out))
	}
	return out, nil
}

func (s *Stage) say(text string) { say(s.Stdout, text) }

// numaform runs a command and returns an error unless it exits with code want.
func (s *Stage) numaform(ctx context.Context, want int, args ...string) error {
	if _, code := s.Numaform(ctx, args...); code != want {
		return fmt.Errorf("numaform %s: exit code %d instead of %d", strings.Join(args, " "), code, want)
	}
	return nil
}

func (s *show) showTopology(ctx context.Context) error {
	s.say("Three hosts in numaform topology")
	return s.numaform(ctx, cli.ExitOK, "topology", "-o", "table")
}

func (s *show) plan(ctx context.Context) error {
	s.say("40 pods are pending: plan a scale-up")
	return s.numaform(ctx, cli.ExitChanges, "plan", "-f", s.Manifests(), "--detailed-exitcode")
}

// frozen is a rule that an operator adds.
const frozen = `rules:
- {name: freeze-pinned, decision: deny, message: pool pinned is frozen until its hosts have new memory,
   when: 'change.creates > 0 && pools.exists(p, p == "pinned")'}
`

func (s *show) denied(ctx context.Context) error {
	s.say("An operator's rule denies the change before it starts")
	rule := filepath.Join(s.Dir, "freeze.yaml")
	if err := os.WriteFile(rule, []byte(frozen), 0o600); err != nil {
		return err
	}
	fmt.Fprint(s.Stdout, frozen)
	s.env = append(s.env, "NUMAFORM_POLICY_FILES="+rule)
	defer func() { s.env = s.env[:len(s.env)-1] }()
	return s.numaform(ctx, cli.ExitFailed, "apply", "-f", s.Manifests(), "--auto-approve", "--quiet")
}

func (s *show) apply(ctx context.Context) error {
	s.say("The rule is removed: apply")
	if err := s.numaform(ctx, cli.ExitOK, "apply", "-f", s.Manifests(), "--auto-approve", "--quiet"); err != nil {
		return err
	}
	path, _, err := s.someNode(ctx, "pinned")
	if err != nil {
		return err
	}
	s.say("One of the new files: the diff of a VM")
	if err := s.head(path, 5); err != nil {
		return err
	}
	return s.running()
}

// running prints the first VM of each NodePool, with the CPU of each pinned vCPU, and returns
// an error unless the pins of all VMs are as declared.
func (s *Stage) running() error {
	s.say("The VMs in Proxmox, with the pins that numaform-agent set without a root login")
	var pools []string
	first, count := map[string]string{}, map[string]int{}
	for _, guest := range s.Sim.Guests() {
		if !guest.Running {
			continue
		}
		pins, err := s.pins(&guest)
		if err != nil {
			return err
		}
		pool, _, _ := strings.Cut(guest.Config["name"], "-")
		count[pool]++
		if count[pool] > 1 {
			continue
		}
		on := "shared CPUs"
		if len(pins) > 0 {
			on = fmt.Sprintf("vCPUs 0-%d on CPUs %s", len(pins)-1, pins)
		}
		pools = append(pools, pool)
		first[pool] = fmt.Sprintf("  %s %d %-12s %2s cores, %5s MiB, %s", guest.Host, guest.VMID, guest.Config["name"], guest.Config["cores"], guest.Config["memory"], on)
	}
	for _, pool := range pools {
		fmt.Fprintf(s.Stdout, "%s (and %d more of its NodePool)\n", first[pool], count[pool]-1)
	}
	return nil
}

// pins returns the CPU of each vCPU of a guest that declares pins, and an error unless they
// are in effect.
func (s *Stage) pins(guest *pvesim.GuestState) (topology.Pins, error) {
	marker, _ := fleet.ParseMarker(guest.Config["description"])
	threads, _ := hostagent.Threads(s.Sim, guest.VMID)
	if len(marker.Pins) > 0 && !slices.Equal(marker.Pins, threads.Pins()) {
		return nil, fmt.Errorf("vm %s declares the CPUs %v, but its vCPUs run on %v", guest.Config["name"], marker.Pins, threads.VCPUs)
	}
	return marker.Pins, nil
}

// head prints the first lines of a file.
func (s *show) head(path string, lines int) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	fmt.Fprintf(s.Stdout, "$ head -%d %s # and %d more lines\n%s\n", lines, filepath.Base(path), len(all)-lines, strings.Join(all[:lines], "\n"))
	return nil
}

func (s *show) committed(ctx context.Context) error {
	s.say("The records: a commit, its outcome as a note, and a remote state for each host")
	const format = "%h %s%n%(trailers:key=Numaform-Change,key=Numaform-Why)"
	fmt.Fprintf(s.Stdout, "$ git log -1 --format='%s' --shortstat\n", format)
	out, err := git(ctx, s.remote(), "log", "-1", "--format="+format, "--shortstat", "main")
	if err != nil {
		return err
	}
	note, err := git(ctx, s.remote(), "notes", "--ref=numaform", "show", "main")
	if err != nil {
		return err
	}
	var outcome struct {
		ID       string        `json:"id"`
		Duration time.Duration `json:"duration_ns"`
	}
	if err := json.Unmarshal(note, &outcome); err != nil {
		return fmt.Errorf("reading the note of the commit: %w", err)
	}
	for line := range bytes.Lines(out) {
		if len(bytes.TrimSpace(line)) > 0 {
			fmt.Fprintf(s.Stdout, "%s", line)
		}
	}
	fmt.Fprintf(s.Stdout, "  note: change %s took %s\n", outcome.ID, outcome.Duration.Round(time.Millisecond))
	states := s.states.States()
	fmt.Fprintf(s.Stdout, "  states: %s\n", strings.Join(slices.Sorted(maps.Keys(states)), ", "))
	return nil
}

func (s *show) planAgain(ctx context.Context) error {
	s.say("The same plan again: no change is needed")
	return s.numaform(ctx, cli.ExitOK, "plan", "-f", s.Manifests(), "--detailed-exitcode", "--quiet")
}

// busy deletes the file of a node that runs pods, as a user might by mistake, checks that
// apply refuses to remove the node, and reverts the deletion.
func (s *show) busy(ctx context.Context) error {
	path, name, err := s.someNode(ctx, "workers")
	if err != nil {
		return err
	}
	s.say("A user deletes " + filepath.Base(path) + " and pushes while its node still runs pods: the guard denies the change")
	if err := s.push(ctx, []string{"rm", "--quiet", path}, []string{"commit", "--quiet", "-m", "remove a node"}); err != nil {
		return err
	}
	pod := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: web-0, namespace: default}\n"+
		"spec: {nodeName: %s, containers: [{name: web, image: registry.example/web:1}]}\n", name)
	running := filepath.Join(s.Dir, "running.yaml")
	if err := os.WriteFile(running, []byte(pod), 0o600); err != nil {
		return err
	}
	if err := s.numaform(ctx, cli.ExitFailed, "apply", "-f", running, "--auto-approve", "--quiet"); err != nil {
		return err
	}
	return s.push(ctx, []string{"revert", "--no-edit", "HEAD"})
}

// checkout returns the path of a user's clone of the repository.
func (s *show) checkout() string { return filepath.Join(s.Dir, "checkout") }

// push runs git commands as a user would, and pushes the result.
func (s *show) push(ctx context.Context, commands ...[]string) error {
	for _, args := range append(commands, []string{"push", "--quiet"}) {
		args = append([]string{"-c", "user.name=ann", "-c", "user.email=ann@example.org"}, args...)
		if _, err := git(ctx, s.checkout(), args...); err != nil {
			return err
		}
	}
	return nil
}

func (s *show) remove(ctx context.Context) error {
	_, name, err := s.someNode(ctx, "pinned")
	if err != nil {
		return err
	}
	s.say("Node " + name + " is drained and no longer needed")
	if err := s.numaform(ctx, cli.ExitOK, "remove", name, "-f", s.Manifests(), "--auto-approve", "--quiet"); err != nil {
		return err
	}
	for _, guest := range s.Sim.Guests() {
		if guest.Config["name"] == name {
			return fmt.Errorf("vm %s still exists", name)
		}
	}
	return nil
}

func (s *show) undo(ctx context.Context) error {
	s.say("Revert the removal: undo")
	return s.numaform(ctx, cli.ExitOK, "undo", "-f", s.Manifests(), "--auto-approve", "--quiet")
}

func (s *show) history(ctx context.Context) error {
	s.say("The history shows all changes")
	return s.numaform(ctx, cli.ExitOK, "history")
}

// someNode updates the user's checkout, and returns the path of the pool's first node file
// in it, and the name of its node.
func (s *show) someNode(ctx context.Context, pool string) (path, name string, err error) {
	dir, args := s.checkout(), []string{"pull", "--quiet"}
	if _, err := os.Stat(dir); err != nil {
		dir, args = s.Dir, []string{"clone", "--quiet", s.remote(), s.checkout()}
	}
	if _, err := git(ctx, dir, args...); err != nil {
		return "", "", err
	}
	paths, err := filepath.Glob(filepath.Join(s.checkout(), "*", "*", "node-"+pool+"-*.tf"))
	if err != nil || len(paths) == 0 {
		return "", "", fmt.Errorf("the fleet has no node file of NodePool %s", pool)
	}
	path = slices.Min(paths)
	return path, strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "node-"), ".tf"), nil
}
