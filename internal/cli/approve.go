package cli

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/state/guard"
)

// errDeclined is returned when a person does not approve a change.
var errDeclined = errors.New("not approved: nothing in Proxmox was changed")

// registerApproval adds the flags that approve a change without a terminal.
func (o *options) registerApproval(command *cobra.Command) {
	flags := command.Flags()
	flags.BoolVar(&o.autoApprove, "auto-approve", false, "do not ask; what the guard denies or wants approved is still refused")
	flags.StringVar(&o.approve, "approve", "", "approve exactly the change of this digest, which plan prints, if the guard wants a person to")
}

// digest identifies what the plans of a change do: it stays the same if they are made
// again from the same fleet and hosts. Plans without changes do not count.
func digest(shards []scaler.ShardPlan) string {
	sum := sha256.New()
	for i := range shards {
		shard := &shards[i]
		if shard.Plan == nil || !shard.Changes() {
			continue
		}
		fmt.Fprintf(sum, "%s %s\n", shard.Shard, shard.Plan.Digest)
		for _, asked := range []struct {
			to      string
			targets []guard.Target
		}{
			{"create", shard.Intent.Create}, {"delete", shard.Intent.Delete}, {"import", shard.Intent.Import}, {"update", shard.Intent.Update},
		} {
			for _, t := range slices.SortedFunc(slices.Values(asked.targets), func(a, b guard.Target) int { return cmp.Compare(a.Address, b.Address) }) {
				fmt.Fprintf(sum, "%s %s %d %s %s %s %v\n", asked.to, t.Address, t.VMID, t.Key, t.Host, t.Module, t.Incomplete)
			}
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// needsApproval reports whether the guard requires approval.
func needsApproval(shards []scaler.ShardPlan) bool {
	for i := range shards {
		if shards[i].Err == nil && shards[i].Verdict.Decision == guard.NeedsApproval {
			return true
		}
	}
	return false
}

// confirm asks the person at the terminal, and fails without a terminal. It returns who
// approved.
func (o *options) confirm(ctx context.Context, process Process, shards []scaler.ShardPlan) (string, error) {
	held := needsApproval(shards)
	if o.approve != "" {
		if got := digest(shards); got != o.approve {
			return "", fmt.Errorf("--approve %s: the change that would be made has the digest %s: look at it again; nothing was changed", o.approve, got)
		}
		return actor() + " by digest", nil
	}
	if o.autoApprove && !held {
		return "", nil
	}
	file, ok := process.Stdin.(interface{ Fd() uintptr })
	if !ok || !isatty.IsTerminal(file.Fd()) {
		if held {
			return "", fmt.Errorf("this change needs approval and there is no terminal to ask at: nothing was changed: "+
				"run it at a terminal, or again with --approve %s", digest(shards))
		}
		return "", errors.New("this change has to be confirmed and there is no terminal to ask at: nothing was changed: " +
			"run it at a terminal, or with --auto-approve")
	}
	fmt.Fprint(process.Stderr, "Apply exactly this? Only yes is taken for yes: ")
	answer, err := readLine(ctx, process.Stdin)
	if err != nil {
		return "", fmt.Errorf("reading the answer: %w", err)
	}
	if strings.TrimSpace(answer) != "yes" {
		return "", errDeclined
	}
	return actor(), nil
}

// readLine reads a line, or returns when ctx ends: the read cannot be interrupted, so it
// then continues until the process ends.
func readLine(ctx context.Context, from io.Reader) (string, error) {
	type read struct {
		line string
		err  error
	}
	done := make(chan read, 1)
	go func() {
		line, err := bufio.NewReader(from).ReadString('\n')
		done <- read{line, err}
	}()
	select {
	case r := <-done:
		return r.line, r.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}
