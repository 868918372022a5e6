package template_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/template"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// templates is a fleet with the requested templates, in a given state.
type templates struct {
	state  scaler.TemplateState
	states []scaler.TemplateState
}

func (f *templates) SetTemplates(_ string, request scaler.TemplateRequest) {
	f.states = nil
	for _, requested := range request.Templates {
		state := f.state
		state.Template, state.Desired = requested, true
		f.states = append(f.states, state)
	}
}
func (f *templates) ForgetTemplates(string) { f.states = nil }

func (f *templates) Templates(string) (states []scaler.TemplateState, known bool) {
	return f.states, true
}

type noEvents struct{}

func (noEvents) Publish(...events.Event) {}

// TestWait checks that the controller sends no requests for a minute while all templates are
// ready or there are none, unless a ProxmoxTemplate changes, and that otherwise it checks
// every five seconds.
func TestWait(t *testing.T) {
	t.Parallel()
	soon, again := reconciler.Result{RequeueAfter: 5 * time.Second}, reconciler.Result{RequeueAfter: time.Second}
	for name, c := range map[string]struct {
		existing []client.Object
		state    scaler.TemplateState
		denied   bool
		// during runs once the controller waits.
		during func(t *testing.T, api client.Client, clk *testclock.FakeClock)
		want   reconciler.Result
	}{
		"a first one": {
			during: func(t *testing.T, api client.Client, _ *testclock.FakeClock) {
				t.Helper()
				if err := api.Create(context.Background(), debian()); err != nil {
					t.Error(err)
				}
			},
			want: again,
		},
		"nothing for a minute": {
			during: func(_ *testing.T, _ client.Client, clk *testclock.FakeClock) { clk.Step(time.Minute) },
			want:   again,
		},
		"one that becomes ready": {existing: []client.Object{debian()}, state: scaler.TemplateState{Ready: true}, want: soon},
		"one in progress":        {existing: []client.Object{debian()}, state: scaler.TemplateState{Applying: true}, want: soon},
		"watching is not allowed": {
			denied: true,
			want:   soon,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scheme := runtime.NewScheme()
			if err := v1alpha1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			watching := make(chan struct{}, 1)
			api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(c.existing...).WithStatusSubresource(&v1alpha1.ProxmoxTemplate{}).
				WithInterceptorFuncs(interceptor.Funcs{
					Watch: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
						if c.denied {
							return nil, errors.New("forbidden")
						}
						changes, err := api.Watch(ctx, list, opts...)
						watching <- struct{}{}
						return changes, err
					},
				}).Build()
			clk := testclock.NewFakeClock(time.Now())
			controller := template.New(template.Config{
				Client: api, Recorder: noEvents{}, Fleet: &templates{state: c.state}, Clock: clk,
				Snapshot: func(context.Context) (*topology.Snapshot, error) { return hosts(func(*topology.Host) {}), nil },
			})
			if c.during != nil {
				go func() {
					<-watching
					c.during(t, api, clk)
				}()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			got, err := controller.Reconcile(ctx)
			if err != nil || got != c.want {
				t.Errorf("%+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

// TestWaitWhenReady checks that the controller waits for changes once its own status says that
// all templates are ready.
func TestWaitWhenReady(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	clk := testclock.NewFakeClock(time.Now())
	watched := false
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(debian()).WithStatusSubresource(&v1alpha1.ProxmoxTemplate{}).
		WithInterceptorFuncs(interceptor.Funcs{
			Watch: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
				watched = true
				clk.Step(time.Minute)
				return api.Watch(ctx, list, opts...)
			},
		}).Build()
	controller := template.New(template.Config{
		Client: api, Recorder: noEvents{}, Clock: clk,
		Fleet:    &templates{state: scaler.TemplateState{Ready: true, Template: fleet.Template{VMID: 9100}}},
		Snapshot: func(context.Context) (*topology.Snapshot, error) { return hosts(func(*topology.Host) {}), nil },
	})
	for _, want := range []time.Duration{5 * time.Second, time.Second} {
		got, err := controller.Reconcile(t.Context())
		if err != nil || got.RequeueAfter != want || watched != (want != 5*time.Second) {
			t.Errorf("%+v, %v, watched: %t; want %v", got, err, watched, want)
		}
	}
}
