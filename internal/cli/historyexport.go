package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/spf13/cobra"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/translog"
	"github.com/numaform/numaform/topology"
)

// exportOptions are the flags of history export.
type exportOptions struct {
	historySource
	since time.Duration
}

func newHistoryExport(process Process) *cobra.Command {
	var o exportOptions
	command := &cobra.Command{
		Use:   "export [CHANGE…]",
		Short: "Print a signed in-toto statement for each change",
		Long: "Print a line for each change: a DSSE envelope with an in-toto statement. The subjects of the statement are the digests of the\n" +
			"saved plans and of the records; the predicate is the record of the change, with its approval and its outcome. The signature\n" +
			"is by the key that numaform history key prints. Without arguments, all changes that this installation recorded are printed.",
		Example: "  numaform history export --since 24h >>evidence.jsonl\n" +
			"  numaform history export 20261121T101500Z-4f2a91c7",
		Args: arguments(0, anyNumber),
		RunE: func(command *cobra.Command, args []string) error { return o.run(command.Context(), process, args) },
	}
	o.register(command.Flags())
	command.Flags().DurationVar(&o.since, "since", 0, "print only changes of this period, such as 24h; 0 means all")
	return command
}

func (o *exportOptions) run(ctx context.Context, process Process, ids []string) error {
	if o.since < 0 {
		return usageError{fmt.Errorf("--since %s: must not be negative: set it to an age such as 24h, or to 0 for all changes", o.since)}
	}
	_, opened, err := o.open(process)
	if err != nil {
		return err
	}
	entries, err := readHistory(ctx, process, opened, o.since)
	if err != nil {
		return err
	}
	signer, err := opened.Signer(ctx)
	if err != nil {
		return err
	}
	envelopes, err := dsse.NewEnvelopeSigner(statementSigner{signer})
	if err != nil {
		return err
	}
	missing := slices.Clone(ids)
	unverified := 0
	for i := range entries {
		e := &entries[i]
		if len(ids) > 0 && !slices.Contains(ids, e.Change.ID) {
			continue
		}
		missing = slices.DeleteFunc(missing, func(id string) bool { return id == e.Change.ID })
		if !e.Verified || e.Unreadable != "" || e.Outcome != nil && !e.OutcomeVerified {
			unverified++
			continue
		}
		if err := export(ctx, process, envelopes, e); err != nil {
			return err
		}
	}
	switch {
	case len(missing) > 0:
		return fmt.Errorf("the history contains no change %q: to list all changes, run numaform history", missing[0])
	case unverified > 0 && len(ids) > 0:
		return fmt.Errorf("%s cannot be verified, so numaform signs no statement about it: run numaform history verify", topology.Count(unverified, "change"))
	case unverified > 0:
		fmt.Fprintf(process.Stderr, "numaform: left out %s that cannot be verified: run numaform history verify\n", topology.Count(unverified, "change"))
	}
	return nil
}

// export prints the envelope of a change as one line.
func export(ctx context.Context, process Process, envelopes *dsse.EnvelopeSigner, e *audit.Entry) error {
	text, err := e.Statement()
	if err != nil {
		return err
	}
	envelope, err := envelopes.SignPayload(ctx, audit.StatementMedia, text)
	if err != nil {
		return fmt.Errorf("signing the statement about change %s: %w", e.Change.ID, err)
	}
	return json.NewEncoder(process.Stdout).Encode(envelope)
}

// statementSigner signs the envelopes of statements with the key of the history. DSSE prefixes
// what is signed, so that it is never the text of a checkpoint.
type statementSigner struct{ *translog.Signer }

// Sign returns the signature of an encoded payload.
func (s statementSigner) Sign(_ context.Context, data []byte) ([]byte, error) {
	return s.Signer.Sign(data), nil
}

// KeyID returns the public key.
func (s statementSigner) KeyID() (string, error) { return s.Key().String(), nil }
