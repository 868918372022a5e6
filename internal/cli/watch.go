package cli

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/pflag"

	"github.com/numaform/numaform/internal/term"
)

// watching are the flags of a command that can repeat.
type watching struct {
	watch    bool
	interval time.Duration
}

// leastInterval is the minimum interval of --watch.
const leastInterval = time.Second

func (o *watching) register(flags *pflag.FlagSet) {
	flags.BoolVarP(&o.watch, "watch", "w", false, "print again on each change, until interrupted with Ctrl-C")
	flags.DurationVar(&o.interval, "interval", 5*time.Second, "interval of --watch")
}

// run calls show once or, with --watch, at each interval until ctx is canceled, which is no
// error. It prints the output of show if it changed: in a terminal in place of the previous
// output, otherwise below it. An error of the first call is returned; later errors are
// printed, and run continues.
func (o *watching) run(ctx context.Context, process Process, show func(ctx context.Context, process Process, terminal term.Terminal) error) error {
	terminal := process.terminal(process.Stdout)
	if !o.watch {
		return show(ctx, process, terminal)
	}
	if o.interval < leastInterval {
		return usageError{fmt.Errorf("--interval %s: must be at least %s", o.interval, leastInterval)}
	}
	ticker := time.NewTicker(o.interval)
	defer ticker.Stop()
	var last, printed []byte
	for first := true; ; first = false {
		var out bytes.Buffer
		each := process
		each.Stdout, each.Stderr = &out, &out // messages are part of the output
		err := show(ctx, each, terminal)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			_, _ = process.Stderr.Write(out.Bytes())
			return err
		case err != nil:
			out.Reset()
			out.Write(last)
			fmt.Fprintf(&out, "\nnumaform: %v: trying again\n", err)
		default:
			last = out.Bytes()
		}
		if !bytes.Equal(out.Bytes(), printed) {
			lead := ""
			switch {
			case terminal.Live:
				lead = ansi.EraseEntireDisplay + ansi.CursorHomePosition
			case !first:
				lead = "\n"
			}
			if _, err := process.Stdout.Write(append([]byte(lead), out.Bytes()...)); err != nil {
				return err
			}
			printed = out.Bytes()
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}
