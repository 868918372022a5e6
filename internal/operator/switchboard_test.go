package operator_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/internal/control"
	"github.com/numaform/numaform/internal/operator"
)

// TestSwitchTellsOnce reads a broken switch every two seconds for three minutes: each
// problem is reported once.
func TestSwitchTellsOnce(t *testing.T) {
	t.Parallel()
	broken := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "numaform", Name: control.ConfigMapName}, Data: map[string]string{"paused": "perhaps"}}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, control.ConfigMapName, errors.New("no"))
	for _, tt := range []struct {
		name  string
		have  []runtime.Object
		fail  error
		first int // lines after the first reading
	}{
		{"nobody understands it", []runtime.Object{broken}, nil, 1},
		{"nobody lets it be read", nil, forbidden, 1},
		{"the API server is gone", nil, errors.New("connection refused"), 0},
	} {
		var lines []string
		logger := funcr.New(func(_, args string) {
			if strings.Contains(args, `"error"`) {
				lines = append(lines, args)
			}
		}, funcr.Options{})
		client := fake.NewClientset(tt.have...)
		if tt.fail != nil {
			client.PrependReactor("get", "configmaps", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, tt.fail })
		}
		now := time.Now()
		ask := operator.AskSwitch(client, "numaform", func() time.Time { return now })
		ctx := log.IntoContext(t.Context(), logger)
		ask(ctx)
		if len(lines) != tt.first {
			t.Errorf("%s: told %q at once", tt.name, lines)
		}
		for range 90 {
			now = now.Add(2 * time.Second)
			ask(ctx)
		}
		if len(lines) != 1 {
			t.Errorf("%s: told %d times: %q", tt.name, len(lines), lines)
		}
	}
}
