package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/doctor"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

const (
	// partTimeout limits the collection of one part of a bundle.
	partTimeout = 3 * time.Minute
	// logLines is the number of lines of each log in a bundle.
	logLines = 5000
)

func newSupportBundle(process Process) *cobra.Command {
	var o doctorOptions
	command := &cobra.Command{
		Use:   "support-bundle [FILE]",
		Short: "Collect version, configuration, checks, topology, plans, history and logs in an archive, without secrets",
		Long: "Write a tar.gz with the version, the configuration, the report of doctor, the topology of the hosts, the fleet's files, its " +
			"history, the resources of local states and, with --kubeconfig, ScalePlans, ProxmoxNodeClasses and the controller's logs. " +
			"Secrets are left out: the archive contains no token, password, key, kubeconfig, Secret or seed, and of the resources in a state only address, VMID, name, host and status. It does contain " +
			"names and addresses of hosts and VMs: review it before you send it. A part that cannot be read is listed in errors.txt. The command changes nothing.",
		Example: "  numaform support-bundle                                       # numaform-support-TIME.tar.gz\n" +
			"  numaform support-bundle bundle.tar.gz --kubeconfig ~/.kube/config",
		Args: arguments(0, 1),
		RunE: func(command *cobra.Command, args []string) (err error) {
			now := time.Now().UTC()
			path := "numaform-support-" + now.Format("20060102T150405Z") + ".tar.gz"
			if len(args) > 0 {
				path = args[0]
			}
			// Create the file first, because collecting can take minutes.
			file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return fmt.Errorf("creating the bundle: %w: choose another file with numaform support-bundle FILE", err)
			}
			defer func() {
				err = errors.Join(err, file.Close())
				if err != nil {
					err = errors.Join(err, os.Remove(path))
				}
			}()
			b := &bundle{process: process, options: &o, redact: newRedactor(process.Environ), files: map[string][]byte{}}
			b.collect(command.Context())
			if err := command.Context().Err(); err != nil {
				return context.Cause(command.Context())
			}
			if err := b.write(file, now); err != nil {
				return fmt.Errorf("writing the bundle: %w: choose another file with numaform support-bundle FILE", err)
			}
			w := &printer{w: process.Stdout}
			w.printf("Wrote %s with %s. Review it before you send it: it contains names and addresses of hosts and VMs.\n", path, topology.Count(len(b.files), "file"))
			for _, problem := range b.problems {
				w.printf("Not collected: %s\n", problem)
			}
			return w.err
		},
	}
	flags := command.Flags()
	registerConfig(flags, &o.config)
	registerKubeconfig(flags, &o.kubeconfig, "kubeconfig of the cluster in which numaform runs")
	registerNamespace(flags, &o.namespace)
	return command
}

// bundle collects the files of a support bundle.
type bundle struct {
	process  Process
	options  *doctorOptions
	redact   *redactor
	files    map[string][]byte
	problems []string
}

// bundleReadme describes a bundle to its reader.
const bundleReadme = `Support bundle of numaform

version.txt       versions of numaform, its formats, module and provider
numaform.yaml     the configuration, with secrets replaced by REDACTED
environment.txt   the names of environment variables that affect numaform, without values
doctor.json       the report of numaform doctor
topology.json     hosts, NUMA nodes, guests, storages and templates
fleet/            the HCL of the fleet
history.json      the recorded changes
states.json       addresses and VMIDs in local states
classes.json      ProxmoxNodeClasses
plans.json        ScalePlans
logs/             the controller's logs
errors.txt        parts that could not be read

Left out: tokens, passwords, private keys, the key of the history, kubeconfigs,
Secrets, seeds and join data, values of environment variables, and attributes
in Terraform states other than names and VMIDs. Known secrets, and text that
looks like one, are replaced by REDACTED in every file.
`

// collect reads all parts. A part that fails does not affect the other parts.
func (b *bundle) collect(ctx context.Context) {
	o := b.options
	o.clusterless = true
	b.add("README.txt", []byte(bundleReadme))
	b.add("version.txt", fmt.Appendf(nil, "numaform %s %s/%s\nfleet format %d\nmodule proxmox-node %s\nprovider %s %s\n",
		b.process.Version, runtime.GOOS, runtime.GOARCH, generator.FormatVersion, modules.Hash(), guard.Provider, generator.ProviderVersion))
	b.add("environment.txt", []byte(strings.Join(relevantVariables(b.process.Environ), "\n")+"\n"))

	config, err := loadConfig(b.process, o.config)
	if err == nil {
		b.redact.named(config)
	}
	b.part(ctx, "numaform.yaml", func(context.Context) ([]byte, error) { return b.redact.config(o.config) })
	b.redact.kubeconfig(o.kubeconfig)
	b.part(ctx, "doctor.json", func(ctx context.Context) ([]byte, error) {
		return indented(doctor.Run(ctx, o.checks(ctx, b.process)))
	})
	if err != nil {
		b.problem("topology, fleet, history and states", err)
	} else {
		b.part(ctx, "topology.json", func(ctx context.Context) ([]byte, error) {
			var warnings bytes.Buffer
			snapshot, _, err := live(ctx, Process{Stderr: &warnings}, config, config.Regions())
			b.warnings("topology.json", warnings.String())
			if err != nil {
				return nil, err
			}
			return snapshot.Print()
		})
		b.stored(ctx, config)
		b.part(ctx, "states.json", func(context.Context) ([]byte, error) { return b.stateSummaries(config) })
	}
	if o.withoutCluster() {
		b.problem("classes, plans and logs", errors.New("no cluster was given: add --kubeconfig"))
		return
	}
	b.inCluster(ctx)
}

// stored adds the fleet's files and its history.
func (b *bundle) stored(ctx context.Context, config *operator.Config) {
	ctx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	opened, err := config.OpenStore(b.process.Environ, b.options.kubeconfig)
	if err != nil {
		b.problem("fleet and history", err)
		return
	}
	files, _, err := opened.Read(ctx)
	if err != nil {
		b.problem("fleet", err)
	}
	for name, content := range files {
		b.add("fleet/"+name, content)
	}
	b.part(ctx, "history.json", func(ctx context.Context) ([]byte, error) {
		var warnings bytes.Buffer
		entries, err := readHistory(ctx, Process{Stderr: &warnings}, opened, 0)
		b.warnings("history.json", warnings.String())
		if err != nil {
			return nil, err
		}
		return indented(entries)
	})
}

// inCluster adds objects of the cluster and the controller's logs.
func (b *bundle) inCluster(ctx context.Context) {
	cluster := clusterOptions{kubeconfig: b.options.kubeconfig, namespace: b.options.namespace}
	api, core, err := cluster.open()
	if err != nil {
		b.problem("classes, plans and logs", err)
		return
	}
	b.part(ctx, "classes.json", func(ctx context.Context) ([]byte, error) {
		var list v1alpha1.ProxmoxNodeClassList
		err := api.List(ctx, &list)
		return indentedOr(list.Items, err)
	})
	b.part(ctx, "plans.json", func(ctx context.Context) ([]byte, error) {
		var list v1alpha1.ScalePlanList
		err := api.List(ctx, &list)
		return indentedOr(list.Items, err)
	})
	ctx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	pods, err := core.CoreV1().Pods(b.options.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=numaform"})
	if err != nil {
		b.problem("logs", err)
		return
	}
	if len(pods.Items) == 0 {
		b.problem("logs", fmt.Errorf("namespace %s has no pod with the label app.kubernetes.io/name=numaform: set --namespace to the namespace of numaform's controller", b.options.namespace))
	}
	for i := range pods.Items {
		b.podLogs(ctx, core, &pods.Items[i])
	}
}

// podLogs adds the logs of a pod's containers, including the logs from before the last
// restart.
func (b *bundle) podLogs(ctx context.Context, core kubernetes.Interface, pod *corev1.Pod) {
	for _, container := range pod.Status.ContainerStatuses {
		for _, previous := range []bool{false, true} {
			if previous && container.RestartCount == 0 {
				continue
			}
			name := "logs/" + pod.Name + "-" + container.Name
			if previous {
				name += "-previous"
			}
			tail := int64(logLines)
			b.part(ctx, name+".log", func(ctx context.Context) ([]byte, error) {
				return core.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
					Container: container.Name, Previous: previous, TailLines: &tail, Timestamps: true,
				}).DoRaw(ctx)
			})
		}
	}
}

// part adds a file or, if it cannot be read, a problem.
func (b *bundle) part(ctx context.Context, name string, read func(context.Context) ([]byte, error)) {
	ctx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	content, err := read(ctx)
	if err != nil {
		b.problem(name, err)
		return
	}
	b.add(name, content)
}

// warnings adds each line that a part printed to the problems.
func (b *bundle) warnings(part, text string) {
	for line := range strings.Lines(text) {
		b.problem(part, errors.New(line))
	}
}

func (b *bundle) add(name string, content []byte) { b.files[name] = content }

func (b *bundle) problem(part string, err error) {
	text := string(b.redact.text(fmt.Appendf(nil, "%s: %v", part, err)))
	b.problems = append(b.problems, strings.Join(strings.Fields(text), " "))
}

// write packs the files, without secrets, into an archive.
func (b *bundle) write(file io.Writer, at time.Time) error {
	if len(b.problems) > 0 {
		b.add("errors.txt", []byte(strings.Join(b.problems, "\n")+"\n"))
	}
	compressed := gzip.NewWriter(file)
	archive := tar.NewWriter(compressed)
	for _, name := range slices.Sorted(maps.Keys(b.files)) {
		content := b.redact.text(b.files[name])
		header := &tar.Header{Typeflag: tar.TypeReg, Name: "numaform-support/" + name, Mode: 0o600, Size: int64(len(content)), ModTime: at}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(content); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), compressed.Close())
}

func indented(value any) ([]byte, error) {
	text, err := json.MarshalIndent(value, "", "  ")
	return append(text, '\n'), err
}

func indentedOr(value any, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return indented(value)
}

// relevantVariables returns the names of environment variables that affect numaform, the
// engine or its backends.
func relevantVariables(environ []string) []string {
	var names []string
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		for _, prefix := range []string{"NUMAFORM_", "TF_", "KUBE", "PG", "AWS_", "PROXMOX_VE_", "GOOGLE_", "ARM_", "CONSUL_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "GIT_", "XDG_STATE_HOME"} {
			if strings.HasPrefix(name, prefix) {
				names = append(names, name)
				break
			}
		}
	}
	slices.Sort(names)
	return names
}

// stateSummary is the part of a Terraform state that contains no secret.
type stateSummary struct {
	File             string          `json:"file"`
	Version          int             `json:"version"`
	TerraformVersion string          `json:"terraform_version"`
	Serial           int64           `json:"serial"`
	Lineage          string          `json:"lineage"`
	Encrypted        bool            `json:"encrypted,omitempty"`
	Resources        []stateResource `json:"resources"`
}

type stateResource struct {
	Module    string          `json:"module,omitempty"`
	Mode      string          `json:"mode"`
	Type      string          `json:"type"`
	Name      string          `json:"name"`
	Instances []stateInstance `json:"instances"`
}

type stateInstance struct {
	Status     string `json:"status,omitempty"`
	Attributes struct {
		VMID     int    `json:"vm_id,omitempty"`
		Name     string `json:"name,omitempty"`
		NodeName string `json:"node_name,omitempty"`
	} `json:"attributes"`
}

// stateSummaries summarizes the local states. Only the fields of stateSummary are read.
func (b *bundle) stateSummaries(config *operator.Config) ([]byte, error) {
	if config.Fleet.Backend.Type != "local" {
		return nil, fmt.Errorf("only states in a local backend can be collected, and fleet.backend.type is %s", config.Fleet.Backend.Type)
	}
	pattern, err := config.StatePath("states", "*", "*", "terraform.tfstate")
	if err != nil {
		return nil, err
	}
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	summaries := []stateSummary{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			b.problem("states.json", err)
			continue
		}
		s := stateSummary{Resources: []stateResource{}}
		if err := json.Unmarshal(text, &s); err != nil {
			b.problem("states.json", fmt.Errorf("reading state %s: it is not valid JSON", path)) // the error may quote the state
			continue
		}
		s.File, s.Encrypted = path, s.Version == 0
		summaries = append(summaries, s)
	}
	return indented(summaries)
}
