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
var errUnhealthy = errors.New("the agent does not run, or its last look at the host failed")

// program is the environment of the process.
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
		Long: "Put the vCPUs of running VMs on the CPUs that their descriptions declare, keep them there, and\n" +
			"report other guests on these CPUs or keep them off. Every flag has a twin in the environment:\n" +
			"--state-dir is NUMAFORM_AGENT_STATE_DIR.",
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
	flags.StringVar(&p.stateDir, "state-dir", "/run/numaform-agent", "directory of the state, which a start of the host must empty")
	flags.StringVar(&p.config, "config", "/etc/numaform-agent.yaml", "file that says what declarations may have")
	root.Flags().StringVar(&p.isolation, "isolation", "", "guests that may run on pinned CPUs: off, report or enforce (default: isolation of the file, or report)")
	root.Flags().DurationVar(&p.interval, "interval", 500*time.Millisecond, "time between two looks at the host")
	root.Flags().BoolVarP(&p.verbose, "verbose", "v", false, "log more")

	status := &cobra.Command{
		Use: "status", Short: "Show who has which CPUs", Args: asUsage(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return p.status() },
	}
	status.Flags().StringVarP(&p.output, "output", "o", "text", "text or json")
	publish := &cobra.Command{
		Use: "publish", Short: "Write this host's exact topology, and what the agent does, into its notes in Proxmox", Args: asUsage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return p.publish(cmd.Context()) },
	}
	publish.Flags().StringVar(&p.host, "host", "", "name of this host in Proxmox (default: the name of the machine)")
	root.AddCommand(status, publish, &cobra.Command{
		Use: "release", Short: "Undo all pins and confinements, with the agent stopped", Args: asUsage(cobra.NoArgs),
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
		return nil, usageError{fmt.Errorf("--interval %s: want at least 10ms", p.interval)}
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
		return usageError{fmt.Errorf("--output %q: want text or json", p.output)}
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
			return fmt.Errorf("asking for the name of the machine: %w", err)
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
		fmt.Fprintf(p.stderr, "published in the notes of %s\n", host)
	}
	if done.Unwell != "" {
		fmt.Fprintf(p.stderr, "said nothing of the agent: %s; numaform gives this host no pinned VM from 15 minutes on: numaform-agent status\n", done.Unwell)
	}
	return nil
}
