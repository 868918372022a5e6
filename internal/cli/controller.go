package cli

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/numaform/numaform/internal/operator"
)

// controllerOptions are the flags of the controller.
type controllerOptions struct {
	config, kubeconfig, kubeContext string
	mode, logLevel                  string
	preferences, minValues          string
	settings                        operator.ControllerSettings
}

// The modes of the controller.
const (
	modeApply   = "apply"
	modeObserve = "observe"
)

func newController(process Process) *cobra.Command {
	var o controllerOptions
	command := &cobra.Command{
		Use:   "controller",
		Short: "Run in a cluster: nodes appear when pods need them and leave when they do not",
		RunE: func(command *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return usageError{err}
			}
			config, err := loadConfig(process, o.config)
			if err != nil {
				return err
			}
			if o.settings.Rest, err = (operator.Kubeconfig{Path: o.kubeconfig, Context: o.kubeContext}).Load(); err != nil {
				return fmt.Errorf("%w, or run in a pod", err)
			}
			o.settings.Rest.QPS = 200
			o.settings.Rest.Burst = 300

			// The heap may grow to four times its live size, unless GOGC is set: a scale-up
			// allocates much while engines need the CPUs, and little of it stays in use. This
			// saves a fifth of the controller's CPU time during a scale-up.
			if !slices.ContainsFunc(process.Environ, func(entry string) bool { return strings.HasPrefix(entry, "GOGC=") }) {
				debug.SetGCPercent(300)
			}
			o.settings.Version = process.Version
			o.settings.Environ = process.Environ
			level, err := zapcore.ParseLevel(o.logLevel)
			if err != nil {
				return usageError{err}
			}
			o.settings.Logger = zap.New(zap.WriteTo(process.Stderr), zap.Level(level))
			log.SetLogger(o.settings.Logger)
			klog.SetLogger(o.settings.Logger)
			controller, err := operator.NewController(config, o.settings)
			if err != nil {
				return err
			}
			return controller.Run(command.Context())
		},
	}
	o.register(command)
	return command
}

func (o *controllerOptions) register(command *cobra.Command) {
	flags, s := command.Flags(), &o.settings
	flags.StringVar(&o.config, "config", "numaform.yaml", "configuration file")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; in a pod, its own cluster is meant")
	flags.StringVar(&o.kubeContext, "context", "", "context of the kubeconfig")
	flags.StringVar(&s.Namespace, "namespace", "numaform", "namespace of the controller: of its Lease, its Secrets and its switch")
	flags.StringVar(&s.BootstrapAccount, "bootstrap-service-account", "numaform-bootstrap", "ServiceAccount in that namespace that new nodes join as")
	flags.BoolVar(&s.BootstrapTokens, "bootstrap-tokens", false, "keep bootstrap tokens in kube-system for ProxmoxNodeClasses with spec.metadata.token: Bootstrap")
	flags.StringVar(&o.mode, "mode", modeApply, "apply, or observe: decide and plan, and write nothing")
	flags.BoolVar(&s.LeaderElect, "leader-elect", true, "elect a leader, so that only one of several controllers works")
	flags.StringVar(&s.MetricsAddress, "metrics-bind-address", ":8080", "where to serve metrics; 0 means nowhere")
	flags.StringVar(&s.ProbeAddress, "health-probe-bind-address", ":8081", "where to serve probes; 0 means nowhere")
	flags.StringVar(&s.ProfileAddress, "pprof-bind-address", "0", "where to serve Go profiles below /debug/pprof/, such as 127.0.0.1:6060; 0 means nowhere")
	flags.DurationVar(&s.BatchIdle, "batch-idle-duration", time.Second, "how long to wait for a further pod")
	flags.DurationVar(&s.BatchMax, "batch-max-duration", 10*time.Second, "how long to wait for further pods in total")
	flags.StringVar(&o.preferences, "preference-policy", "Respect", "Respect or Ignore what pods only prefer")
	flags.StringVar(&o.minValues, "min-values-policy", "Strict", "Strict, or BestEffort to allow fewer than minValues")
	flags.StringVar(&s.FeatureGates, "feature-gates", "", "gates of Karpenter: CapacityBuffer, NodeOverlay, NodeRepair and SpotToSpotConsolidation, such as NodeRepair=true")
	flags.BoolVar(&s.Kproximate, "kproximate-metrics", false, "serve metrics under the names of kproximate too")
	flags.DurationVar(&s.DriftEvery, "drift-every", time.Hour, "how often to compare all VMs with Proxmox by a full plan; 0 means never")
	flags.DurationVar(&s.Grace, "grace", 39*time.Minute, "how long a change may take to end when the controller is to stop")
	flags.StringVar(&o.logLevel, "log-level", "info", "debug, info or error")
}

func (o *controllerOptions) check() error {
	var mistakes []error
	choose := func(flag, value string, choices ...string) {
		if !slices.Contains(choices, value) {
			mistakes = append(mistakes, fmt.Errorf("--%s %q: want one of %q", flag, value, choices))
		}
	}
	choose("mode", o.mode, modeApply, modeObserve)
	choose("preference-policy", o.preferences, "Respect", "Ignore")
	choose("min-values-policy", o.minValues, "Strict", "BestEffort")
	choose("log-level", o.logLevel, "debug", "info", "error")
	s := &o.settings
	if s.BatchIdle <= 0 || s.BatchMax < s.BatchIdle {
		mistakes = append(mistakes, errors.New("--batch-max-duration must not be shorter than --batch-idle-duration, and both longer than 0"))
	}
	if s.DriftEvery < 0 || s.DriftEvery > 0 && s.DriftEvery < leastEvery {
		mistakes = append(mistakes, fmt.Errorf("--drift-every %s: want at least %s, or 0 for never", s.DriftEvery, leastEvery))
	}
	if s.BootstrapAccount == "" {
		mistakes = append(mistakes, errors.New("--bootstrap-service-account is empty: want the ServiceAccount that new nodes join as, such as numaform-bootstrap"))
	}
	if s.Grace <= 0 {
		mistakes = append(mistakes, fmt.Errorf("--grace %s: want how long a change may take to end, such as 39m", s.Grace))
	}
	if err := operator.CheckFeatureGates(s.FeatureGates); err != nil {
		mistakes = append(mistakes, err)
	}
	s.Observe = o.mode == modeObserve
	s.IgnorePreferences, s.RelaxMinValues = o.preferences == "Ignore", o.minValues == "BestEffort"
	return errors.Join(mistakes...)
}
