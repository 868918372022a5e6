package cli

import (
	"bytes"
	"context"
	"errors"
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
// error. It prints the output of show if it changed. In a terminal, the output replaces the
// previous one and includes messages. Otherwise it follows the previous one, and messages go
// to stderr, so that programs can parse stdout. An error of the first call is returned; later
// errors are printed, and run continues.
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
	var last, printed, warned []byte
	for first := true; ; first = false {
		var out, apart bytes.Buffer
		messages := &apart
		if terminal.Live {
			messages = &out
		}
		each := process
		each.Stdout, each.Stderr = &out, messages
		err := show(ctx, each, terminal)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			_, writeErr := process.Stderr.Write(append(out.Bytes(), apart.Bytes()...))
			return errors.Join(err, writeErr)
		case err != nil:
			out.Reset()
			out.Write(last)
			if terminal.Live {
				out.WriteByte('\n')
			}
			fmt.Fprintf(messages, "numaform: %v: trying again\n", err)
		default:
			last = out.Bytes()
		}
		if !bytes.Equal(apart.Bytes(), warned) {
			warned = apart.Bytes()
			if _, err := process.Stderr.Write(warned); err != nil {
				return err
			}
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
