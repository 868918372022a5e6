package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/numaform/numaform/internal/approval"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/backup"
	"github.com/numaform/numaform/internal/control"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/topology"
)

// restoreOptions are the flags of restore.
type restoreOptions struct {
	clusterOptions

	config, passphrase string
	identities         []string
	write              bool
}

func newRestore(process Process) *cobra.Command {
	var o restoreOptions
	command := &cobra.Command{
		Use:   "restore FILE",
		Short: "Restore the fleet, its history with its key, and the states from a backup",
		Long: "Show what a backup would change, and which of its VMs exist; with --write, write it. A restore creates, changes and deletes no VM. The file of a VM that no longer exists is left out. " +
			"A VM that is newer than the backup is named and not changed. Records are only added: if the fleet's history is newer than the backup, fleet and history stay as they are. " +
			"The controller must not run. If the command is interrupted, run it again: it continues.",
		Example: "  numaform restore fleet.age --identity key.txt                  # changes nothing\n" +
			"  numaform restore fleet.age --identity key.txt --write",
		Args: arguments(1, 1),
		RunE: func(command *cobra.Command, args []string) error { return o.run(command.Context(), process, args[0]) },
	}
	flags := command.Flags()
	registerConfig(flags, &o.config)
	o.register(flags)
	flags.StringArrayVar(&o.identities, "identity", nil, "`FILE` with private keys of age; repeatable")
	flags.StringVar(&o.passphrase, "passphrase-file", "", "file with the passphrase of the backup")
	flags.BoolVar(&o.write, "write", false, "write the backup")
	return command
}

// read reads and verifies the backup in a file.
func (o *restoreOptions) read(path string) (*backup.Backup, error) {
	var identities []age.Identity
	for _, name := range o.identities {
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("reading --identity: %w", err)
		}
		found, err := age.ParseIdentities(file)
		if err = errors.Join(err, file.Close()); err != nil {
			return nil, fmt.Errorf("reading --identity %s: %w: it must be a file that age-keygen wrote", name, err)
		}
		identities = append(identities, found...)
	}
	if o.passphrase != "" {
		phrase, err := readPassphrase(o.passphrase)
		if err != nil {
			return nil, err
		}
		identity, err := age.NewScryptIdentity(phrase)
		if err != nil {
			return nil, fmt.Errorf("reading --passphrase-file: %w", err)
		}
		identities = append(identities, identity)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the backup: %w", err)
	}
	b, err := backup.Read(file, identities...)
	return b, errors.Join(err, file.Close())
}

func (o *restoreOptions) run(ctx context.Context, process Process, path string) error {
	b, err := o.read(path)
	if err != nil {
		return err
	}
	session, err := open(ctx, process, &options{config: o.config, kubeconfig: o.kubeconfig, clusterless: true})
	if err != nil {
		return err
	}
	settings := session.config
	if b.ClusterID != settings.ClusterID {
		return fmt.Errorf("the backup is of cluster %q, but the configuration is for cluster %q: nothing was written: use a backup of this cluster, or its configuration with --config", b.ClusterID, settings.ClusterID)
	}
	cluster := o.kubeconfig
	if b.KeyInCluster && settings.Fleet.InGit() && o.selected(process.Environ) {
		cluster.Namespace = o.namespace
	}
	opened, err := settings.OpenStore(process.Environ, cluster)
	if err != nil {
		return err
	}
	to := &restoring{backup: b, store: opened, namespace: o.namespace}
	if err := o.compare(ctx, process.Environ, settings, to); err != nil {
		return err
	}
	r, err := session.scaler.ProposeRestore(ctx, session.snapshot, b.Content, b.States)
	if err != nil {
		return err
	}
	if err := to.findMissing(ctx, len(r.Newer) == 0); err != nil {
		return explained(err, restoreRole)
	}

	w := newPrinter(process)
	w.printf("Backup of cluster %s at %s by numaform %s: %s.\n", b.ClusterID, b.Created.Format(time.RFC3339), b.Version, summaryOf(b))
	w.restoration(r, len(b.States), settings.FleetPlace())
	to.print(w)
	if w.err != nil {
		return w.err
	}
	if !o.write {
		w.printf("\nNothing was written. To restore the backup, stop the controller, and add --write.\n")
		return w.err
	}
	w.printf("\n")
	if err := to.write(ctx, w); err != nil {
		return explained(err, restoreRole)
	}
	lines, err := session.scaler.Restore(ctx, r)
	for _, line := range lines {
		w.printf("%s.\n", line)
	}
	if err != nil {
		return fmt.Errorf("%w\nthe restore is incomplete: fix the problem above, then run the same command again: it continues", err)
	}
	id, err := to.accept(ctx, process, session.config, o.kubeconfig, !r.Empty())
	if err != nil {
		return err
	}
	if id != "" {
		w.printf("Recorded the restore in change %s.\n", id)
	}
	w.printf("Restored. Run numaform plan to see what the next change does, then start the controller.\n")
	return w.err
}

// restoring is the part of a restore that is not the fleet itself: the key of the history and
// the ConfigMaps in numaform's namespace.
type restoring struct {
	backup *backup.Backup
	store  *store.Sealed
	// keyless opens the fleet with each place that lacks the key: with history.key_file, the
	// controller's Secret is a second place.
	keyless   []*store.Sealed
	cluster   kubernetes.Interface // nil without a cluster
	namespace string
	// missing are the ConfigMaps of the backup that do not exist or are empty.
	missing []string
}

// compare selects the cluster, and finds where the key of a backup is missing.
func (o *restoreOptions) compare(ctx context.Context, environ []string, settings *operator.Config, to *restoring) error {
	if o.inCluster(environ, settings) {
		var err error
		if _, to.cluster, err = o.open(); err != nil {
			return explained(err, restoreRole)
		}
	}
	if to.backup.Key == nil {
		return nil
	}

	stores := []*store.Sealed{to.store}
	if to.backup.KeyInCluster && to.cluster != nil && settings.History.KeyFile != "" {
		controllers, err := o.controllerStore(environ, settings)
		if err != nil {
			return err
		}
		stores = append(stores, controllers)
	}
	for _, s := range stores {
		exists, err := s.CheckKey(ctx, to.backup.Key)
		if err != nil {
			return explained(err, restoreRole)
		}
		if !exists {
			to.keyless = append(to.keyless, s)
		}
	}
	return nil
}

// print shows what is missing besides the fleet.
func (r *restoring) print(w *printer) {
	for _, s := range r.keyless {
		w.printf("Key of the history: missing in %s.\n", s.KeyPlace())
	}
	if r.backup.KeyInCluster && r.cluster == nil {
		w.printf("The key is a controller's: to restore it for the controller, add --kubeconfig.\n")
	}
	for _, name := range r.missing {
		w.printf("ConfigMap %s/%s: missing or empty.\n", r.namespace, name)
	}
}

// findMissing finds the ConfigMaps of a backup that do not exist or, with empty, have no data: the
// chart creates numaform-control without data, so that it exists before a restore.
func (r *restoring) findMissing(ctx context.Context, empty bool) error {
	if r.cluster == nil {
		return nil
	}
	existing, err := clusterState(ctx, r.cluster, r.namespace)
	if err != nil {
		return err
	}
	for _, name := range []string{control.ConfigMapName, approval.LedgerName} {
		saved, inBackup := r.backup.ConfigMaps[name]
		have, exists := existing[name]
		if inBackup && (!exists || empty && len(have) == 0 && len(saved) > 0) {
			r.missing = append(r.missing, name)
		}
	}
	return nil
}

// write writes the key first: without it, a controller would create another one.
func (r *restoring) write(ctx context.Context, w *printer) error {
	if r.cluster != nil {
		if err := checkStopped(ctx, r.cluster, r.namespace); err != nil {
			return err
		}
	}
	for _, s := range r.keyless {
		if err := s.RestoreKey(ctx, r.backup.Key); err != nil {
			return err
		}
		w.printf("Wrote the key of the history to %s.\n", s.KeyPlace())
	}
	for _, name := range r.missing {
		if err := restoreConfigMap(ctx, r.cluster, r.namespace, name, r.backup.ConfigMaps[name]); err != nil {
			return err
		}
		w.printf("Wrote ConfigMap %s/%s.\n", r.namespace, name)
	}
	return nil
}

// accept records the restore in the history, if it wrote anything or if the history ends before
// what numaform has signed: the history continues in another log.
func (r *restoring) accept(ctx context.Context, process Process, settings *operator.Config, cluster operator.Kubeconfig, written bool) (id string, err error) {
	checkpoints, err := settings.Checkpoints(ctx, process.Environ)
	if err != nil {
		return "", err
	}
	found, err := r.store.Audit(ctx, checkpoints...)
	if err != nil || found == nil {
		return "", err
	}
	older := found.Rewritten != nil && found.Rewritten.Older
	if !written && !older {
		return "", nil
	}
	if older {
		r.store.Hold(found.Rewritten)
	}
	config, err := settings.ScalerConfig(ctx, process.Environ, cluster, false)
	if err != nil {
		return "", err
	}
	config.Store, config.Regions, config.Actor, config.Version = r.store, settings.Regions(), actor(), process.Version
	why := "restored from the backup of " + r.backup.Created.Format(time.RFC3339)
	return scaler.New(*config).AcceptHistory(ctx, audit.KindAcceptRestore, why, found.Open())
}

// restoreRole is what restore requires in a cluster.
const restoreRole = "get, create and update of ConfigMaps, Secrets and Leases in numaform's namespace (see --namespace)"

// checkStopped refuses a restore while a controller runs, because it would continue with what
// it has read before.
func checkStopped(ctx context.Context, k kubernetes.Interface, namespace string) error {
	leader, err := operator.Leader(ctx, k, namespace, time.Now())
	if err != nil || leader == "" {
		return err
	}
	return fmt.Errorf("the controller %s runs: nothing was written: scale its Deployment to 0, for example with "+
		"kubectl --namespace %s scale deployment numaform --replicas 0, wait until its pods are gone, then run the command again", leader, namespace)
}

// restoreConfigMap creates a ConfigMap, or sets the data of an empty one.
func restoreConfigMap(ctx context.Context, k kubernetes.Interface, namespace, name string, data map[string]string) error {
	configMaps := k.CoreV1().ConfigMaps(namespace)
	m, err := configMaps.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		m = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Data: data}
		_, err = configMaps.Create(ctx, m, metav1.CreateOptions{})
	case err == nil && len(m.Data) == 0:
		m.Data = data
		_, err = configMaps.Update(ctx, m, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("restoring ConfigMap %s/%s: %w", namespace, name, err)
	}
	return nil
}

// describe describes what a restore does about a VM.
func describe(fate scaler.Fate) string {
	switch fate {
	case scaler.FateExists:
		return "exists: its file is restored"
	case scaler.FateGone:
		return "does not exist: its file is left out"
	case scaler.FateNewer:
		return "newer than the backup: not changed, and not part of the fleet"
	}
	return "may exist: its file is restored"
}

// restoration prints what a backup would change.
func (w *printer) restoration(r *scaler.Restoration, states int, where string) {
	switch {
	case len(r.Newer) > 0:
		w.printf("Fleet and history: newer than the backup by %s, the latest %s. They stay as they are.\n", topology.Count(len(r.Newer), "change"), r.Newer[len(r.Newer)-1])
		return
	case r.Empty():
		w.printf("Fleet and history: the same as in the backup.\n")
	default:
		w.printf("Fleet in %s: %s to write or remove, %s and %s to add.\n", where, topology.Count(len(r.Differences), "file"),
			topology.Count(r.Records, "change"), topology.Count(r.Outcomes, "outcome"))
	}
	if states > 0 {
		w.printf("States: %s to write where the backend has none or an older one.\n", topology.Count(states, "root"))
	}
	if len(r.VMs) == 0 {
		return
	}
	w.printf("\n")
	newer := false
	w.table(func(table io.Writer) {
		fmt.Fprintln(table, "VM\tVMID\tHOST\tRESTORE\tNOTE")
		for _, vm := range r.VMs {
			newer = newer || vm.Fate == scaler.FateNewer
			fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\n", vm.Name, vm.VMID, vm.Host, describe(vm.Fate), vm.Note)
		}
	})
	if newer {
		w.printf("Newer VMs keep running, but numaform neither changes nor deletes them. To return one to the fleet, run numaform adopt NODE after the restore. " +
			"To replace it, drain its Node, and delete the VM in Proxmox: numaform creates nodes for its pods.\n")
	}
}
