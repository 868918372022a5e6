package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/control"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/shell"
)

// defaultNamespace is the default namespace in which numaform runs.
const defaultNamespace = "numaform"

// clusterOptions are the flags of commands that control numaform in a cluster.
type clusterOptions struct {
	kubeconfig operator.Kubeconfig
	namespace  string
}

func (o *clusterOptions) register(flags *pflag.FlagSet) {
	registerKubeconfig(flags, &o.kubeconfig, "kubeconfig of the cluster in which numaform runs")
	registerNamespace(flags, &o.namespace)
}

// registerNamespace adds the flag for numaform's namespace.
func registerNamespace(flags *pflag.FlagSet, namespace *string) {
	flags.StringVarP(namespace, "namespace", "n", defaultNamespace, "namespace in which numaform runs")
}

// flags returns the flags of a command line that reads the same cluster and namespace.
func (o *clusterOptions) flags() string {
	return clusterFlags(o.kubeconfig) + namespaceFlag(o.namespace)
}

// namespaceFlag returns the flag for numaform's namespace, unless it is the default.
func namespaceFlag(namespace string) string {
	if namespace == defaultNamespace {
		return ""
	}
	return " --namespace " + shell.Quote(namespace)
}

// open returns a client for objects such as ScalePlans, NodeClaims and Nodes, and a clientset
// for the ConfigMap numaform-control and the user's identity.
func (o *clusterOptions) open() (client.Client, kubernetes.Interface, error) {
	config, err := o.kubeconfig.Load()
	if err != nil {
		return nil, nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, nil, err
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, nil, err
	}
	k, err := kubernetes.NewForConfig(config)
	return c, k, err
}

// explained adds a hint to an error of the API server.
func explained(err error, role string) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: your user lacks permission: ask an administrator for %s", err, role)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w: the cluster rejected your credentials: check the user in the kubeconfig", err)
	case meta.IsNoMatchError(err):
		return fmt.Errorf("%w: numaform's CRDs are not installed in this cluster: select the cluster that runs numaform with --kubeconfig or --context", err)
	case scheduling.ConnectionHint(err) != "":
		return fmt.Errorf("%w: %s", err, scheduling.ConnectionHint(err))
	case apierrors.IsConflict(err):
		return fmt.Errorf("%w: another client changed the object: run the command again", err)
	}
	return err
}

// controlRole is the role that pause, resume and evacuate require.
const controlRole = "the Role numaform-switch in numaform's namespace (get and update of the ConfigMap numaform-control; see --namespace)"

// whoami returns the user name that the API server authenticated.
func whoami(ctx context.Context, c kubernetes.Interface) (string, error) {
	review, err := c.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("reading your user name from the cluster: %w", err)
	}
	return review.Status.UserInfo.Username, nil
}

// newSwitches returns the commands pause and resume.
func newSwitches(process Process) []*cobra.Command {
	toggle := func(command *cobra.Command, done string, set func(ctx context.Context, s *control.Switch, who string) error) *cobra.Command {
		var o clusterOptions
		o.register(command.Flags())
		command.RunE = func(command *cobra.Command, _ []string) error {
			ctx := command.Context()
			_, k, err := o.open()
			if err != nil {
				return err
			}
			who, err := whoami(ctx, k)
			if err == nil {
				err = set(ctx, control.New(k, o.namespace), who)
			}
			if err != nil {
				return explained(err, controlRole)
			}
			_, err = fmt.Fprintln(process.Stdout, done)
			return err
		}
		return command
	}
	pause := &cobra.Command{Use: "pause", Short: "Stop numaform in the cluster from starting changes"}
	resume := &cobra.Command{Use: "resume", Short: "Resume a paused numaform"}
	return []*cobra.Command{
		toggle(pause, "numaform is paused: it finishes changes in progress and starts no new ones. To continue, run numaform resume.",
			func(ctx context.Context, s *control.Switch, who string) error { return s.Pause(ctx, who) }),
		toggle(resume, "numaform is resumed.",
			func(ctx context.Context, s *control.Switch, _ string) error { return s.Resume(ctx) }),
	}
}
