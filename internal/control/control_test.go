package control_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/numaform/numaform/internal/control"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

var pve1 = topology.HostID{Region: "lab", Host: "pve-1"}

// data reads the ConfigMap.
func data(t *testing.T, client kubernetes.Interface, namespace string) map[string]string {
	t.Helper()
	configMap, err := client.CoreV1().ConfigMaps(namespace).Get(t.Context(), control.ConfigMapName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return configMap.Data
}

// write replaces the ConfigMap with the given data.
func write(t *testing.T, client kubernetes.Interface, namespace string, data map[string]string) {
	t.Helper()
	configMaps := client.CoreV1().ConfigMaps(namespace)
	if err := configMaps.Delete(t.Context(), control.ConfigMapName, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: control.ConfigMapName}, Data: data}
	if _, err := configMaps.Create(t.Context(), configMap, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestSwitch(t *testing.T) {
	client := testenv.ControlPlane(t).Client(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "numaform"}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := control.New(client, "numaform")
	read := func(want control.State) {
		t.Helper()
		got, err := s.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("state (-want +got):\n%s", diff)
		}
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	read(control.State{})
	do(s.Pause(t.Context(), "alice"))
	do(s.Pause(t.Context(), "bob"))
	read(control.State{Paused: true, By: "alice"})
	do(s.Evacuate(t.Context(), pve1, "bob"))
	read(control.State{Paused: true, By: "alice", Evacuated: []topology.HostID{pve1}, EvacuatedBy: "bob"})
	do(s.Resume(t.Context()))
	do(s.Resume(t.Context()))
	read(control.State{Evacuated: []topology.HostID{pve1}, EvacuatedBy: "bob"})
	do(s.EndEvacuation(t.Context(), pve1))
	do(s.EndEvacuation(t.Context(), pve1))
	read(control.State{})

	// A change keeps other keys, and no concurrent change is lost.
	write(t, client, "numaform", map[string]string{"note": "ours", "evacuate": " lab/pve-9 , not-a-host,"})
	var group errgroup.Group
	for i := range 6 {
		group.Go(func() error {
			return s.Evacuate(t.Context(), topology.HostID{Region: "lab", Host: topology.HostName(fmt.Sprintf("pve-%d", i))}, "carol")
		})
	}
	do(group.Wait())
	want := map[string]string{
		"note": "ours", "evacuated-by": "carol", "evacuate": "lab/pve-0,lab/pve-1,lab/pve-2,lab/pve-3,lab/pve-4,lab/pve-5,lab/pve-9,not-a-host",
	}
	if diff := cmp.Diff(want, data(t, client, "numaform")); diff != "" {
		t.Errorf("data (-want +got):\n%s", diff)
	}

	// If the ConfigMap cannot be read, numaform is paused: the content may have been meant
	// to stop it.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if state, err := s.Read(ctx); !state.Paused || err == nil {
		t.Errorf("state %+v, error %v", state, err)
	}
	if err := s.Pause(ctx, "alice"); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "pausing: writing ConfigMap numaform-control") {
		t.Errorf("error %v", err)
	}
}

func TestWhatNobodyUnderstandsPauses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		data map[string]string
		want string
	}{
		{"yes", map[string]string{"paused": "yes"}, `paused: "yes" is invalid: must be "true" or "false"`},
		{"host", map[string]string{"evacuate": "lab/pve-1,pve-2"}, `evacuate: "pve-2" is invalid: must be hosts as region/host`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			client := fake.NewClientset()
			write(t, client, "numaform", tt.data)
			state, err := control.New(client, "numaform").Read(t.Context())
			var malformed *control.MalformedError
			if !state.Paused || !errors.As(err, &malformed) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("state %+v, error %v", state, err)
			}
		})
	}
	client := fake.NewClientset()
	write(t, client, "numaform", map[string]string{"paused": " false ", "evacuate": "lab/pve-1, lab/pve-1"})
	state, err := control.New(client, "numaform").Read(t.Context())
	if err != nil || state.Paused || len(state.Evacuated) != 1 || state.Evacuated[0] != pve1 {
		t.Errorf("state %+v, error %v", state, err)
	}
}
