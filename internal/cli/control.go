package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/control"
)

// clusterOptions are the flags of commands that talk to numaform in a cluster.
type clusterOptions struct {
	kubeconfig  string
	kubeContext string
	namespace   string
}

func (o *clusterOptions) register(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster that numaform runs in")
	flags.StringVar(&o.kubeContext, "context", "", "context of the kubeconfig")
	flags.StringVarP(&o.namespace, "namespace", "n", "numaform", "namespace that numaform runs in")
}

// rest reads the kubeconfig.
func (o *clusterOptions) rest() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: o.kubeContext}).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		err = errors.New("neither KUBECONFIG nor ~/.kube/config names a cluster")
	}
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig: %w: name one with --kubeconfig", err)
	}
	config.UserAgent = "numaform"
	return config, nil
}

// kubernetes returns a client of the cluster.
func (o *clusterOptions) kubernetes() (kubernetes.Interface, error) {
	config, err := o.rest()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// client returns a client with the ScalePlan types.
func (o *clusterOptions) client() (client.Client, error) {
	config, err := o.rest()
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return client.New(config, client.Options{Scheme: scheme})
}

// explained adds a hint to an error of the API server.
func explained(err error, role string) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: your user may not do this: ask for %s", err, role)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w: the cluster does not know you: look at the user in the kubeconfig", err)
	case meta.IsNoMatchError(err):
		return fmt.Errorf("%w: numaform's CRDs are not installed in this cluster: name another with --kubeconfig or --context", err)
	case apierrors.IsConflict(err):
		return fmt.Errorf("%w: somebody was faster: look again", err)
	}
	return err
}

// controlRole is the role needed to use the switch.
const controlRole = "the Role numaform-switch in numaform's namespace (get and update of the ConfigMap numaform-control; see --namespace)"

// whoami returns the user's name from the API server.
func whoami(ctx context.Context, c kubernetes.Interface) (string, error) {
	review, err := c.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("asking the cluster who you are: %w", err)
	}
	return review.Status.UserInfo.Username, nil
}

// toggle returns a command that changes the switch.
func toggle(process Process, use, short, done string, throw func(context.Context, *control.Switch, string) error) *cobra.Command {
	var o clusterOptions
	command := &cobra.Command{
		Use: use, Short: short,
		RunE: func(command *cobra.Command, _ []string) error {
			ctx := command.Context()
			c, err := o.kubernetes()
			if err != nil {
				return err
			}
			who, err := whoami(ctx, c)
			if err != nil {
				return explained(err, controlRole)
			}
			if err := throw(ctx, control.New(c, o.namespace), who); err != nil {
				return explained(err, controlRole)
			}
			_, err = fmt.Fprintln(process.Stdout, done)
			return err
		},
	}
	o.register(command)
	return command
}

func newPause(process Process) *cobra.Command {
	return toggle(process, "pause", "Stop numaform from starting anything in the cluster",
		"numaform is paused: it starts nothing, and finishes what it has begun. Go on with numaform resume.",
		func(ctx context.Context, s *control.Switch, who string) error { return s.Pause(ctx, who) })
}

func newResume(process Process) *cobra.Command {
	return toggle(process, "resume", "Let a paused numaform go on", "numaform goes on.",
		func(ctx context.Context, s *control.Switch, _ string) error { return s.Resume(ctx) })
}
