package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/internal/term"
	"github.com/numaform/numaform/internal/translog"
	"github.com/numaform/numaform/topology"
)

// historySource are the flags that select a history.
type historySource struct {
	config  string
	cluster operator.Kubeconfig
	// from is a clone or a directory of the fleet, with the branch and the subdirectory.
	from, branch, subdir string
}

func (o *historySource) register(flags *pflag.FlagSet) {
	registerConfig(flags, &o.config)
	registerKubeconfig(flags, &o.cluster, "kubeconfig of the cluster, if the fleet or the key is stored in it")
}

func (o *historySource) registerFrom(flags *pflag.FlagSet) {
	flags.StringVar(&o.from, "from", "", "clone or directory with the fleet; without it, the fleet of numaform.yaml")
	flags.StringVar(&o.branch, "branch", "main", "branch of the fleet in the clone of --from")
	flags.StringVar(&o.subdir, "subdir", "", "directory of the fleet in the clone of --from")
}

// open opens the configured fleet.
func (o *historySource) open(process Process) (*operator.Config, *store.Sealed, error) {
	config, err := loadConfig(process, o.config)
	if err != nil {
		return nil, nil, err
	}
	opened, err := config.OpenStore(process.Environ, o.cluster)
	return config, opened, err
}

// gcPercent is the growth of the heap before a garbage collection while a history is read.
const gcPercent = 400

// history returns the complete history of --from, without a key or a network, as audit.Verify
// needs it.
func (o *historySource) history(ctx context.Context) (entries []audit.Entry, err error) {
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	path, err := filepath.Abs(o.from)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(path, ".git")); err == nil {
		path = filepath.Join(path, ".git")
	} else if _, err := os.Stat(filepath.Join(path, "objects")); err != nil {
		if _, err := os.Stat(filepath.Join(path, store.HistoryDir)); err != nil {
			return nil, fmt.Errorf("--from %s: neither a git repository nor the directory of a fleet with a history: %w", o.from, err)
		}
		return store.NewDirectory(path).Proofs(ctx)
	}
	clone, err := os.MkdirTemp("", "numaform-history-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(clone)) }()
	config := store.GitConfig{Clone: clone, Dir: path, Branch: o.branch, Subdir: o.subdir}
	_, complete := os.Stat(filepath.Join(path, "objects"))
	_, borrows := os.Stat(filepath.Join(path, "objects", "info", "alternates"))
	_, checkout := os.Lstat(filepath.Join(path, ".git"))
	// The objects of a further worktree, or of a clone with --reference, are elsewhere. A checkout
	// would be read from its origin.
	if complete != nil || borrows == nil || checkout == nil {
		config.Dir, config.Remote = "", strings.TrimSuffix(path, "/.git")
	}
	git, err := store.NewGit(config)
	if err != nil {
		return nil, err
	}
	if entries, err = git.Proofs(ctx); err != nil {
		return nil, err
	}
	if len(entries) > 0 && !slices.ContainsFunc(entries, func(e audit.Entry) bool { return e.Outcome != nil }) {
		return nil, fmt.Errorf("--from %s: the clone has no outcomes: run git -C %[1]s fetch origin 'refs/notes/numaform:refs/notes/numaform'", o.from)
	}
	return entries, nil
}

// newHistoryParts returns the subcommands of history.
func newHistoryParts(process Process) []*cobra.Command {
	return []*cobra.Command{
		newHistoryVerify(process), newHistoryKey(process), newHistoryCheckpoint(process), newHistoryWitness(process), newHistoryExport(process),
		newHistoryAccept(process, audit.KindAccept), newHistoryAccept(process, audit.KindAcceptRestore),
	}
}

// verifyOptions are the flags of history verify.
type verifyOptions struct {
	historySource
	keys, witnesses, checkpoints []string
	since, output                string
}

func newHistoryVerify(process Process) *cobra.Command {
	var o verifyOptions
	command := &cobra.Command{
		Use:   "verify",
		Short: "Check that no record of the history was changed, removed, moved or forged",
		Long: "Check the complete history, and name each record that was changed, removed, moved or forged. With --from and --key,\n" +
			"the command needs only a clone of the fleet and the key that numaform history key prints: no cluster, no network and no\n" +
			"secret. Records that were removed from the end are found with a later checkpoint (--checkpoint), or if you know that there\n" +
			"was a change since some time (--since). The command fails if there are faults that no user accepted, or if the history\n" +
			"contradicts a checkpoint of --checkpoint.",
		Args: arguments(0, 0),
		RunE: func(command *cobra.Command, _ []string) error { return o.run(command.Context(), process) },
	}
	flags := command.Flags()
	o.register(flags)
	o.registerFrom(flags)
	registerOutput(flags, &o.output)
	flags.StringArrayVar(&o.keys, "key", nil, "public key of an installation that wrote the history; several are allowed")
	flags.StringArrayVar(&o.checkpoints, "checkpoint", nil, "file with signed checkpoints; several are allowed")
	flags.StringArrayVar(&o.witnesses, "witness", nil, "public key of a witness that must have signed a checkpoint of --checkpoint")
	flags.StringVar(&o.since, "since", "", "time, as in 2026-11-28T12:00:00Z, after which the history must have a record")
	return command
}

// parseKeys returns the public keys of --key.
func parseKeys(texts []string) ([]*translog.Key, error) {
	var keys []*translog.Key
	for _, text := range texts {
		key, err := translog.ParseKey(text)
		if err != nil {
			return nil, usageError{fmt.Errorf("--key: %w", err)}
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// readCheckpoints returns the checkpoints in files.
func readCheckpoints(paths []string) ([][]byte, error) {
	var list [][]byte
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("--checkpoint: %w", err)
		}
		list = append(list, translog.Split(content)...)
	}
	return list, nil
}

func (o *verifyOptions) run(ctx context.Context, process Process) error {
	evidence := audit.Evidence{}
	var err error
	if o.since != "" {
		if evidence.Since, err = time.Parse(time.RFC3339, o.since); err != nil {
			return usageError{fmt.Errorf("--since %q: must be a time such as 2026-11-28T12:00:00Z", o.since)}
		}
	}
	if evidence.Checkpoints, err = readCheckpoints(o.checkpoints); err != nil {
		return err
	}
	if evidence.Keys, err = parseKeys(o.keys); err != nil {
		return err
	}
	if err := o.checkWitnesses(process, evidence.Checkpoints); err != nil {
		return err
	}
	report, err := o.verify(ctx, process, evidence)
	if err != nil {
		return err
	}
	if o.output != "text" {
		err = printData(process, o.output, report)
	} else {
		w := newPrinter(process)
		w.verified(report)
		err = w.err
	}
	faults := slices.DeleteFunc(slices.Clone(report.Findings), func(f audit.Finding) bool {
		contradicts := f.Checkpoint != "" && len(evidence.Checkpoints) > 0
		return f.Accepted != "" && f.AcceptedAs != audit.KindContinue && !contradicts
	})
	if err == nil && len(faults) > 0 {
		err = fmt.Errorf("the history has %s", topology.Count(len(faults), "fault"))
	}
	return err
}

// checkWitnesses requires that each witness signed a checkpoint.
func (o *verifyOptions) checkWitnesses(process Process, checkpoints [][]byte) error {
	for _, text := range o.witnesses {
		witness, err := translog.ParseWitnessKey(text)
		if err != nil {
			return usageError{fmt.Errorf("--witness: %w", err)}
		}
		signed := false
		for _, checkpoint := range checkpoints {
			if at, err := witness.Cosigned(checkpoint); err == nil {
				signed = true
				fmt.Fprintf(process.Stderr, "numaform: witness %s signed a checkpoint at %s\n", witness.Name(), at.Format(time.RFC3339))
			}
		}
		if !signed {
			return fmt.Errorf("--witness: witness %s signed no checkpoint of --checkpoint", witness.Name())
		}
	}
	return nil
}

// verify verifies the history of --from, or of the configured fleet.
func (o *verifyOptions) verify(ctx context.Context, process Process, evidence audit.Evidence) (*audit.Report, error) {
	if o.from != "" {
		if len(evidence.Keys) == 0 {
			return nil, usageError{errors.New("--from requires --key: numaform history key prints the key of an installation")}
		}
		entries, err := o.history(ctx)
		if err != nil {
			return nil, err
		}
		report := audit.Verify(entries, evidence)
		if len(report.Logs) == 0 {
			return nil, fmt.Errorf("--from %s: the history has no record that a given key signed", o.from)
		}
		return report, nil
	}
	config, opened, err := o.open(process)
	if err != nil {
		return nil, err
	}
	checkpoints, err := config.Checkpoints(ctx, process.Environ)
	if err != nil {
		return nil, err
	}
	evidence.Checkpoints = append(evidence.Checkpoints, checkpoints...)
	found, err := opened.Verify(ctx, evidence)
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, errors.New("this installation recorded no change yet, so it has no key: pass the keys of others with --key")
	}
	return found.Report, nil
}

// verified prints a report.
func (w *printer) verified(report *audit.Report) {
	if len(report.Logs) == 0 {
		w.printf("The history has no sealed records.\n")
	}
	for i := range report.Logs {
		log := &report.Logs[i]
		w.printf("%s: complete up to %d records, signed at %s (change %s)\n", log.Log, log.Size, log.Signed.Format(time.RFC3339), log.Change)
		if log.Imported > 0 {
			w.printf("  the first %d are older than the log, which proves only that they have not changed since %s\n", log.Imported, log.Began.Format(time.RFC3339))
		}
	}
	for _, f := range report.Unwritten {
		w.printf("note: %s\n", f.Text)
	}
	for _, f := range report.Findings {
		accepted := ""
		switch {
		case f.AcceptedAs == audit.KindContinue:
			accepted = fmt.Sprintf(" (the controller went on by itself in change %s)", f.Accepted)
		case f.Accepted != "":
			accepted = fmt.Sprintf(" (accepted by change %s)", f.Accepted)
		}
		w.printf("%s: %s%s\n", w.Paint(term.Red, string(f.Fault)), f.Text, accepted)
	}
}

// newHistoryPrint returns a command that prints something about the configured history.
func newHistoryPrint(process Process, command cobra.Command, text func(ctx context.Context, opened *store.Sealed) (string, error)) *cobra.Command {
	var o historySource
	command.Args = arguments(0, 0)
	command.RunE = func(command *cobra.Command, _ []string) error {
		_, opened, err := o.open(process)
		if err != nil {
			return err
		}
		printed, err := text(command.Context(), opened)
		if err != nil {
			return err
		}
		_, err = fmt.Fprint(process.Stdout, printed)
		return err
	}
	o.register(command.Flags())
	return &command
}

func newHistoryKey(process Process) *cobra.Command {
	return newHistoryPrint(process, cobra.Command{
		Use:   "key",
		Short: "Print the public key that verifies the history",
		Long: "Print the public key that verifies the records of this installation. It is no secret: give it to whoever verifies the\n" +
			"history with numaform history verify --key.",
	}, func(ctx context.Context, opened *store.Sealed) (string, error) {
		key, err := opened.PublicKey(ctx)
		if err == nil && key == nil {
			err = errors.New("this installation has no key yet: its first change creates one")
		}
		if err != nil {
			return "", err
		}
		return key.String() + "\n", nil
	})
}

func newHistoryCheckpoint(process Process) *cobra.Command {
	return newHistoryPrint(process, cobra.Command{
		Use:   "checkpoint",
		Short: "Print the signed checkpoint of the history",
		Long: "Print the signed checkpoint of each log of the history (C2SP tlog-checkpoint). Keep it where writers of the fleet have\n" +
			"no write access: with it, numaform history verify finds each record before it that was changed or removed later.",
	}, func(ctx context.Context, opened *store.Sealed) (string, error) {
		found, err := opened.Audit(ctx)
		switch {
		case err != nil:
			return "", err
		case found == nil || len(found.Logs) == 0:
			return "", errors.New("the history has no sealed records yet")
		case found.Rewritten != nil:
			return "", found.Rewritten
		}
		var parts []string
		for i := range found.Logs {
			parts = append(parts, found.Logs[i].Checkpoint)
		}
		return strings.Join(parts, "\n"), nil
	})
}

// witnessOptions are the flags of history witness.
type witnessOptions struct {
	historySource
	keys                  []string
	keyFile, newKey, seen string
}

func newHistoryWitness(process Process) *cobra.Command {
	var o witnessOptions
	command := &cobra.Command{
		Use:   "witness",
		Short: "Verify a history from another machine, and sign its checkpoints with a key of that machine",
		Long: "Verify the history of --from, and check that it contains all that this witness has signed before. Then sign its checkpoints\n" +
			"with the key of the witness (C2SP tlog-cosignature), store them in --seen, and print them. Run it regularly on a machine\n" +
			"without access for writers of the fleet: what it signed cannot be rewritten unnoticed, even with the key of the\n" +
			"installation. --new-key NAME creates the key of the witness and prints its public key; NAME is a URL without schema, such\n" +
			"as witness.example.com/numaform.",
		Args: arguments(0, 0),
		RunE: func(command *cobra.Command, _ []string) error {
			if o.keyFile == "" {
				return usageError{errors.New("--key-file is missing: set it to the file with the key of the witness")}
			}
			if o.newKey != "" {
				return o.create(process)
			}
			return o.witness(command.Context(), process)
		},
	}
	flags := command.Flags()
	o.registerFrom(flags)
	flags.StringArrayVar(&o.keys, "key", nil, "public key of an installation that wrote the history; several are allowed")
	flags.StringVar(&o.keyFile, "key-file", "", "file with the private key of the witness")
	flags.StringVar(&o.newKey, "new-key", "", "create the key of a witness with this name in --key-file, and print its public key")
	flags.StringVar(&o.seen, "seen", "", "file with the checkpoints that the witness has signed; default: the name of --key-file with the suffix .seen")
	return command
}

// create creates the key of the witness.
func (o *witnessOptions) create(process Process) error {
	witness, err := translog.NewWitness(o.newKey)
	if err != nil {
		return usageError{fmt.Errorf("--new-key: %w", err)}
	}
	file, err := os.OpenFile(o.keyFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("creating the key of the witness: %w", err)
	}
	_, err = fmt.Fprintln(file, witness.Private())
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("creating the key of the witness: %w", err)
	}
	_, err = fmt.Fprintln(process.Stdout, witness)
	return err
}

// witness verifies the history and signs its checkpoints.
func (o *witnessOptions) witness(ctx context.Context, process Process) error {
	if o.from == "" || len(o.keys) == 0 {
		return usageError{errors.New("--from or --key is missing: a witness needs a clone of the fleet, and the keys that numaform history key prints")}
	}
	content, err := os.ReadFile(o.keyFile)
	if err != nil {
		return fmt.Errorf("reading the key of the witness: %w", err)
	}
	witness, err := translog.ParseWitness(string(content))
	if err != nil {
		return fmt.Errorf("--key-file %s: %w", o.keyFile, err)
	}
	seen := o.seen
	if seen == "" {
		seen = o.keyFile + ".seen"
	}
	evidence := audit.Evidence{}
	if content, err = os.ReadFile(seen); err == nil {
		evidence.Checkpoints = translog.Split(content)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading what the witness has signed: %w", err)
	}
	if evidence.Keys, err = parseKeys(o.keys); err != nil {
		return err
	}
	entries, err := o.history(ctx)
	if err != nil {
		return err
	}
	report := audit.Verify(entries, evidence)
	// An acceptance does not help: a thief of the key can sign one.
	if wrong := slices.IndexFunc(report.Findings, func(f audit.Finding) bool { return f.Checkpoint != "" || f.Accepted == "" }); wrong >= 0 {
		return fmt.Errorf("the history has %s, and is not signed: %s: %s; if you know the cause, remove %s to begin again",
			topology.Count(len(report.Findings), "fault"), report.Findings[wrong].Fault, report.Findings[wrong].Text, seen)
	}
	var signed []byte
	for i := range report.Logs {
		cosigned, err := witness.Cosign([]byte(report.Logs[i].Checkpoint), time.Now())
		if err != nil {
			return err
		}
		if i > 0 {
			signed = append(signed, '\n')
		}
		signed = append(signed, cosigned...)
	}
	if len(signed) == 0 {
		return errors.New("the history has no sealed records yet")
	}
	if err := renameio.WriteFile(seen, signed, 0o644); err != nil {
		return fmt.Errorf("storing what the witness has signed: %w", err)
	}
	_, err = process.Stdout.Write(signed)
	return err
}

// acceptOptions are the flags of history accept and accept-restore.
type acceptOptions struct {
	historySource
	kind        audit.Kind
	reason      string
	checkpoints []string
}

func newHistoryAccept(process Process, kind audit.Kind) *cobra.Command {
	o := acceptOptions{kind: kind}
	command := &cobra.Command{
		Use:   "accept",
		Short: "Record why to go on although the history was rewritten",
		Long: "Record, signed, that you know why the history was rewritten: the record names the faults that numaform history verify\n" +
			"shows now, and --reason. The controller then continues. Later faults are reported again.",
		Args: arguments(0, 0),
		RunE: func(command *cobra.Command, _ []string) error { return o.run(command.Context(), process) },
	}
	if kind == audit.KindAcceptRestore {
		command.Use = "accept-restore"
		command.Short = "Record that the fleet was restored to an older state"
		command.Long = "Record, signed, that the fleet's store was restored to an older state, such as from a backup of etcd or of the repository:\n" +
			"the record names the missing records and --reason. The controller then continues. Before you run it, compare the\n" +
			"fleet with Proxmox (numaform drift, numaform status): VMs that were created after the backup are named there."
	}
	flags := command.Flags()
	o.register(flags)
	flags.StringVar(&o.reason, "reason", "", "why to go on, for the history")
	flags.StringArrayVar(&o.checkpoints, "checkpoint", nil, "file with signed checkpoints from another place; several are allowed")
	return command
}

func (o *acceptOptions) run(ctx context.Context, process Process) error {
	if strings.TrimSpace(o.reason) == "" || strings.ContainsAny(o.reason, "\r\n") {
		return usageError{errors.New("--reason is missing or has several lines: set it to a line that explains why to go on")}
	}
	config, opened, err := o.open(process)
	if err != nil {
		return err
	}
	checkpoints, err := readCheckpoints(o.checkpoints)
	if err != nil {
		return err
	}
	elsewhere, err := config.Checkpoints(ctx, process.Environ)
	if err != nil {
		return err
	}
	checkpoints = append(checkpoints, elsewhere...)
	found, err := opened.Audit(ctx, checkpoints...)
	if err != nil {
		return err
	}
	var findings []audit.Finding
	if found != nil {
		findings = found.Open()
	}
	switch {
	case o.kind == audit.KindAccept && len(findings) == 0:
		return errors.New("the history has no fault to accept")
	case o.kind == audit.KindAccept && found.Rewritten != nil && found.Rewritten.Older:
		return errors.New("the fleet's store is older than the history: if it was restored, run numaform history accept-restore --reason TEXT")
	case found != nil:
		opened.Hold(found.Rewritten)
	}
	settings, err := config.ScalerConfig(ctx, process.Environ, o.cluster, false)
	if err != nil {
		return err
	}
	settings.Store, settings.Regions, settings.Actor, settings.Version = opened, config.Regions(), actor(), process.Version
	id, err := scaler.New(*settings).AcceptHistory(ctx, o.kind, o.reason, findings)
	if err != nil {
		return err
	}
	fmt.Fprintf(process.Stdout, "accepted %s in change %s\n", topology.Count(len(findings), "fault"), id)
	return nil
}

// checkpointStatus says which places outside the fleet's store have checkpoints of the
// history, or returns "" if no record has a seal.
func checkpointStatus(ctx context.Context, process Process, config *operator.Config, entries []audit.Entry) (string, error) {
	if !slices.ContainsFunc(entries, func(e audit.Entry) bool { return e.Change.Seal != nil }) {
		return "", nil
	}
	places, err := config.CheckpointPlaces(process.Environ, nil, "")
	if err != nil {
		return "", err
	}
	var texts []string
	for _, place := range places {
		list, err := place.Load(ctx)
		switch {
		case err != nil:
			texts = append(texts, fmt.Sprintf("%s has no checkpoint: %v", place, err))
		case len(list) == 0:
			texts = append(texts, fmt.Sprintf("%s has no checkpoint: the controller copies it there when it verifies the history", place))
		default:
			texts = append(texts, fmt.Sprintf("checkpoints are in %s", place))
		}
	}
	if len(texts) == 0 {
		return "no place outside the fleet's store receives checkpoints by this configuration: set history.checkpoint_dir or history.checkpoint_remote, " +
			"or run numaform history witness on another machine", nil
	}
	return strings.Join(texts, "; "), nil
}
