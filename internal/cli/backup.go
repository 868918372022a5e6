package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/numaform/numaform/internal/approval"
	"github.com/numaform/numaform/internal/backup"
	"github.com/numaform/numaform/internal/control"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/topology"
)

// backupAttempts limits how often a fleet is read for a backup while it changes.
const backupAttempts = 5

// maxPassphrase limits the size of a file with a passphrase.
const maxPassphrase = 4096

// backupOptions are the flags of backup.
type backupOptions struct {
	clusterOptions

	config, file, passphrase string
	recipients               []string
	plain                    bool
}

func newBackup(process Process) *cobra.Command {
	var o backupOptions
	command := &cobra.Command{
		Use:   "backup -o FILE",
		Short: "Write a backup of the fleet, its history with its key, and the states",
		Long: "Write one file with the fleet's files, its history, the key of the history, the states of all hosts and templates and, for a cluster, the ConfigMaps " +
			control.ConfigMapName + " and " + approval.LedgerName + ". Because it contains the key and the states, choose how it is encrypted: for public keys of age, with a passphrase, " +
			"or not at all, if you encrypt the file elsewhere. The controller may run. The command changes nothing.",
		Example: "  numaform backup -o fleet.age --recipient age1…                 # age-keygen creates a key\n" +
			"  numaform backup -o fleet.age --passphrase-file passphrase\n" +
			"  numaform backup --plain -o - | restic backup --stdin --stdin-filename fleet.tar.gz",
		RunE: func(command *cobra.Command, _ []string) error { return o.run(command.Context(), process) },
	}
	flags := command.Flags()
	registerConfig(flags, &o.config)
	o.register(flags)
	flags.StringVarP(&o.file, "file", "o", "", "file to write, which must not exist; - writes to stdout")
	flags.StringArrayVar(&o.recipients, "recipient", nil, "encrypt for this public `KEY` of age (age1…); repeatable")
	flags.StringVar(&o.passphrase, "passphrase-file", "", "encrypt with the passphrase in this file")
	flags.BoolVar(&o.plain, "plain", false, "do not encrypt the backup")
	return command
}

// encryption returns for whom a backup is encrypted.
func (o *backupOptions) encryption() ([]age.Recipient, error) {
	choices := 0
	for _, chosen := range []bool{len(o.recipients) > 0, o.passphrase != "", o.plain} {
		if chosen {
			choices++
		}
	}
	switch {
	case o.file == "":
		return nil, usageError{errors.New("-o is missing: set it to the file to write, or to - for stdout")}
	case choices == 0:
		return nil, usageError{errors.New("a backup contains the key of the history and the states: encrypt it with --recipient or --passphrase-file, or set --plain if you encrypt the file elsewhere")}
	case choices > 1:
		return nil, usageError{errors.New("--recipient, --passphrase-file and --plain are mutually exclusive: choose one")}
	case o.passphrase != "":
		phrase, err := readPassphrase(o.passphrase)
		if err != nil {
			return nil, err
		}
		recipient, err := age.NewScryptRecipient(phrase)
		return []age.Recipient{recipient}, err
	}
	var recipients []age.Recipient
	for _, key := range o.recipients {
		found, err := age.ParseRecipients(strings.NewReader(key))
		if err != nil {
			return nil, usageError{fmt.Errorf("--recipient %q: %w: it must be a public key that age-keygen -y prints", key, err)}
		}
		recipients = append(recipients, found...)
	}
	return recipients, nil
}

// readPassphrase reads a passphrase: the first line of a file.
func readPassphrase(path string) (string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading --passphrase-file: %w", err)
	}
	line, rest, _ := bytes.Cut(content, []byte("\n"))
	phrase := strings.TrimRight(string(line), "\r")
	if phrase == "" || len(content) > maxPassphrase || len(bytes.TrimSpace(rest)) > 0 {
		return "", fmt.Errorf("reading --passphrase-file: %s must have one line with the passphrase", path)
	}
	return phrase, nil
}

func (o *backupOptions) run(ctx context.Context, process Process) (err error) {
	recipients, err := o.encryption()
	if err != nil {
		return err
	}
	settings, err := loadConfig(process, o.config)
	if err != nil {
		return err
	}
	var key []byte // the controller's, which has no fleet in a directory
	inDirectory := !settings.Fleet.InGit() && settings.Fleet.ConfigMap == (operator.ConfigMap{})
	if !inDirectory && o.inCluster(process.Environ, settings) {
		if key, err = o.controllerKey(ctx, process.Environ, settings); err != nil {
			return explained(err, backupRole)
		}
	}
	if key != nil && settings.Fleet.InGit() {
		o.kubeconfig.Namespace = o.namespace
	}
	config, err := settings.ScalerConfig(ctx, process.Environ, o.kubeconfig, true)
	if err != nil {
		return err
	}
	config.Regions = settings.Regions()
	b := &backup.Backup{ClusterID: settings.ClusterID, Version: process.Version, Created: time.Now().UTC().Truncate(time.Second)}
	unread, err := read(ctx, config, b)
	if err != nil {
		return err
	}
	if len(b.Content.Files)+len(b.Content.Records) == 0 {
		return o.noFleet(settings)
	}
	b.KeyInCluster = key != nil && bytes.Equal(key, b.Key)
	if o.inCluster(process.Environ, settings) {
		_, k, err := o.open()
		if err == nil {
			b.ConfigMaps, err = clusterState(ctx, k, o.namespace)
		}
		if err != nil {
			return explained(err, backupRole)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(b.Content.Unread)) {
		fmt.Fprintf(process.Stderr, "numaform: the backup lacks a record of the history: %v\n", b.Content.Unread[id])
	}
	for _, problem := range unread {
		fmt.Fprintf(process.Stderr, "numaform: the backup lacks a state, and a restore would import its VMs: %v\n", problem)
	}
	if b.Key == nil && len(b.Content.Records) > 0 {
		fmt.Fprintln(process.Stderr, "numaform: the backup lacks the key of the history, without which all restored records are unverified: "+
			"if a controller changes the fleet, add --kubeconfig, and --namespace with its namespace")
	}
	return o.write(process, b, settings.FleetPlace(), recipients)
}

// backupRole is what backup requires in a cluster.
const backupRole = "get of the ConfigMaps and Secrets in numaform's namespace (see --namespace)"

// write writes a backup of the fleet in place to the file, or to stdout.
func (o *backupOptions) write(process Process, b *backup.Backup, place string, recipients []age.Recipient) error {
	if o.file == "-" {
		if err := backup.Write(process.Stdout, b, recipients...); err != nil {
			return err
		}
		_, err := fmt.Fprintf(process.Stderr, "numaform: wrote the fleet in %s: %s\n", place, summaryOf(b))
		return err
	}
	if err := writeBackup(o.file, func(file *os.File) error { return backup.Write(file, b, recipients...) }); err != nil {
		return err
	}
	w := &printer{w: process.Stdout}
	w.printf("Wrote the fleet in %s to %s: %s.\n", place, o.file, summaryOf(b))
	if o.plain {
		w.printf("It is not encrypted, and contains the key of the history: whoever reads it can forge records.\n")
	}
	return w.err
}

// noFleet returns the error for a fleet without files and history. numaform.yaml may name a
// directory although the fleet is in the ConfigMaps of the chart.
func (o *backupOptions) noFleet(settings *operator.Config) error {
	fix := "correct fleet in " + o.config
	if settings.Fleet.ConfigMap == (operator.ConfigMap{}) {
		fix = fmt.Sprintf("%s; if numaform was installed with the chart and its default fleet, write:\n"+
			"fleet:\n  configmap: {namespace: %[2]s, name: fleet}\n  backend: {type: kubernetes, config: {namespace: %[2]s}}", fix, o.namespace)
	}
	return fmt.Errorf("there is no fleet in %s: nothing was written: %s", settings.FleetPlace(), fix)
}

// selected reports whether flags select a cluster, or the command runs in the controller's pod.
func (o *clusterOptions) selected(environ []string) bool {
	return o.kubeconfig.Path != "" || o.kubeconfig.Context != "" || operator.PodNamespace(environ) != ""
}

// inCluster reports whether numaform runs in a cluster that the command can read.
func (o *clusterOptions) inCluster(environ []string, settings *operator.Config) bool {
	return o.selected(environ) || settings.Fleet.ConfigMap != (operator.ConfigMap{})
}

// controllerStore opens the fleet's store with the key of the controller in numaform's namespace.
func (o *clusterOptions) controllerStore(environ []string, settings *operator.Config) (*store.Sealed, error) {
	controllers := *settings
	controllers.History.KeyFile = ""
	cluster := o.kubeconfig
	cluster.Namespace = o.namespace
	return controllers.OpenStore(environ, cluster)
}

// controllerKey returns the key of the controller, or nil if there is none.
func (o *clusterOptions) controllerKey(ctx context.Context, environ []string, settings *operator.Config) ([]byte, error) {
	opened, err := o.controllerStore(environ, settings)
	if err != nil {
		return nil, err
	}
	return opened.Key(ctx)
}

// read reads fleet, history, key and states. If the fleet changes meanwhile, it reads again:
// a VM must not be in a state, but in none of the files.
func read(ctx context.Context, config *scaler.Config, b *backup.Backup) (unread []error, err error) {
	s := scaler.New(*config)
	sealed, ok := config.Store.(*store.Sealed)
	if !ok {
		return nil, errors.New("the fleet's store has no key")
	}
	archive, err := store.ArchiveOf(sealed)
	if err != nil {
		return nil, err
	}
	for range backupAttempts {
		if b.Content, err = archive.Content(ctx); err != nil {
			return nil, err
		}
		if b.Key, err = sealed.Key(ctx); err != nil {
			return nil, err
		}
		if b.States, unread, err = s.States(ctx); err != nil {
			return nil, err
		}
		after, err := archive.Content(ctx)
		if err != nil {
			return nil, err
		}
		if len(after.Records) == len(b.Content.Records) && store.RevisionOf(after.Files) == store.RevisionOf(b.Content.Files) {
			return unread, nil
		}
	}
	return nil, errors.New("the fleet changed each time it was read: nothing was written: run numaform pause, or try again later")
}

// clusterState returns the data of numaform's ConfigMaps that are not part of the fleet.
func clusterState(ctx context.Context, k kubernetes.Interface, namespace string) (map[string]map[string]string, error) {
	found := map[string]map[string]string{}
	for _, name := range []string{control.ConfigMapName, approval.LedgerName} {
		m, err := k.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading ConfigMap %s/%s: %w", namespace, name, err)
		}
		found[name] = m.Data
	}
	return found, nil
}

// writeBackup writes a file completely or not at all, and never replaces an existing one.
func writeBackup(path string, write func(file *os.File) error) (err error) {
	failed := func(err error) error { return fmt.Errorf("writing the backup: %w: choose another file with -o", err) }
	if _, err := os.Lstat(path); err == nil {
		return failed(fmt.Errorf("%s exists", path))
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".numaform-backup-") // with mode 0600
	if err != nil {
		return failed(err)
	}
	defer func() { err = errors.Join(err, os.Remove(file.Name())) }()
	err = write(file)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return failed(err)
	}
	if err := os.Link(file.Name(), path); err != nil {
		return failed(err)
	}
	return nil
}

// summaryOf describes the content of a backup.
func summaryOf(b *backup.Backup) string {
	parts := []string{topology.Count(len(b.Content.Files), "file"), topology.Count(len(b.Content.Records), "change"), topology.Count(len(b.States), "state")}
	if len(b.ConfigMaps) > 0 {
		parts = append(parts, topology.Count(len(b.ConfigMaps), "ConfigMap"))
	}
	key := "the key of the history"
	switch {
	case b.Key == nil && len(b.Content.Records) > 0:
		key = "no key of the history"
	case b.Key == nil:
		key = "no key, because nothing was changed yet"
	}
	return strings.Join(parts, ", ") + " and " + key
}
