package cli

import (
	"errors"
	"fmt"
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
	config                 string
	kubeconfig             operator.Kubeconfig
	mode, logLevel         string
	preferences, minValues string
	clusterState           bool
	settings               operator.ControllerSettings
}

func newController(process Process) *cobra.Command {
	var o controllerOptions
	command := &cobra.Command{
		Use:   "controller",
		Short: "Run in a cluster: create nodes when pods need them, and remove unneeded nodes",
		RunE: func(command *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return usageError{err}
			}
			config, err := loadConfig(process, o.config)
			if err != nil {
				return err
			}
			if o.settings.Rest, err = o.kubeconfig.Load(); err != nil {
				return fmt.Errorf("%w, or run in a pod", err)
			}
			o.settings.Kubeconfig = o.kubeconfig.Path
			o.settings.Context = o.kubeconfig.Context
			o.settings.Rest.QPS = 200
			o.settings.Rest.Burst = 300

			o.settings.FixedHeap = slices.ContainsFunc(process.Environ, func(entry string) bool { return strings.HasPrefix(entry, "GOGC=") })
			o.settings.Version = process.Version
			o.settings.Environ = process.Environ
			level, err := zapcore.ParseLevel(o.logLevel)
			if err != nil {
				return usageError{err}
			}
			traces := zapcore.DPanicLevel // a stack does not help an operator
			if level == zapcore.DebugLevel {
				traces = zapcore.ErrorLevel
			}
			o.settings.Logger = operator.NewLogger(zap.New(zap.WriteTo(process.Stderr), zap.Level(level), zap.StacktraceLevel(traces)))
			log.SetLogger(o.settings.Logger)
			klog.SetLogger(o.settings.Logger)
			controller, err := operator.NewController(config, o.settings)
			if err != nil {
				return err
			}
			return controller.Run(command.Context())
		},
	}
	flags := command.Flags()
	s := &o.settings
	registerConfig(flags, &o.config)
	registerKubeconfig(flags, &o.kubeconfig, "kubeconfig of the cluster; in a pod, the default is its own cluster")
	flags.StringVar(&s.Namespace, "namespace", "numaform", "namespace of the controller, with its Lease, Secrets and ConfigMaps")
	flags.StringVar(&s.BootstrapAccount, "bootstrap-service-account", "numaform-bootstrap", "ServiceAccount in that namespace with which new nodes join")
	flags.BoolVar(&s.BootstrapTokens, "bootstrap-tokens", false, "create bootstrap tokens in kube-system for ProxmoxNodeClasses with spec.metadata.token: Bootstrap")
	flags.Var(choose(&o.mode, "apply", "observe"), "mode", "apply, or observe to decide and plan without writing")
	flags.BoolVar(&s.LeaderElect, "leader-elect", true, "elect a leader, so that only one of several replicas is active")
	flags.StringVar(&s.MetricsAddress, "metrics-bind-address", ":8080", "address of the metrics endpoint; 0 disables it")
	flags.StringVar(&s.ProbeAddress, "health-probe-bind-address", ":8081", "address of the health probe endpoint; 0 disables it")
	flags.StringVar(&s.ProfileAddress, "pprof-bind-address", "0", "address of the Go profiles at /debug/pprof/, such as 127.0.0.1:6060; 0 disables them")
	flags.StringVar(&s.PageAddress, "page-bind-address", "0", "address of the read-only web page, such as 127.0.0.1:8082; 0 disables it")
	flags.StringVar(&s.PageTLSDir, "page-tls-dir", "", "directory with tls.crt and tls.key of the web page; required unless its address is a loopback address")
	flags.DurationVar(&s.BatchIdle, "batch-idle-duration", time.Second, "maximum time without a new pending pod before a batch ends; it is shorter if the pods of a batch arrive quickly")
	flags.DurationVar(&s.BatchMax, "batch-max-duration", 10*time.Second, "maximum duration of a batch of pending pods")
	flags.Var(choose(&o.preferences, "Respect", "Ignore"), "preference-policy", "Respect or Ignore the preferences of pods")
	flags.Var(choose(&o.minValues, "Strict", "BestEffort"), "min-values-policy", "Strict, or BestEffort to allow fewer than minValues")
	flags.StringVar(&s.FeatureGates, "feature-gates", "", "feature gates of Karpenter, such as NodeRepair=true: CapacityBuffer, NodeOverlay, NodeRepair, SpotToSpotConsolidation and StaticCapacity")
	flags.BoolVar(&o.clusterState, "cluster-state-metrics", true, "serve Karpenter's metrics of each Node, NodeClaim and pod")
	flags.BoolVar(&s.Kproximate, "kproximate-metrics", false, "also serve metrics under the names of kproximate")
	flags.DurationVar(&s.DriftEvery, "drift-every", time.Hour, "interval for comparing all VMs with Proxmox by a full plan, and for verifying the history; 0 disables the comparison, and the history is verified every hour")
	flags.DurationVar(&s.Grace, "grace", 39*time.Minute, "maximum time to finish a change when the controller stops")
	flags.Var(choose(&o.logLevel, "info", "debug", "error"), "log-level", "debug, info or error")
	return command
}

func (o *controllerOptions) check() error {
	var mistakes []error
	s := &o.settings
	if s.BatchIdle <= 0 || s.BatchMax < s.BatchIdle {
		mistakes = append(mistakes, fmt.Errorf("--batch-max-duration %s: must be at least --batch-idle-duration %s, and both must be positive", s.BatchMax, s.BatchIdle))
	}
	if s.DriftEvery < 0 || s.DriftEvery > 0 && s.DriftEvery < leastEvery {
		mistakes = append(mistakes, fmt.Errorf("--drift-every %s: must be at least %s, or 0 to disable it", s.DriftEvery, leastEvery))
	}
	if s.BootstrapAccount == "" {
		mistakes = append(mistakes, errors.New("--bootstrap-service-account: must not be empty: set it to the ServiceAccount for joining, such as numaform-bootstrap"))
	}
	if s.Grace <= 0 {
		mistakes = append(mistakes, fmt.Errorf("--grace %s: must be positive, such as 39m", s.Grace))
	}
	if err := operator.CheckPage(s.PageAddress, s.PageTLSDir); err != nil {
		mistakes = append(mistakes, err)
	}
	if err := operator.CheckFeatureGates(s.FeatureGates); err != nil {
		mistakes = append(mistakes, err)
	}
	s.Observe = o.mode == "observe"
	s.NoClusterState = !o.clusterState
	s.IgnorePreferences = o.preferences == "Ignore"
	s.RelaxMinValues = o.minValues == "BestEffort"
	return errors.Join(mistakes...)
}
