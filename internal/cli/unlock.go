package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/term"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// unlocking contains the options of unlock.
type unlocking struct {
	clusterOptions

	config                string
	templates, yes, force bool
	// id is the ID of the lock to release; empty means the lock that is held now.
	id string
	// reason is the reason for the history.
	reason string
}

func newUnlock(process Process) *cobra.Command {
	var u unlocking
	command := &cobra.Command{
		Use:   "unlock HOST [LOCK-ID]",
		Short: "Release the lock of a host's Terraform state after its holder died",
		Long: "Show who holds the lock of a host's state, since when, and whether the holder can still run, and release the lock after\n" +
			"confirmation. HOST is a name, or REGION/HOST. With LOCK-ID, the command releases only the lock with this ID. Releasing\n" +
			"the lock of a running apply can lose its changes, so the command refuses if it finds the holder running. The history\n" +
			"records each release.",
		Example: "  numaform unlock pve-1                              # shows the lock and asks for confirmation\n" +
			"  numaform unlock lab/pve-1 7b0c8a4e-… --yes         # without a terminal: exactly the lock with this ID",
		Args: arguments(1, 2),
		RunE: func(command *cobra.Command, args []string) error {
			if len(args) > 1 {
				u.id = args[1]
			}
			return u.run(command.Context(), process, args[0])
		},
	}
	flags := command.Flags()
	registerConfig(flags, &u.config)
	u.register(flags)
	flags.BoolVar(&u.templates, "templates", false, "release the lock of the state of the host's templates, instead of its nodes")
	flags.BoolVar(&u.yes, "yes", false, "release the lock with LOCK-ID without confirmation")
	flags.BoolVar(&u.force, "force", false, "release the lock although its holder seems to run")
	flags.StringVar(&u.reason, "reason", "", "why the lock is released, for the history")
	return command
}

func (u *unlocking) run(ctx context.Context, process Process, name string) error {
	if u.yes && u.id == "" {
		return usageError{errors.New("--yes requires LOCK-ID, so that it never releases a newer lock: numaform doctor prints the ID")}
	}
	if strings.ContainsAny(u.reason, "\r\n") {
		return usageError{errors.New("--reason has several lines: write one line")}
	}
	config, err := loadConfig(process, u.config)
	if err != nil {
		return err
	}
	opened, err := config.ScalerConfig(ctx, process.Environ, u.kubeconfig, config.Fleet.Backend.Type != "local")
	if err != nil {
		return err
	}
	opened.Regions, opened.Actor, opened.Version = config.Regions(), actor(), process.Version
	s := scaler.New(*opened)
	current, _, err := s.Fleet(ctx)
	if err != nil {
		return err
	}
	host, err := hostNamed(name, current.AllHosts(), opened.Regions)
	if err != nil {
		return err
	}
	request := scaler.Unlocking{
		Host: host, Templates: u.templates, Reason: u.reason,
		DeleteLease: func(ctx context.Context, name, holder string) error {
			return config.DeleteLease(ctx, process.Environ, u.kubeconfig, name, holder)
		},
	}
	where := request.State()
	request.Agree = func(held *state.LockedError, engines []int, known bool) (string, error) {
		return u.agree(ctx, process, where, held, engines, known)
	}

	if s.LocalStates() {
		locks, unknown := config.StateLocks(ctx, process.Environ, u.kubeconfig, &current)
		held := slices.IndexFunc(locks, func(lock operator.StateLock) bool { return lock.Host == host })
		if held >= 0 {
			unknown = "it is held by " + locks[held].Who
		}
		if unknown != "" {
			return fmt.Errorf("the %s is a file, whose lock ends with the process that holds it: %s: wait until the process has ended, or end it", where, unknown)
		}
		_, err := fmt.Fprintf(process.Stdout, "The %s is a file, and no process holds its lock. Nothing was changed.\n", where)
		return err
	}
	err = s.Unlock(ctx, request)
	var unrecorded *scaler.UnrecordedError
	switch {
	case errors.As(err, &unrecorded):
		// The release that the user requested has succeeded, so the command does, too.
		fmt.Fprintf(process.Stderr, "numaform: %s: %s: keep the description of the lock above where you record incidents\n", where, term.Printable(err.Error()))
	case errors.Is(err, scaler.ErrNotLocked):
		_, err = fmt.Fprintf(process.Stdout, "The %s is not locked. Nothing was changed.\n", where)
		return err
	case err != nil:
		return fmt.Errorf("%s: %w", where, err)
	}
	_, err = fmt.Fprintf(process.Stdout, "The lock of the %s is released. The next apply finishes the change that was interrupted.\n", where)
	return err
}

// agree prints a lock, and returns what is known about its holder if it is to be released.
func (u *unlocking) agree(ctx context.Context, process Process, where string, held *state.LockedError, engines []int, known bool) (string, error) {
	if held.ID == "" {
		return "", errors.New("the lock ends with its holder's connection to the database, and cannot be released otherwise: " +
			"stop the holder; if its machine is gone, end its connection in the database")
	}
	holder, advice, alive := u.holder(ctx, held.Who, engines, known)
	since := "unknown"
	if !held.Created.IsZero() {
		since = fmt.Sprintf("%s, %s ago", held.Since(), topology.Age(time.Since(held.Created)))
	}
	w := newPrinter(process)
	w.printf("The %s is locked.\n", where)
	w.printf("  lock    %s\n  holder  %s\n  since   %s\n  for     %s\n", held.ID, held.Who, since, held.Operation)
	w.printf("  %s%s.\n", holder, advice)
	if w.err != nil {
		return "", w.err
	}
	if u.force {
		holder += " (released with --force)"
	}
	switch {
	case u.id != "" && u.id != held.ID:
		return "", fmt.Errorf("the lock has changed: its ID is now %s, not %s; nothing was released", held.ID, u.id)
	case alive && !u.force:
		return "", errors.New("the holder seems to run; nothing was released: wait until it has ended, or stop it. " +
			"If you are certain that it does not work on this state, add --force")
	case u.yes:
		return holder, nil
	case !atTerminal(process):
		return "", fmt.Errorf("the release requires confirmation, but stdin is not a terminal; nothing was released: "+
			"run the command in a terminal, or add %s --yes", held.ID)
	}
	yes, err := confirmed(ctx, process, "If the holder still runs, its changes can be lost. Release this lock?")
	if err == nil && !yes {
		err = errors.New("nothing was released")
	}
	return holder, err
}

// holder describes in a sentence whether the holder of a lock can still run, with advice for
// the user if that is unknown, and reports whether it seems to.
func (u *unlocking) holder(ctx context.Context, who string, engines []int, known bool) (text, advice string, alive bool) {
	name, host, named := strings.Cut(who, "@")
	self, err := os.Hostname()
	switch {
	case !named || err != nil:
		return "It is unknown whether the holder runs, because the backend does not report it", ": make sure that no apply runs anywhere", false
	case host == self:
		me, err := user.Current()
		switch {
		case !known || err != nil || me.Username != name && me.Uid != "0":
			return "The holder ran on this machine. It is unknown whether it still runs, because the processes of " + name + " cannot be listed", "", false
		case len(engines) > 0:
			pids := strings.Trim(fmt.Sprint(engines), "[]")
			return "The holder ran on this machine, where another numaform runs an engine for this state: processes " + pids, "", true
		}
		return "The holder ran on this machine, where no other numaform runs an engine for this state: it has ended", "", false
	}
	if c, _, err := u.open(); err == nil {
		ended, runs, err := operator.HolderPod(ctx, c, u.namespace, host)
		switch {
		case err == nil && ended != "":
			return "The holder ran in " + ended, "", false
		case err == nil && runs:
			return fmt.Sprintf("The holder is pod %s/%s, which can still run", u.namespace, host), "", true
		}
	}
	return "It is unknown whether the holder runs, because " + host + " is another machine", ": make sure that no apply runs there", false
}

// hostNamed returns the host with a name, which is HOST or REGION/HOST.
func hostNamed(name string, hosts []topology.HostID, regions []scaler.Region) (topology.HostID, error) {
	var host topology.HostID
	if strings.Contains(name, "/") {
		if err := host.UnmarshalText([]byte(name)); err != nil {
			return host, usageError{err}
		}
		return host, nil
	}
	matching := slices.DeleteFunc(slices.Clone(hosts), func(host topology.HostID) bool { return string(host.Host) != name })
	switch {
	case len(matching) == 1:
		return matching[0], nil
	case len(matching) == 0 && len(regions) == 1: // it can have only templates
		return topology.HostID{Region: regions[0].Name, Host: topology.HostName(name)}, nil
	}
	return host, usageError{fmt.Errorf("host %q: exists in several regions, or in none: use REGION/HOST", name)}
}
