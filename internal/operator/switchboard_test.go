package operator_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/internal/control"
	"github.com/numaform/numaform/internal/operator"
)

// TestSwitchReportsOnce checks that each problem of a switch that is read every two seconds
// for three minutes is reported once.
func TestSwitchReportsOnce(t *testing.T) {
	t.Parallel()
	broken := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "numaform", Name: control.ConfigMapName}, Data: map[string]string{"paused": "perhaps"}}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, control.ConfigMapName, errors.New("no"))
	for _, tt := range []struct {
		name  string
		have  []runtime.Object
		fail  error
		first int // lines after the first reading
	}{
		{"invalid", []runtime.Object{broken}, nil, 1},
		{"forbidden", nil, forbidden, 1},
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
			t.Errorf("%s: reported %q at once", tt.name, lines)
		}
		for range 90 {
			now = now.Add(2 * time.Second)
			ask(ctx)
		}
		if len(lines) != 1 {
			t.Errorf("%s: reported %d times: %q", tt.name, len(lines), lines)
		}
	}
}

// TestSwitchIsWatched checks that a pause is noticed by a watch or, if watching is
// forbidden, by polling.
func TestSwitchIsWatched(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		forbidden bool
	}{{"watched", false}, {"polled", true}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			client := fake.NewClientset()
			if tt.forbidden {
				forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, control.ConfigMapName, errors.New("no"))
				client.PrependWatchReactor("configmaps", func(k8stesting.Action) (bool, watch.Interface, error) { return true, nil, forbidden })
			}
			ctx, cancel := context.WithCancel(log.IntoContext(t.Context(), logr.Discard()))
			paused, done := operator.WatchSwitch(ctx, client, "numaform")
			reads := func() int {
				count := 0
				for _, action := range client.Actions() {
					if action.Matches("get", "configmaps") {
						count++
					}
				}
				return count
			}
			until(t, "it is read", func() bool { return reads() > 0 })
			if err := control.New(client, "numaform").Pause(t.Context(), "test"); err != nil {
				t.Fatal(err)
			}
			until(t, "it pauses", paused)
			cancel()
			<-done
			// Allow one read for each change, and the reads by Pause itself.
			if got := reads(); !tt.forbidden && got > 4 {
				t.Errorf("the switch was read %d times", got)
			}
		})
	}
}

// until waits until a condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for range 1000 {
		if holds() {
			return
		}
		<-ticker.C
	}
	t.Fatalf("not within ten seconds: %s", what)
}
