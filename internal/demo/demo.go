// Package demo plays numaform's main job on an embedded Proxmox: pods need
// nodes, a diff makes them, the guard refuses a bad one, a node goes again. It
// drives the command line as a user would and adds nothing to it. Start at Run;
// Open gives tests the same stage.
package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/numaform/numaform/internal/cli"
)

// Run plays all scenes, and fails at the first that does not end as it should.
func Run(ctx context.Context, config Config) (err error) {
	s, err := Open(config)
	if err != nil {
		return fmt.Errorf("preparing the demo: %w", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for _, scene := range []func(context.Context) error{
		s.showTopology, s.planAndApply, s.planAgain, s.refuse, s.remove,
	} {
		if err := scene(ctx); err != nil {
			return err
		}
	}
	s.say("The end. The fleet's files are in " + s.Fleet())
	return nil
}

func (s *Stage) say(text string) {
	fmt.Fprintf(s.Stdout, "\n━━━ %s\n", text)
}

// numaform runs a command and fails unless it exits as wanted.
func (s *Stage) numaform(ctx context.Context, want int, args ...string) error {
	if _, code := s.Numaform(ctx, args...); code != want {
		return fmt.Errorf("numaform %s: exit code %d, want %d", strings.Join(args, " "), code, want)
	}
	return nil
}

func (s *Stage) showTopology(ctx context.Context) error {
	s.say("Three hosts, as numaform sees them")
	return s.numaform(ctx, cli.ExitOK, "topology")
}

func (s *Stage) planAndApply(ctx context.Context) error {
	s.say("40 pods are pending: what would a scale-up do?")
	if err := s.numaform(ctx, cli.ExitChanges, "plan", "-f", s.Manifests(), "--detailed-exitcode"); err != nil {
		return err
	}
	s.say("Do it")
	if err := s.numaform(ctx, cli.ExitOK, "apply", "-f", s.Manifests(), "--auto-approve"); err != nil {
		return err
	}
	s.say("What Proxmox has now")
	for _, guest := range s.Sim.Guests() {
		if guest.Running {
			fmt.Fprintf(s.Stdout, "  %s %d %-14s %s cores, %s MiB %s\n", guest.Host, guest.VMID, guest.Config["name"],
				guest.Config["cores"], guest.Config["memory"], guest.Config["numa0"])
		}
	}
	return nil
}

func (s *Stage) planAgain(ctx context.Context) error {
	s.say("The same question again: nothing is left to do")
	return s.numaform(ctx, cli.ExitOK, "plan", "-f", s.Manifests(), "--detailed-exitcode")
}

// refuse deletes a node file as a hurried person might.
func (s *Stage) refuse(ctx context.Context) error {
	path, err := s.someNode("workers")
	if err != nil {
		return err
	}
	s.say("Somebody deletes " + filepath.Base(path) + ", whose node still runs pods: the guard refuses the plan")
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	if err := s.numaform(ctx, cli.ExitFailed, "plan", "-f", s.Manifests()); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}

func (s *Stage) remove(ctx context.Context) error {
	path, err := s.someNode("pinned")
	if err != nil {
		return err
	}
	name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "node-"), ".tf")
	s.say("Node " + name + " is drained and no longer needed")
	if err := s.numaform(ctx, cli.ExitOK, "remove", name, "-f", s.Manifests(), "--auto-approve"); err != nil {
		return err
	}
	for _, guest := range s.Sim.Guests() {
		if guest.Config["name"] == name {
			return fmt.Errorf("vm %s is still there", name)
		}
	}
	return nil
}

// someNode returns the path of the pool's first node file.
func (s *Stage) someNode(pool string) (string, error) {
	paths, err := filepath.Glob(filepath.Join(s.Fleet(), "*", "*", "node-"+pool+"-*.tf"))
	if err != nil || len(paths) == 0 {
		return "", fmt.Errorf("the fleet has no node files of pool %s", pool)
	}
	return slices.Min(paths), nil
}
