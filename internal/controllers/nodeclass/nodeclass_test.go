package nodeclass_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/controllers/nodeclass"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// world holds the inputs of the controller under test.
type world struct {
	client.Client
	t         *testing.T
	events    *recorder
	snapshot  func() (*topology.Snapshot, error)
	metadata  error
	refused   string
	clusterID string
}

func newWorld(t *testing.T) *world {
	return &world{
		Client: newClient(t), t: t, events: &recorder{}, clusterID: "test",
		snapshot: func() (*topology.Snapshot, error) { return lab(), nil },
	}
}

func (w *world) controller() *nodeclass.Controller {
	return nodeclass.New(nodeclass.Config{
		Client: w.Client, Recorder: w.events, ClusterID: w.clusterID,
		Snapshot: func(context.Context) (*topology.Snapshot, error) { return w.snapshot() },
		Metadata: func(context.Context, *v1alpha1.ProxmoxNodeClass) error { return w.metadata },
		Template: func(context.Context, string) string { return "" },
		Types:    scheduling.DefaultInstanceTypes(),
		Clock:    clock.RealClock{},
		CanSetAffinity: func(topology.RegionName) (bool, string) {
			return w.refused == "", w.refused
		},
		CanSetHugePages: func(topology.RegionName) (bool, string) {
			return w.refused == "", w.refused
		},
	})
}

// class creates a class that is deleted at the end of the test.
func (w *world) class(name, spec string) *v1alpha1.ProxmoxNodeClass {
	w.t.Helper()
	nc := &v1alpha1.ProxmoxNodeClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := yaml.UnmarshalStrict([]byte("spec: "+spec), nc); err != nil {
		w.t.Fatal(err)
	}
	w.create(nc)
	return nc
}

func (w *world) create(object client.Object) {
	w.t.Helper()
	if err := w.Create(w.t.Context(), object); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		ctx := context.Background()
		if err := w.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return
		}
		object.SetFinalizers(nil)
		_ = w.Update(ctx, object)
		_ = w.Delete(ctx, object)
	})
}

// reconcile checks a class once, and returns the resulting object in the API server.
func (w *world) reconcile(name string) *v1alpha1.ProxmoxNodeClass {
	w.t.Helper()
	nc := w.read(name)
	if _, err := w.controller().Reconcile(w.t.Context(), nc); err != nil {
		w.t.Fatal(err)
	}
	return w.read(name)
}

func (w *world) read(name string) *v1alpha1.ProxmoxNodeClass {
	w.t.Helper()
	nc := &v1alpha1.ProxmoxNodeClass{}
	if err := w.Get(w.t.Context(), client.ObjectKey{Name: name}, nc); err != nil {
		w.t.Fatal(err)
	}
	return nc
}

// notTrue lists the conditions that are not true as "Type=Status Reason".
func notTrue(nc *v1alpha1.ProxmoxNodeClass) []string {
	var found []string
	for _, condition := range nc.Status.Conditions {
		if condition.Status != metav1.ConditionTrue && condition.Type != status.ConditionReady {
			found = append(found, fmt.Sprintf("%s=%s %s", condition.Type, condition.Status, condition.Reason))
		}
	}
	slices.Sort(found)
	return found
}

func TestStatus(t *testing.T) {
	const debian = `template: {name: debian}`
	secret := schema.GroupResource{Resource: "secrets"}
	tests := []struct {
		name, spec string
		metadata   error
		refused    string
		clusterID  string
		unread     bool
		want       []string
		says       string
		hosts      []string
	}{
		{name: "ready", spec: `{` + debian + `}`, hosts: []string{"lab/pve-1"}},
		{
			name: "template", spec: `{template: {name: ubuntu}}`, want: []string{"TemplateReady=False TemplateNotFound"},
			says: "pve-1",
		},
		{name: "storage", spec: `{` + debian + `, bootDevice: {storage: fast}}`, want: []string{"PlacementReady=False StorageNotFound"}, says: "fast"},
		{name: "storage-off", spec: `{` + debian + `, bootDevice: {storage: "off"}}`, want: []string{"PlacementReady=False StorageNotFound"}, says: "not active"},
		{name: "storage-content", spec: `{` + debian + `, bootDevice: {storage: backup}}`, want: []string{"PlacementReady=False StorageNotFound"}, says: "images"},
		{name: "pool", spec: `{` + debian + `, pool: nobody}`, want: []string{"PlacementReady=False PoolNotFound"}, says: "nobody"},
		{name: "host", spec: `{` + debian + `, hosts: [pve-9]}`, want: []string{"PlacementReady=False HostUnknown"}, says: "spec.hosts"},
		{
			name: "families", spec: `{` + debian + `, sizing: {families: [x9]}}`, hosts: []string{"lab/pve-1"},
			want: []string{"PlacementReady=False FamilyUnknown"}, says: "c1, m1, s1, t1",
		},
		{
			name: "affinity", spec: `{` + debian + `, placement: {policy: Dedicated, pinWith: Affinity}}`, hosts: []string{"lab/pve-1"},
			refused: "region lab: only root@pam", want: []string{"PlacementReady=False CredentialTooWeak"}, says: "root@pam",
		},
		{
			name: "pages", spec: `{` + debian + `, placement: {policy: NUMA, hugePages: 1Gi}}`, hosts: []string{"lab/pve-1"},
			refused: "region lab: only root@pam", want: []string{"PlacementReady=False CredentialTooWeak"}, says: "root@pam",
		},
		{
			name: "no-pages", spec: `{` + debian + `, placement: {policy: NUMA, hugePages: 2Mi}}`,
			want: []string{"PlacementReady=False HugePagesMissing"}, says: "has no huge pages of 2Mi reserved",
		},
		{
			name: "agent", spec: `{` + debian + `, placement: {policy: Dedicated, pinWith: HostAgent}}`, hosts: []string{"lab/pve-1"},
			refused: "region lab: only root@pam",
		},
		{
			name: "agent-of-others", spec: `{` + debian + `, hosts: [pve-1], placement: {policy: Dedicated, pinWith: HostAgent}}`, clusterID: "prod",
			want: []string{"PlacementReady=False HostAgentNotReady"},
			says: "lab/pve-1 has a numaform-agent that pins VMs of clusterID test, not of clusterID prod: add prod to clusters in /etc/numaform-agent.yaml on the host",
		},
		{
			name: "secret", spec: `{` + debian + `}`, metadata: fmt.Errorf("reading templates: %w", apierrors.NewNotFound(secret, "seed")),
			hosts: []string{"lab/pve-1"}, want: []string{"MetadataReady=False SecretNotFound"}, says: "seed",
		},
		{
			name: "forbidden", spec: `{` + debian + `}`, metadata: apierrors.NewForbidden(secret, "seed", nil),
			hosts: []string{"lab/pve-1"}, want: []string{"MetadataReady=False SecretForbidden"},
		},
		{
			name: "user-data", spec: `{` + debian + `}`, metadata: errors.New("user-data: line 3 is not YAML"),
			hosts: []string{"lab/pve-1"}, want: []string{"MetadataReady=False TemplatesInvalid"}, says: "line 3",
		},
		{
			name: "reasoned", spec: `{` + debian + `}`, metadata: fmt.Errorf("checking: %w", reasoned{}),
			hosts: []string{"lab/pve-1"}, want: []string{"MetadataReady=False Because"},
		},
		{
			name: "api-server", spec: `{` + debian + `}`, metadata: apierrors.NewServiceUnavailable("restarting"),
			hosts: []string{"lab/pve-1"}, want: []string{"MetadataReady=Unknown SecretUnread"},
		},
		{
			name: "connection", spec: `{` + debian + `}`, hosts: []string{"lab/pve-1"},
			metadata: fmt.Errorf("reading: %w", &url.Error{Op: "Get", URL: "https://api", Err: io.EOF}),
			want:     []string{"MetadataReady=Unknown SecretUnread"},
		},
		{
			name: "proxmox", spec: `{` + debian + `}`, unread: true,
			want: []string{"PlacementReady=Unknown ProxmoxUnread", "TemplateReady=Unknown ProxmoxUnread"}, says: "595",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.metadata, w.refused = test.metadata, test.refused
			if test.clusterID != "" {
				w.clusterID = test.clusterID
			}
			if test.unread {
				w.snapshot = func() (*topology.Snapshot, error) { return nil, errors.New("595 no route to host") }
			}
			name := "status-" + test.name
			w.class(name, test.spec)
			nc := w.reconcile(name)
			if diff := cmp.Diff(test.want, notTrue(nc)); diff != "" {
				t.Errorf("conditions differ:\n%s\n%+v", diff, nc.Status.Conditions)
			}
			if ready := nc.StatusConditions().Root().IsTrue(); ready != (len(test.want) == 0) {
				t.Errorf("ready is %v", ready)
			}
			if ready := nc.StatusConditions().Root(); ready.IsFalse() && !strings.Contains(ready.Message, test.says) {
				t.Errorf("ready says %q, want %q", ready.Message, test.says)
			}
			if diff := cmp.Diff(test.hosts, nc.Status.Hosts); diff != "" {
				t.Errorf("hosts differ:\n%s", diff)
			}
			if said := fmt.Sprint(nc.Status.Conditions); !strings.Contains(said, test.says) {
				t.Errorf("nothing says %q: %s", test.says, said)
			}
		})
	}
}

// reasoned is an error with a condition reason.
type reasoned struct{}

func (reasoned) Error() string           { return "for a reason" }
func (reasoned) ConditionReason() string { return "Because" }

// TestInvalidSpec checks that a class that Validate refuses is reported, and that no other
// check runs.
func TestInvalidSpec(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.snapshot = func() (*topology.Snapshot, error) { panic("asked") }
	w.class("invalid", `{template: {name: debian}}`)
	nc := w.read("invalid")
	nc.Finalizers = []string{v1alpha1.FinalizerNodeClass}
	if err := w.Update(t.Context(), nc); err != nil {
		t.Fatal(err)
	}
	// The CRD of another version may accept this size.
	nc.Spec.BootDevice = &v1alpha1.BootDevice{Size: "40"}
	nc.Annotations = map[string]string{
		v1alpha1.AnnotationClassHash: scheduling.ClassHash(nc), v1alpha1.AnnotationClassHashVersion: scheduling.ClassHashVersion,
	}
	if _, err := w.controller().Reconcile(t.Context(), nc); err != nil {
		t.Fatal(err)
	}
	nc = w.read("invalid")
	want := []string{
		"MetadataReady=Unknown Invalid", "PlacementReady=Unknown Invalid", "TemplateReady=Unknown Invalid", "Valid=False Invalid",
	}
	if diff := cmp.Diff(want, notTrue(nc)); diff != "" {
		t.Errorf("conditions differ:\n%s", diff)
	}
	if said := fmt.Sprint(nc.Status.Conditions); !strings.Contains(said, "spec.bootDevice.size") {
		t.Errorf("says %s", said)
	}
	if root := nc.StatusConditions().Root(); !root.IsFalse() {
		t.Errorf("ready is %+v", root)
	}
}

func TestEventsTellOfChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.class("events", `{template: {name: debian}}`)
	w.snapshot = func() (*topology.Snapshot, error) {
		s := lab()
		s.Hosts[0].Templates = nil
		return s, nil
	}
	w.reconcile("events")
	if got := w.events.take(); !slices.Contains(got, v1alpha1.ReasonTemplateNotFound) || slices.Contains(got, nodeclass.ReasonReady) {
		t.Errorf("events are %v", got)
	}
	w.reconcile("events")
	if got := w.events.take(); len(got) != 0 {
		t.Errorf("events without a change: %v", got)
	}
	w.snapshot = func() (*topology.Snapshot, error) { return lab(), nil }
	w.reconcile("events")
	if diff := cmp.Diff([]string{nodeclass.ReasonReady}, w.events.take()); diff != "" {
		t.Errorf("events differ:\n%s", diff)
	}
}

// TestHostsStayWhileProxmoxIsSilent checks that the status keeps the hosts of the last
// check while Proxmox does not respond.
func TestHostsStayWhileProxmoxIsSilent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.class("silent", `{template: {name: debian}}`)
	w.reconcile("silent")
	w.snapshot = func() (*topology.Snapshot, error) { return nil, errors.New("timeout") }
	nc := w.reconcile("silent")
	if !slices.Equal(nc.Status.Hosts, []string{"lab/pve-1"}) || !nc.StatusConditions().Root().IsUnknown() {
		t.Errorf("status is %+v", nc.Status)
	}
}

// claim creates a NodeClaim of a class.
func (w *world) claim(name, class string, annotations map[string]string) *karpv1.NodeClaim {
	w.t.Helper()
	claim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.KindProxmoxNodeClass, Name: class},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{},
		},
	}
	w.create(claim)
	return claim
}

func TestHashFollowsTheClass(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.class("hash", `{template: {name: debian}, tags: [a]}`)
	first := w.reconcile("hash")
	want := scheduling.ClassHash(first)
	if got := first.Annotations[v1alpha1.AnnotationClassHash]; got != want || want == "" || first.Status.Hash != want {
		t.Errorf("hash is %q and %q, want %q", got, first.Status.Hash, want)
	}
	first.Spec.Tags = []string{"b"}
	if err := w.Update(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	same := w.reconcile("hash")
	if got := same.Annotations[v1alpha1.AnnotationClassHash]; got != want {
		t.Errorf("tags changed the hash to %q", got)
	}
	same.Spec.BootDevice = &v1alpha1.BootDevice{Size: "80G"}
	if err := w.Update(t.Context(), same); err != nil {
		t.Fatal(err)
	}
	if got := w.reconcile("hash").Annotations[v1alpha1.AnnotationClassHash]; got == want {
		t.Error("another disk left the hash as it was")
	}
}

// TestHashVersionUpgrade checks that an upgrade with another hash algorithm does not by
// itself replace nodes, and that a node that had drifted before is still drifted.
func TestHashVersionUpgrade(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	nc := w.class("upgrade", `{template: {name: debian}}`)
	old := map[string]string{v1alpha1.AnnotationClassHash: "old", v1alpha1.AnnotationClassHashVersion: "v0"}
	w.claim("upgrade-steady", "upgrade", old)
	drifted := w.claim("upgrade-drifted", "upgrade", old)
	drifted.StatusConditions().SetTrue(karpv1.ConditionTypeDrifted)
	if err := w.Status().Update(t.Context(), drifted); err != nil {
		t.Fatal(err)
	}
	w.claim("upgrade-new", "upgrade", map[string]string{
		v1alpha1.AnnotationClassHash: "other", v1alpha1.AnnotationClassHashVersion: scheduling.ClassHashVersion,
	})
	w.claim("upgrade-other", "another-class", old)
	w.reconcile("upgrade")
	hash := scheduling.ClassHash(nc)
	for name, want := range map[string][2]string{
		"upgrade-steady":  {hash, scheduling.ClassHashVersion},
		"upgrade-drifted": {"old", scheduling.ClassHashVersion},
		"upgrade-new":     {"other", scheduling.ClassHashVersion},
		"upgrade-other":   {"old", "v0"},
	} {
		var claim karpv1.NodeClaim
		if err := w.Get(t.Context(), client.ObjectKey{Name: name}, &claim); err != nil {
			t.Fatal(err)
		}
		got := [2]string{claim.Annotations[v1alpha1.AnnotationClassHash], claim.Annotations[v1alpha1.AnnotationClassHashVersion]}
		if got != want {
			t.Errorf("%s has %v, want %v", name, got, want)
		}
	}
}

// TestConflictIsTriedAgain checks that a conflict with another writer is not an error: the
// class is checked again.
func TestConflictIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stale := w.class("conflict", `{template: {name: debian}}`)
	other := w.read("conflict")
	other.Labels = map[string]string{"by": "somebody"}
	if err := w.Update(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	result, err := w.controller().Reconcile(t.Context(), stale)
	if err != nil || result.RequeueAfter == 0 {
		t.Errorf("got %+v, %v", result, err)
	}
	if got := w.read("conflict"); got.Labels["by"] != "somebody" {
		t.Errorf("labels are %v", got.Labels)
	}
}

// TestDeletionWaitsForNodeClaims checks that a class with NodeClaims remains until the last
// of them is deleted, which triggers the controller under its manager. The test runs before
// the parallel tests, because the controller would check their classes too.
func TestDeletionWaitsForNodeClaims(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	manager, err := controllerruntime.NewManager(plane.Cluster(t).Config, controllerruntime.Options{
		Scheme: newScheme(t), Metrics: server.Options{BindAddress: "0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Client = manager.GetClient()
	if err := w.controller().Register(ctx, manager); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	w.Client = newClient(t)
	nc := w.class("waits", `{template: {name: debian}}`)
	claim := w.claim("waits-claim", "waits", nil)
	eventually(t, func() error {
		if got := w.read("waits"); !slices.Contains(got.Finalizers, v1alpha1.FinalizerNodeClass) || !got.StatusConditions().Root().IsTrue() {
			return fmt.Errorf("class is %+v", got)
		}
		return nil
	})
	if err := w.Delete(ctx, nc); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if said := strings.Join(w.events.messages(nodeclass.ReasonWaitingOnNodeClaims), "\n"); !strings.Contains(said, "waits-claim") {
			return fmt.Errorf("events say %q", said)
		}
		return nil
	})
	if got := w.read("waits"); got.DeletionTimestamp.IsZero() {
		t.Error("the class is not being deleted")
	}
	if err := w.Delete(ctx, claim); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		err := w.Get(ctx, client.ObjectKey{Name: "waits"}, &v1alpha1.ProxmoxNodeClass{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("the class is still there: %w", err)
		}
		return nil
	})
}

// TestLooksAgain checks that a class that is not ready is checked again sooner than a ready
// one.
func TestLooksAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.class("again", `{template: {name: debian}}`)
	w.reconcile("again")
	ready, err := w.controller().Reconcile(t.Context(), w.read("again"))
	if err != nil {
		t.Fatal(err)
	}
	w.metadata = errors.New("broken")
	broken, err := w.controller().Reconcile(t.Context(), w.read("again"))
	if err != nil {
		t.Fatal(err)
	}
	if ready.RequeueAfter == 0 || broken.RequeueAfter == 0 || broken.RequeueAfter >= ready.RequeueAfter {
		t.Errorf("ready %v, broken %v", ready, broken)
	}
}
