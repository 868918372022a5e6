package demo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/hostagent"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/term"
	"github.com/numaform/numaform/topology"
)

// Config configures a Stage.
type Config struct {
	// Example contains the files of an example: numaform.yaml, hosts/, manifests/.
	Example fs.FS
	// Region and Template are the names that the example uses.
	Region   topology.RegionName
	Template string
	// Clusters are the clusterIDs whose VMs numaform-agent pins on the example's hosts.
	// The agent keeps other guests off the CPUs of these VMs. If Clusters is empty, no
	// agent runs.
	Clusters []string
	// Dir is an empty directory to work in.
	Dir string
	// PluginDir is a filesystem mirror with the provider.
	PluginDir string
	// Environ is the environment of the commands, as returned by os.Environ.
	Environ        []string
	Stdout, Stderr io.Writer
	// Change changes the simulator's configuration before its start; it may be nil.
	Change func(*pvesim.Config)
	// Sim is a running simulated Proxmox that is not stopped with the stage; nil starts
	// one.
	Sim *pvesim.Server
}

// Stage is a copy of an example's files and a simulated Proxmox with its hosts.
type Stage struct {
	Config
	env  []string
	ends bool
	// screen shows the progress of commands; nil in tests that use only a Stage.
	screen *term.Screen
}

// Open copies the example's files and starts a simulated Proxmox for them. The caller must
// close it.
func Open(config Config) (*Stage, error) {
	if err := os.CopyFS(config.Dir, config.Example); err != nil {
		return nil, fmt.Errorf("copying the example: %w", err)
	}
	s := &Stage{Config: config}
	if s.Sim == nil {
		if err := s.simulate(); err != nil {
			return nil, err
		}
	}
	for name, content := range map[string][]byte{"pve-root-ca.pem": s.Sim.CertPEM(), "token": []byte(pvesim.DefaultTokenSecret)} {
		if err := os.WriteFile(filepath.Join(s.Dir, name), content, 0o600); err != nil {
			return nil, fmt.Errorf("writing credentials: %w", err)
		}
	}
	s.env = slices.Concat(config.Environ, []string{
		"NUMAFORM_CLUSTERS_0_URL=" + s.Sim.URL(), "NUMAFORM_ENGINE_PLUGIN_DIR=" + s.PluginDir,
		"NUMAFORM_CONFIG=" + filepath.Join(s.Dir, "numaform.yaml"), "NUMAFORM_STATE_DIR=" + s.StateDir(),
	})
	return s, nil
}

// simulate starts a simulated Proxmox with the example's hosts.
func (s *Stage) simulate() error {
	hosts, err := s.Hosts()
	if err != nil {
		return err
	}
	simulated := pvesim.Config{Hosts: hosts, Delays: pvesim.Delays{
		Clone: 300 * time.Millisecond, Start: 100 * time.Millisecond, Stop: 100 * time.Millisecond, Destroy: 50 * time.Millisecond,
	}}
	if len(s.Clusters) > 0 {
		simulated = hostagent.On(simulated, hostagent.Agent{Rules: claim.Rules{Clusters: s.Clusters}, Isolation: "enforce"})
	}
	if s.Change != nil {
		s.Change(&simulated)
	}
	if s.Sim, err = pvesim.New(simulated); err != nil {
		return err
	}
	s.ends = true
	return s.Sim.Start("127.0.0.1:0")
}

// Close stops the simulated Proxmox if Open started it.
func (s *Stage) Close() error {
	if !s.ends {
		return nil
	}
	return s.Sim.Close()
}

// Manifests returns the directory of the example's manifests.
func (s *Stage) Manifests() string { return filepath.Join(s.Dir, "manifests") }

// Fleet returns the directory of the fleet.
func (s *Stage) Fleet() string { return filepath.Join(s.Dir, "fleet") }

// StateDir returns the directory of the engine's work and of local states.
func (s *Stage) StateDir() string { return filepath.Join(s.Dir, "state") }

// States returns the paths of the local states.
func (s *Stage) States() ([]string, error) {
	return filepath.Glob(filepath.Join(s.StateDir(), "states", "*", "*", "terraform.tfstate"))
}

// Env returns the environment of the commands.
func (s *Stage) Env() []string { return slices.Clone(s.env) }

// Setenv adds environment variables to the environment of the commands.
func (s *Stage) Setenv(entries ...string) { s.env = append(s.env, entries...) }

// Numaform runs a command, prints its output, and returns its stdout and exit code.
func (s *Stage) Numaform(ctx context.Context, args ...string) (stdout string, code int) {
	fmt.Fprintf(s.Stdout, "$ numaform %s\n", strings.Join(args, " "))
	defer s.progress("numaform " + args[0])()
	var copied bytes.Buffer
	code = cli.Run(ctx, cli.Process{
		Args: args, Environ: s.env, Stdin: strings.NewReader(""),
		Stdout: io.MultiWriter(s.Stdout, &copied), Stderr: s.Stderr,
	})
	return copied.String(), code
}

// onScreen returns a screen for a demo, and the configuration that prints on it. Without a
// terminal, it shows progress every 2 seconds.
func onScreen(config Config) (*term.Screen, Config) {
	screen := term.NewScreen(config.Stderr, term.Of(config.Stderr, config.Environ, "never"), clock.RealClock{})
	screen.Interval = 2 * time.Second
	config.Stdout, config.Stderr = screen.Over(config.Stdout), screen
	return screen, config
}

// progress shows the duration of what until stop is called. In a terminal it does nothing,
// because commands show their own progress there.
func (s *Stage) progress(what string) (stop func()) {
	if s.screen == nil || term.Of(s.Stderr, s.Environ, "never").Live {
		return func() {}
	}
	return s.screen.Start(what, 0).Stop
}

// Hosts returns the example's hosts as passed to the simulated Proxmox.
func (s *Stage) Hosts() ([]topology.Host, error) {
	return pvesim.LoadHosts(filepath.Join(s.Dir, "hosts"), s.Region, s.Template)
}
