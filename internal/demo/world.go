package demo

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/cli"
	"github.com/numaform/numaform/internal/guestsim"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
)

// namespace is the controller's namespace, as in the chart.
const namespace = "numaform"

// administrator is the user who created the cluster.
const administrator = "admin"

// world is a stage with a Kubernetes control plane, whose nodes are the guests of the
// stage's Proxmox, and numaform's controller. It waits for states of Kubernetes and
// Proxmox, never for output of numaform.
type world struct {
	*Stage
	plane  *testenv.Cluster
	guests *guestsim.Guests
	// api is an administrator's client without a cache.
	api client.Client
	// ended is closed when the controller has ended, with code as its exit code.
	ended chan struct{}
	code  int
	// ends are the functions to run at the end, in reverse order.
	ends []func() error
}

// openWorld starts the control plane, the simulated Proxmox with its guests, and the
// controller. The caller must close the world, even after an error.
func openWorld(ctx context.Context, config ClusterConfig) (*world, error) {
	w := &world{}
	var err error
	if w.plane, err = testenv.StartFullControlPlane(config.Tools); err != nil {
		return w, err
	}
	w.ends = append(w.ends, w.plane.Close)
	if err := w.startGuests(); err != nil {
		return w, err
	}
	config.Change = func(c *pvesim.Config) { c.OnPower, c.GuestAgents = w.guests.Power, true }
	if w.Stage, err = Open(config.Config); err != nil {
		return w, err
	}
	w.ends = append(w.ends, w.Stage.Close)
	if err := w.install(ctx, config.Manifests); err != nil {
		return w, err
	}
	return w, w.startController(ctx)
}

// Close stops everything that openWorld started, the controller first.
func (w *world) Close() error {
	var errs []error
	for _, end := range slices.Backward(w.ends) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

// startGuests runs the software inside the VMs until Close.
func (w *world) startGuests() (err error) {
	if w.guests, err = guestsim.New(guestsim.Config{Cluster: w.plane.Config}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.guests.Run(ctx) }()
	w.ends = append(w.ends, func() error {
		cancel()
		return <-done
	})
	return nil
}

// install creates the objects of the chart, except the Deployment, whose pod startController
// replaces, and objects without effect here.
func (w *world) install(ctx context.Context, manifests []byte) error {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	objects, err := testenv.Decode(manifests)
	if err != nil {
		return fmt.Errorf("reading the chart's objects: %w", err)
	}
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
		return slices.Contains([]string{"Deployment", "NetworkPolicy", "PodDisruptionBudget"}, o.GetKind())
	})
	if err := w.plane.Install(ctx, objects); err != nil {
		return err
	}
	w.api, err = client.New(w.plane.Config, client.Options{Scheme: scheme})
	return err
}

// startController runs the controller as the chart's ServiceAccount.
func (w *world) startController(ctx context.Context) error {
	_, kubeconfig, err := w.plane.ServiceAccount(ctx, namespace, "numaform")
	if err != nil {
		return err
	}
	if err := w.keepInCluster(kubeconfig); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(w.Dir, "controller.log"))
	if err != nil {
		return err
	}
	process := cli.Process{
		Args: []string{
			"controller", "--kubeconfig", kubeconfig, "--namespace", namespace, "--grace", "1m",
			"--metrics-bind-address", "0", "--health-probe-bind-address", "0",
		},
		Environ: w.env, Stdin: strings.NewReader(""), Stdout: log, Stderr: log,
	}
	running, cancel := context.WithCancel(ctx)
	w.ended = make(chan struct{})
	go func() {
		defer close(w.ended)
		w.code = cli.Run(running, process)
	}()
	w.ends = append(w.ends, func() error {
		cancel()
		<-w.ended
		if w.code != cli.ExitOK {
			return fmt.Errorf("the controller ended with exit code %d: see %s", w.code, log.Name())
		}
		return log.Close()
	})
	return nil
}

// keepInCluster configures the fleet to be stored in ConfigMaps and the states in Secrets,
// as the chart does. It also configures how guests reach the cluster.
func (w *world) keepInCluster(kubeconfig string) error {
	path := filepath.Join(w.Dir, "numaform.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	local := []byte("backend: {type: local}")
	if !bytes.Contains(text, local) {
		return fmt.Errorf("%s does not contain %s", path, local)
	}
	kept := fmt.Sprintf("configmap: {namespace: %[1]s, name: fleet}\n  backend: {type: kubernetes, config: {namespace: %[1]s, config_path: %[2]q}}", namespace, kubeconfig)
	text = bytes.Replace(text, local, []byte(kept), 1)
	text = fmt.Appendf(text, "join: {api_server: %q, ca_file: kube-ca.pem}\n", w.plane.Config.Host)
	return errors.Join(
		os.WriteFile(filepath.Join(w.Dir, "kube-ca.pem"), w.plane.CA, 0o600),
		os.WriteFile(path, text, 0o600),
	)
}

// as runs a command as a user of the cluster, and returns an error unless it exits with
// code want.
func (w *world) as(ctx context.Context, user string, want int, args ...string) error {
	path := filepath.Join(w.Dir, user+".kubeconfig")
	config := clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"demo": {Server: w.plane.Config.Host, CertificateAuthorityData: w.plane.CA}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{user: {
			Token: w.plane.Config.BearerToken, Impersonate: user, ImpersonateGroups: []string{"system:authenticated"},
		}},
		Contexts:       map[string]*clientcmdapi.Context{user: {Cluster: "demo", AuthInfo: user}},
		CurrentContext: user,
	}
	if user == administrator {
		config.AuthInfos[user].Impersonate, config.AuthInfos[user].ImpersonateGroups = "", nil
	}
	if err := clientcmd.WriteToFile(config, path); err != nil {
		return err
	}
	before := w.env
	defer func() { w.env = before }()
	w.env = append(slices.Clone(before), "NUMAFORM_KUBECONFIG="+path)
	return w.numaform(ctx, want, args...)
}

// waitLimit is the time limit of wait, long enough for a busy machine.
const waitLimit = 5 * time.Minute

// wait polls ask until nothing is missing and ask returns no error. It returns an error if
// the controller ends, and, after waitLimit, an error with the last missing condition.
func (w *world) wait(ctx context.Context, what string, ask func(context.Context) (missing string, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	ticker := time.NewTicker(250 * time.Millisecond)
	defer ticker.Stop()
	missing := "no response yet"
	if w.screen != nil {
		defer w.screen.Start("waiting for "+what, 0).Stop()
	}
	for {
		now, err := ask(ctx)
		if now == "" && err == nil {
			return nil
		}
		missing = cmp.Or(now, missing)
		select {
		case <-ticker.C:
		case <-w.ended:
			return fmt.Errorf("waiting for %s: the controller ended: see %s", what, filepath.Join(w.Dir, "controller.log"))
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w: %s: see %s", what,
				errors.Join(context.Cause(ctx), err), missing, filepath.Join(w.Dir, "controller.log"))
		}
	}
}

// apply prints a manifest and creates its objects.
func (w *world) apply(ctx context.Context, manifest string) error {
	fmt.Fprintf(w.Stdout, "\n$ kubectl apply -f - <<EOF\n%sEOF\n", manifest)
	return w.create(ctx, manifest)
}

func (w *world) create(ctx context.Context, manifest string) error {
	objects, err := testenv.Decode([]byte(manifest))
	if err != nil {
		return err
	}
	return w.plane.Install(ctx, objects)
}

// say prints the title of a scene.
func say(out io.Writer, text string) { fmt.Fprintf(out, "\n━━━ %s\n", text) }
