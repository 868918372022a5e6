// Package control is the switch shared by people and numaform's controllers: the
// ConfigMap numaform-control records whether numaform is paused and which hosts are being
// evacuated. It makes no decisions and moves no nodes. Start at Switch.
package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	v1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/retry"

	"github.com/numaform/numaform/topology"
)

// ConfigMapName is the name of the ConfigMap in numaform's namespace.
const ConfigMapName = "numaform-control"

// The keys of the ConfigMap. Other keys are not changed.
const (
	keyPaused      = "paused"
	keyPausedBy    = "paused-by"
	keyEvacuate    = "evacuate"
	keyEvacuatedBy = "evacuated-by"
)

// State is the state that users requested.
type State struct {
	// Paused stops numaform from starting new changes.
	Paused bool
	// By is who paused numaform, or empty if this is unknown or numaform is not paused.
	By string
	// Evacuated are the hosts from which nodes are moved away and which get no new ones,
	// sorted.
	Evacuated []topology.HostID
	// EvacuatedBy is who requested the last evacuation, or empty.
	EvacuatedBy string
}

// MalformedError reports invalid content of the ConfigMap.
type MalformedError struct {
	Namespace, Key, Value, Want string
}

func (e *MalformedError) Error() string {
	return fmt.Sprintf("ConfigMap %s/%s: %s: %q is invalid: must be %s; numaform is paused until you correct it",
		e.Namespace, ConfigMapName, e.Key, e.Value, e.Want)
}

// Switch reads and writes the ConfigMap.
type Switch struct{ configMaps v1.ConfigMapInterface }

// New returns the switch in numaform's namespace. It does no I/O.
func New(client kubernetes.Interface, namespace string) *Switch {
	return &Switch{configMaps: client.CoreV1().ConfigMaps(namespace)}
}

// Read returns the requested state, which is empty if the ConfigMap does not exist. With
// any error, the returned State is paused, because the content may have been meant to stop
// numaform.
func (s *Switch) Read(ctx context.Context) (State, error) {
	configMap, err := s.configMaps.Get(ctx, ConfigMapName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return State{}, nil
	}
	if err != nil {
		return State{Paused: true}, fmt.Errorf("reading ConfigMap %s: %w", ConfigMapName, err)
	}
	return parse(configMap)
}

// Watch calls changed at once, and whenever the ConfigMap may have changed. It returns an
// error if it cannot start the watch, or the first error of changed. It returns nil when
// Kubernetes ends the watch or ctx ends.
func (s *Switch) Watch(ctx context.Context, changed func() error) error {
	watch, err := s.configMaps.Watch(ctx, metav1.SingleObject(metav1.ObjectMeta{Name: ConfigMapName}))
	if err != nil {
		return fmt.Errorf("watching ConfigMap %s: %w", ConfigMapName, err)
	}
	defer context.AfterFunc(ctx, watch.Stop)()
	defer watch.Stop()
	if err := changed(); err != nil {
		return err
	}
	for range watch.ResultChan() {
		if err := changed(); err != nil {
			return err
		}
	}
	return nil
}

func parse(configMap *corev1.ConfigMap) (State, error) {
	data := configMap.Data
	state := State{By: data[keyPausedBy], EvacuatedBy: data[keyEvacuatedBy]}
	var mistakes []error
	switch value := strings.TrimSpace(data[keyPaused]); value {
	case "", "false":
	case "true":
		state.Paused = true
	default:
		mistakes = append(mistakes, &MalformedError{Namespace: configMap.Namespace, Key: keyPaused, Value: value, Want: `"true" or "false"`})
	}
	for name := range strings.SplitSeq(data[keyEvacuate], ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		var host topology.HostID
		if err := host.UnmarshalText([]byte(name)); err != nil {
			mistakes = append(mistakes, &MalformedError{
				Namespace: configMap.Namespace, Key: keyEvacuate, Value: name, Want: "hosts as region/host, with commas between them",
			})
			continue
		}
		state.Evacuated = append(state.Evacuated, host)
	}
	slices.SortFunc(state.Evacuated, topology.HostID.Compare)
	state.Evacuated = slices.Compact(state.Evacuated)
	state.Paused = state.Paused || len(mistakes) > 0
	return state, errors.Join(mistakes...)
}

// Pause stops numaform from starting new changes. by is who requested the pause; if
// numaform is already paused, the recorded user remains.
func (s *Switch) Pause(ctx context.Context, by string) error {
	return s.change(ctx, "pausing", func(data map[string]string) {
		if data[keyPaused] != "true" {
			data[keyPaused], data[keyPausedBy] = "true", by
		}
	})
}

// Resume allows changes again.
func (s *Switch) Resume(ctx context.Context) error {
	return s.change(ctx, "resuming", func(data map[string]string) {
		delete(data, keyPaused)
		delete(data, keyPausedBy)
	})
}

// Evacuate requests that a host's nodes are moved away and that the host gets no new ones.
// by is who requested the evacuation.
func (s *Switch) Evacuate(ctx context.Context, host topology.HostID, by string) error {
	return s.change(ctx, "evacuating "+host.String(), func(data map[string]string) {
		data[keyEvacuatedBy] = by
		setHosts(data, func(hosts map[string]bool) { hosts[host.String()] = true })
	})
}

// EndEvacuation allows nodes on a host again.
func (s *Switch) EndEvacuation(ctx context.Context, host topology.HostID) error {
	return s.change(ctx, "ending the evacuation of "+host.String(), func(data map[string]string) {
		setHosts(data, func(hosts map[string]bool) { delete(hosts, host.String()) })
	})
}

// setHosts changes the list of hosts. It keeps invalid elements.
func setHosts(data map[string]string, change func(hosts map[string]bool)) {
	hosts := map[string]bool{}
	for name := range strings.SplitSeq(data[keyEvacuate], ",") {
		if name = strings.TrimSpace(name); name != "" {
			hosts[name] = true
		}
	}
	change(hosts)
	if len(hosts) == 0 {
		delete(data, keyEvacuate)
		delete(data, keyEvacuatedBy)
		return
	}
	data[keyEvacuate] = strings.Join(slices.Sorted(maps.Keys(hosts)), ",")
}

// change writes the ConfigMap, and retries on conflict.
func (s *Switch) change(ctx context.Context, doing string, change func(data map[string]string)) error {
	again := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	// The jitter spreads the retries of people and controllers that write at the same time.
	backoff := wait.Backoff{Steps: 12, Duration: 10 * time.Millisecond, Factor: 1.5, Jitter: 1}
	// If ctx ends, OnError returns the last conflict, or nil if there was none.
	var last error
	err := retry.OnError(backoff, again, func() error {
		last = s.write(ctx, change)
		return last
	})
	if err = cmp.Or(err, last); err != nil {
		return fmt.Errorf("%s: writing ConfigMap %s: %w", doing, ConfigMapName, err)
	}
	return nil
}

// write changes the ConfigMap once, and creates it if it does not exist.
func (s *Switch) write(ctx context.Context, change func(data map[string]string)) error {
	configMap, err := s.configMaps.Get(ctx, ConfigMapName, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if missing {
		configMap = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: ConfigMapName}}
	} else if err != nil {
		return err
	}
	before := maps.Clone(configMap.Data)
	if configMap.Data == nil {
		configMap.Data = map[string]string{}
	}
	change(configMap.Data)
	switch {
	case maps.Equal(before, configMap.Data):
		return nil
	case missing:
		_, err = s.configMaps.Create(ctx, configMap, metav1.CreateOptions{})
	default:
		_, err = s.configMaps.Update(ctx, configMap, metav1.UpdateOptions{})
	}
	return err
}
