package operator_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// TestStateLocks checks which locks of states are found without an engine: held locks of
// the fleet's hosts, in the namespace of the states. For other backends, they are unknown.
func TestStateLocks(t *testing.T) {
	t.Parallel()
	pve1, pve2, pve3 := topology.HostID{Region: "lab", Host: "pve-1"}, topology.HostID{Region: "lab", Host: "pve-2"}, topology.HostID{Region: "lab", Host: "pve-3"}
	lease := func(host topology.HostID, holder, info string) coordinationv1.Lease {
		l := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "lock-tfstate-default-" + generator.StateName("prod", host)}}
		if holder != "" {
			l.Spec.HolderIdentity = &holder
		}
		if info != "" {
			l.Annotations = map[string]string{"app.terraform.io/lock-info": info}
		}
		return l
	}
	leases := coordinationv1.LeaseList{
		TypeMeta: metav1.TypeMeta{Kind: "LeaseList", APIVersion: "coordination.k8s.io/v1"},
		Items: []coordinationv1.Lease{
			lease(pve2, "7b0c", `{"ID":"7b0c","Operation":"OperationTypeApply","Who":"root@numaform-0","Created":"2026-11-21T13:45:01Z"}`),
			lease(pve1, "8c1d", ""), lease(pve3, "", ""), lease(topology.HostID{Region: "lab", Host: "pve-9"}, "other", ""),
		},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/coordination.k8s.io/v1/namespaces/states/leases" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"leases is forbidden","code":403}`)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(leases)
	}))
	defer server.Close()
	cluster := operator.Kubeconfig{Rest: &rest.Config{Host: server.URL}}
	held := []operator.StateLock{
		{Host: pve1, LockInfo: state.LockInfo{ID: "8c1d"}},
		{Host: pve2, LockInfo: state.LockInfo{ID: "7b0c", Operation: "OperationTypeApply", Who: "root@numaform-0", Created: time.Date(2026, 11, 21, 13, 45, 1, 0, time.UTC)}},
	}
	current := &fleet.Fleet{Hosts: []topology.HostID{pve1, pve2, pve3}}
	for name, tt := range map[string]struct {
		backend fleet.Backend
		environ []string
		current *fleet.Fleet
		want    []operator.StateLock
		unknown string
	}{
		"kubernetes":         {fleet.Backend{Type: "kubernetes", Config: map[string]string{"namespace": "states"}}, nil, current, held, ""},
		"by the environment": {fleet.Backend{Type: "kubernetes"}, []string{"KUBE_NAMESPACE=states"}, current, held, ""},
		"forbidden":          {fleet.Backend{Type: "kubernetes"}, nil, current, nil, "listing the Leases in namespace default: leases is forbidden"},
		"another cluster":    {fleet.Backend{Type: "kubernetes", Config: map[string]string{"host": "x"}}, nil, current, nil, "the settings of the backend"},
		"its own login":      {fleet.Backend{Type: "kubernetes"}, []string{"KUBE_TOKEN=x"}, current, nil, "the settings of the backend"},
		"pg":                 {fleet.Backend{Type: "pg"}, nil, current, nil, "only the engine can read locks of the backend pg"},
		"no states":          {fleet.Backend{Type: "pg"}, nil, &fleet.Fleet{}, nil, ""},
		"local":              {fleet.Backend{Type: "local"}, nil, current, nil, ""},
		"local elsewhere":    {fleet.Backend{Type: "local", Config: map[string]string{"path": "/x/{state}"}}, nil, current, nil, "the states are files outside of state_dir"},
	} {
		t.Run(name, func(t *testing.T) {
			config := &operator.Config{ClusterID: "prod", StateDir: t.TempDir()}
			config.Fleet.Backend.Type, config.Fleet.Backend.Config = tt.backend.Type, tt.backend.Config
			got, unknown := config.StateLocks(t.Context(), tt.environ, cluster, tt.current)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if !strings.HasPrefix(unknown, tt.unknown) || tt.unknown == "" && unknown != "" {
				t.Errorf("unknown %q, want %q", unknown, tt.unknown)
			}
		})
	}
}
