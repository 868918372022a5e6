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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/control"
	"github.com/numaform/numaform/internal/operator"
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

// open returns a client with the ScalePlan types, and one for all else.
func (o *clusterOptions) open() (client.Client, kubernetes.Interface, error) {
	config, err := operator.Kubeconfig{Path: o.kubeconfig, Context: o.kubeContext}.Load()
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
		return fmt.Errorf("%w: your user may not do this: ask for %s", err, role)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w: the cluster does not know you: check the user in the kubeconfig", err)
	case meta.IsNoMatchError(err):
		return fmt.Errorf("%w: numaform's CRDs are not installed in this cluster: name another with --kubeconfig or --context", err)
	case apierrors.IsConflict(err):
		return fmt.Errorf("%w: another client was faster: try again", err)
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

// newSwitches returns the commands that change the switch.
func newSwitches(process Process) []*cobra.Command {
	toggle := func(command *cobra.Command, done string, throw func(ctx context.Context, s *control.Switch, who string) error) *cobra.Command {
		var o clusterOptions
		o.register(command)
		command.RunE = func(command *cobra.Command, _ []string) error {
			ctx := command.Context()
			_, k, err := o.open()
			if err != nil {
				return err
			}
			who, err := whoami(ctx, k)
			if err == nil {
				err = throw(ctx, control.New(k, o.namespace), who)
			}
			if err != nil {
				return explained(err, controlRole)
			}
			_, err = fmt.Fprintln(process.Stdout, done)
			return err
		}
		return command
	}
	pause := &cobra.Command{Use: "pause", Short: "Stop numaform from starting anything in the cluster"}
	resume := &cobra.Command{Use: "resume", Short: "Resume a paused numaform"}
	return []*cobra.Command{
		toggle(pause, "numaform is paused: it starts nothing, and finishes what it has begun. Go on with numaform resume.",
			func(ctx context.Context, s *control.Switch, who string) error { return s.Pause(ctx, who) }),
		toggle(resume, "numaform goes on.",
			func(ctx context.Context, s *control.Switch, _ string) error { return s.Resume(ctx) }),
	}
}
