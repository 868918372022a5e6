package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/numaform/numaform/internal/agent"
)

// Exit codes.
const (
	exitDone = iota
	exitFailed
	exitUsage
)

// usageError is an error in the command line.
type usageError struct{ error }

// errUnhealthy makes status fail after it has printed its report.
var errUnhealthy = errors.New("the agent is not running, does not respond, or its last round failed")

// program contains the environment of the process and the values of its flags.
type program struct {
	environ        func(string) (string, bool)
	stdout, stderr io.Writer
	pvesh          agent.Pvesh

	root, config, stateDir, isolation, output, host string
	interval                                        time.Duration
	verbose                                         bool
}

func (p *program) run(ctx context.Context, args []string) int {
	cmd := p.command()
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	var usage usageError
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errUnhealthy):
		return exitFailed
	}
	fmt.Fprintln(p.stderr, "error:", err)
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailed
}

func (p *program) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "numaform-agent",
		Short: "Keep the CPU pins of VMs on this Proxmox host",
		Long: "Pin the vCPUs of running VMs to the CPUs that their descriptions declare, and report other guests on\n" +
			"these CPUs or keep them off. Every flag has an environment variable: --state-dir is\n" +
			"NUMAFORM_AGENT_STATE_DIR.",
		Args:              asUsage(cobra.NoArgs),
		SilenceUsage:      true,
		SilenceErrors:     true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return p.fromEnvironment(cmd) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := p.agent()
			if err != nil {
				return err
			}
			return a.Run(cmd.Context())
		},
	}
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	flags := root.PersistentFlags()
	flags.StringVar(&p.root, "root", "/", "file system of the host")
	flags.StringVar(&p.stateDir, "state-dir", "/run/numaform-agent", "directory of the state; it must be empty when the host starts")
	flags.StringVar(&p.config, "config", "/etc/numaform-agent.yaml", "configuration file, which limits what VMs can declare")
	root.Flags().StringVar(&p.isolation, "isolation", "", "isolation of pinned CPUs from other guests: off, report or enforce (default: isolation in the file, or report)")
	root.Flags().DurationVar(&p.interval, "interval", 500*time.Millisecond, "time between two rounds")
	root.Flags().BoolVarP(&p.verbose, "verbose", "v", false, "log more")

	status := &cobra.Command{
		Use: "status", Short: "Show the state of the agent and the pins of VMs", Args: asUsage(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return p.status() },
	}
	status.Flags().StringVarP(&p.output, "output", "o", "text", "text or json")
	publish := &cobra.Command{
		Use: "publish", Short: "Write the exact topology of this host and the agent's status to the host's notes in Proxmox", Args: asUsage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return p.publish(cmd.Context()) },
	}
	publish.Flags().StringVar(&p.host, "host", "", "name of this host in Proxmox (default: the hostname)")
	root.AddCommand(status, publish, &cobra.Command{
		Use: "release", Short: "Revert all changes of the agent on this host; stop the agent first", Args: asUsage(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			a, err := p.agent()
			if err != nil {
				return err
			}
			return a.Release()
		},
	}, &cobra.Command{
		Use: "version", Short: "Print the version", Args: asUsage(cobra.NoArgs),
		Run: func(*cobra.Command, []string) { fmt.Fprintln(p.stdout, "numaform-agent", version) },
	})
	return root
}

// asUsage marks a wrong number of arguments, or an unknown command, as a usage error.
func asUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{err}
		}
		return nil
	}
}

// fromEnvironment sets flags that were not given from their environment variables.
func (p *program) fromEnvironment(cmd *cobra.Command) error {
	var mistakes []error
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		name := "NUMAFORM_AGENT_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		value, ok := p.environ(name)
		if !ok || flag.Changed || flag.Name == "help" {
			return
		}
		if err := cmd.Flags().Set(flag.Name, value); err != nil {
			mistakes = append(mistakes, usageError{fmt.Errorf("environment variable %s: %w", name, err)})
		}
	})
	return errors.Join(mistakes...)
}

// agent returns the agent configured by the flags and the file.
func (p *program) agent() (*agent.Agent, error) {
	settings, err := agent.ReadSettings(p.config)
	if err != nil {
		return nil, err
	}
	if p.isolation != "" {
		settings.Isolation = agent.Isolation(p.isolation)
		if err := settings.Isolation.Check(); err != nil {
			return nil, usageError{err}
		}
	}
	if p.interval < 10*time.Millisecond {
		return nil, usageError{fmt.Errorf("--interval %s: must be at least 10ms", p.interval)}
	}
	level := slog.LevelInfo
	if p.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(p.stdout, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(groups []string, attr slog.Attr) slog.Attr {
			if attr.Key == slog.TimeKey && len(groups) == 0 {
				return slog.Attr{} // the journal adds its own
			}
			return attr
		},
	}))
	return agent.New(agent.Options{
		Root:     p.root,
		StateDir: p.stateDir,
		Settings: settings,
		Interval: p.interval,
		Version:  version,
		Log:      log,
		Now:      time.Now,
	})
}

func (p *program) status() error {
	status, err := agent.ReadStatus(p.root, p.stateDir)
	if err != nil {
		return err
	}
	switch p.output {
	case "text":
		fmt.Fprint(p.stdout, status.String())
	case "json":
		text, err := json.MarshalIndent(status, "", "  ")
		if err != nil {
			return fmt.Errorf("printing the status: %w", err)
		}
		fmt.Fprintln(p.stdout, string(text))
	default:
		return usageError{fmt.Errorf("--output %q: must be text or json", p.output)}
	}
	if !status.Healthy() {
		return errUnhealthy
	}
	return nil
}

func (p *program) publish(ctx context.Context) error {
	host := p.host
	if host == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("reading the hostname: %w", err)
		}
		host, _, _ = strings.Cut(name, ".")
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	publisher := agent.Publisher{Root: p.root, StateDir: p.stateDir, Host: host, Pvesh: p.pvesh, Now: time.Now}
	done, err := publisher.Publish(ctx)
	if err != nil {
		return err
	}
	if done.Written {
		fmt.Fprintf(p.stderr, "published the topology in the notes of host %s\n", host)
	}
	if done.Problem != "" {
		fmt.Fprintf(p.stderr, "the agent's last round failed: %s; numaform places no more VMs with declared pins on this host until a round succeeds and is published: run numaform-agent status\n", done.Problem)
	}
	if done.Unwell != "" {
		fmt.Fprintf(p.stderr, "status not published: %s; once the published status is 15 minutes old, numaform places no more VMs with declared pins on this host: run numaform-agent status\n", done.Unwell)
	}
	return nil
}
