package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/internal/convert"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/plainyaml"
	"github.com/numaform/numaform/internal/term"
)

// convertOptions are the flags of convert.
type convertOptions struct {
	files      []string
	kubeconfig operator.Kubeconfig
	out        string
	verbose    bool
	settings   convert.Settings
}

func newConvert(process Process) *cobra.Command {
	var o convertOptions
	command := &cobra.Command{
		Use:   "convert PEER",
		Short: "Convert the configuration of another autoscaler to numaform's",
		Long: "Convert the configuration of karpenter-provider-proxmox (kpp), kproximate or KubeNodeSmith (kubenodesmith) to numaform.yaml, ProxmoxNodeClasses, NodePools and Secrets. " +
			"The command reads manifests, configuration files, Helm values, JSON settings and files of environment variables, or a cluster. It changes nothing there: it prints the result, or writes it to a new directory. " +
			"It reports each option that is not kept, or that means something else, with the reason; the report contains no values.",
		Args: arguments(1, 1),
		RunE: func(command *cobra.Command, args []string) error {
			return runConvert(command.Context(), process, convert.Peer(args[0]), &o)
		},
	}
	for _, peer := range convert.Peers() {
		command.ValidArgs = append(command.ValidArgs, string(peer))
	}
	flags := command.Flags()
	flags.StringArrayVarP(&o.files, "filename", "f", nil, "`FILE` or directory with the configuration; repeatable")
	registerKubeconfig(flags, &o.kubeconfig, "kubeconfig of the cluster to read the configuration from")
	flags.StringVar(&o.out, "out", "", "new directory to write the result to; empty prints it, with its secrets")
	flags.StringVar(&o.settings.ClusterID, "cluster-id", "prod", "name of this numaform installation")
	flags.StringVar(&o.settings.Region, "region", "homelab", "name of the Proxmox cluster, if the configuration has none")
	flags.StringVar(&o.settings.Template, "template", "", "name of the VM template of classes that have none")
	flags.StringVar(&o.settings.Namespace, "namespace", defaultNamespace, "namespace of numaform, for the Secrets")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "also report the options that are kept unchanged")
	return command
}

func runConvert(ctx context.Context, process Process, peer convert.Peer, o *convertOptions) error {
	cluster := o.kubeconfig.Path != "" || o.kubeconfig.Context != ""
	switch {
	case !slices.Contains(convert.Peers(), peer):
		return usageError{fmt.Errorf("convert %q: must be one of %v", peer, convert.Peers())}
	case len(o.files) == 0 && !cluster:
		return usageError{errors.New("convert: missing input: pass the configuration with -f, or a cluster with --kubeconfig")}
	}
	var objects []convert.Object
	for _, name := range o.files {
		read, err := readConfiguration(name)
		if err != nil {
			return err
		}
		objects = append(objects, read...)
	}
	if cluster {
		read, err := readPeer(ctx, peer, o.kubeconfig)
		if err != nil {
			return err
		}
		objects = append(objects, read...)
	}
	result, err := convert.Convert(peer, objects, o.settings)
	if err != nil {
		return err
	}
	if err := writeConverted(process, o.out, result.Files); err != nil {
		return err
	}
	printConverted(process, result.Lines, o.verbose)
	return nil
}

// readConfiguration reads a file, or the files of a directory, of a peer's configuration.
func readConfiguration(root string) ([]convert.Object, error) {
	var names []string
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if name == root || slices.Contains([]string{".yaml", ".yml", ".json", ".env", ".default"}, filepath.Ext(name)) {
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	var objects []convert.Object
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("reading the configuration: %w", err)
		}
		for document := range strings.SplitSeq(string(data), "\n---") {
			if err := plainyaml.Check([]byte(document)); err != nil {
				return nil, fmt.Errorf("reading %s: %w", name, err)
			}
		}
		read, err := convert.Read(name, data)
		if err != nil {
			return nil, err
		}
		objects = append(objects, read...)
	}
	return objects, nil
}

// peerKinds returns the kinds that hold a peer's configuration, and a part of the image of its
// Deployments.
func peerKinds(peer convert.Peer) (kinds []schema.GroupVersionKind, image string) {
	deployment := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	switch peer {
	case convert.KPP:
		theirs := schema.GroupVersion{Group: "karpenter.proxmox.sinextra.dev", Version: "v1alpha1"}
		return []schema.GroupVersionKind{
			theirs.WithKind("ProxmoxNodeClass"), theirs.WithKind("ProxmoxTemplate"), theirs.WithKind("ProxmoxUnmanagedTemplate"),
			{Group: "karpenter.sh", Version: "v1", Kind: "NodePool"},
			deployment,
		}, "karpenter-provider-proxmox"
	case convert.KubeNodeSmith:
		theirs := schema.GroupVersion{Group: "kubenodesmith.parawell.cloud", Version: "v1alpha1"}
		return []schema.GroupVersionKind{
			theirs.WithKind("NodeSmithProvider"), theirs.WithKind("NodeSmithPool"), theirs.WithKind("NodeSmithControlPlane"), deployment,
		}, "kubenodesmith"
	}
	return []schema.GroupVersionKind{deployment}, "kproximate"
}

// readPeer reads a peer's objects from a cluster, and the Secrets and ConfigMaps that they
// use.
func readPeer(ctx context.Context, peer convert.Peer, kubeconfig operator.Kubeconfig) ([]convert.Object, error) {
	config, err := kubeconfig.Load()
	if err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{})
	if err != nil {
		return nil, err
	}
	var objects []convert.Object
	add := func(item map[string]any) error {
		read, err := convert.FromContent("the cluster", item)
		objects = append(objects, read...)
		return err
	}
	kinds, image := peerKinds(peer)
	for _, kind := range kinds {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		err := c.List(ctx, list)
		if meta.IsNoMatchError(err) {
			continue // the CRD is not installed
		}
		if err != nil {
			return nil, explained(fmt.Errorf("reading %s objects: %w", kind.Kind, err), "read access to the configuration of "+string(peer))
		}
		for i := range list.Items {
			if kind.Kind == "Deployment" && !runsImage(&list.Items[i], image) {
				continue
			}
			if err := add(list.Items[i].Object); err != nil {
				return nil, err
			}
		}
	}
	for _, reference := range convert.References(objects) {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: reference.Kind})
		err := c.Get(ctx, client.ObjectKey{Namespace: reference.Namespace, Name: reference.Name}, object)
		if apierrors.IsNotFound(err) {
			continue // the conversion reports it, if it needs it
		}
		if err != nil {
			return nil, explained(fmt.Errorf("reading %s %s/%s: %w", reference.Kind, reference.Namespace, reference.Name, err), "read access to this object")
		}
		if err := add(object.Object); err != nil {
			return nil, err
		}
	}
	return objects, nil
}

// runsImage reports whether a container of a Deployment has an image of this name.
func runsImage(deployment *unstructured.Unstructured, name string) bool {
	containers, _, _ := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "containers")
	return slices.ContainsFunc(containers, func(container any) bool {
		fields, _ := container.(map[string]any)
		image, _ := fields["image"].(string)
		return strings.Contains(image, name)
	})
}

// writeConverted writes files to a new directory, or prints them.
func writeConverted(process Process, dir string, files []convert.File) error {
	for _, file := range files {
		if dir == "" {
			mark := ""
			if file.Secret {
				mark = " (contains secrets)"
			}
			if _, err := fmt.Fprintf(process.Stdout, "---\n# %s%s\n%s", file.Name, mark, file.Content); err != nil {
				return err
			}
			continue
		}
		path := filepath.Join(dir, filepath.FromSlash(file.Name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("writing the result: %w", err)
		}
		mode := fs.FileMode(0o644)
		if file.Secret {
			mode = 0o600
		}
		switch err := writeNewMode(path, string(file.Content), mode); {
		case errors.Is(err, fs.ErrExist):
			return fmt.Errorf("writing %s: the file exists: choose a new directory for --out", path)
		case err != nil:
			return fmt.Errorf("writing %s: %w", path, err)
		}
		note := ""
		if file.Secret {
			note = ", which contains secrets"
		}
		fmt.Fprintf(process.Stderr, "wrote %s%s\n", path, note)
	}
	return nil
}

// printConverted reports the options that are not kept as they are.
func printConverted(process Process, lines []convert.Line, verbose bool) {
	counts := map[convert.Verdict]int{}
	for _, line := range lines {
		counts[line.Verdict]++
		if line.Verdict == convert.Kept && !verbose {
			continue
		}
		text := string(line.Verdict) + ": " + strings.TrimSuffix(line.Object+" "+line.Path, " ")
		if line.Ours != "" {
			text += " -> " + line.Ours
		}
		if line.Reason != "" {
			text += ": " + line.Reason
		}
		fmt.Fprintln(process.Stderr, term.Printable(text))
	}
	fmt.Fprintf(process.Stderr, "%d options kept, %d changed, %d dropped, %d unknown\n",
		counts[convert.Kept], counts[convert.Changed], counts[convert.Dropped], counts[convert.Unknown])
}
