package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/numaform/numaform/internal/notify"
	"github.com/numaform/numaform/internal/operator"
)

// notifyTimeout limits the attempt to send one test message.
const notifyTimeout = 30 * time.Second

// newNotify returns the command notify.
func newNotify(process Process) *cobra.Command {
	parent := &cobra.Command{Use: "notify", Short: "Test the targets of notifications"}
	var path string
	test := &cobra.Command{
		Use:   "test [TARGET...]",
		Short: "Send a test message to targets of notifications",
		Long: "Send a test message to each target in notifications of numaform.yaml, or to the named ones. " +
			"It exits with 1 if a message could not be sent. It changes nothing.",
		Example: "  numaform notify test                               # all targets\n" +
			"  numaform notify test ops                           # one target",
		Args: arguments(0, -1),
		RunE: func(command *cobra.Command, names []string) error {
			return testTargets(command.Context(), process, path, names)
		},
	}
	registerConfig(test.Flags(), &path)
	parent.AddCommand(test)
	return parent
}

func testTargets(ctx context.Context, process Process, path string, names []string) error {
	config, err := loadConfig(process, path)
	if err != nil {
		return err
	}
	targets := config.Notifications.Targets
	known := make([]string, len(targets))
	for i := range targets {
		known[i] = targets[i].Name
	}
	if len(targets) == 0 {
		return errors.New("numaform.yaml has no targets of notifications: add one under notifications.targets, see docs/notifications.md")
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return usageError{fmt.Errorf("unknown target %q: must be one of %s", name, strings.Join(known, ", "))}
		}
	}
	w := newPrinter(process)
	failed := false
	for i := range targets {
		if len(names) > 0 && !slices.Contains(names, targets[i].Name) {
			continue
		}
		err := testTarget(ctx, config, process.Environ, &targets[i])
		if failed = failed || err != nil; err != nil {
			w.printf("failed  %s: %v\n", targets[i].Name, err)
			continue
		}
		w.printf("sent    %s\n", targets[i].Name)
	}
	if w.err == nil && failed {
		return exitError{ExitFailed}
	}
	return w.err
}

func testTarget(ctx context.Context, config *operator.Config, environ []string, target *notify.Target) error {
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	return target.Send(ctx, notify.TestMessage(config.ClusterID, clock.RealClock{}.Now()), config.Redact(environ))
}
