package seed_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/seed"
	"github.com/numaform/numaform/internal/guestsim"
	"github.com/numaform/numaform/internal/jointoken"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

const (
	clusterID = "prod"
	// namespace is numaform's namespace.
	namespace = "default"
	// account is the ServiceAccount that nodes join as.
	account = "numaform-bootstrap"
	version = "v1.35.1"
)

// start is the time at which tests begin, in whole seconds like the times of tokens.
var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// plane is the control plane of the package's tests.
var plane = testenv.Shared{Prepare: prepare}

// logged records everything that was logged, at every level.
type logged struct {
	// mu guards text.
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) write(prefix, args string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.WriteString(prefix + args + "\n")
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

var logs logged

func TestMain(m *testing.M) {
	log.SetLogger(funcr.New(logs.write, funcr.Options{Verbosity: 9}))
	os.Exit(plane.Main(m))
}

// prepare creates the objects that every world needs.
func prepare(cluster *testenv.Cluster) error {
	if err := v1alpha1.AddToScheme(scheme.Scheme); err != nil {
		return err
	}
	c, err := client.New(cluster.Config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		return err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}}
	return errors.Join(c.Create(context.Background(), account), c.Create(context.Background(), class("default")))
}

// class returns a class whose nodes get seeds.
func class(name string) *v1alpha1.ProxmoxNodeClass {
	return &v1alpha1.ProxmoxNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ProxmoxNodeClassSpec{
			Template: v1alpha1.TemplateReference{Name: testenv.Template},
			Metadata: v1alpha1.Metadata{Type: v1alpha1.MetadataCDROM},
		},
	}
}

// world is the environment of a Seeder: a real API server and a simulated Proxmox.
type world struct {
	t       *testing.T
	client  client.Client
	cluster *testenv.Cluster
	proxmox *pvesim.Server
	api     *proxmox.Client
	clock   *clocktesting.FakeClock
	config  seed.Config

	// mu guards the fields below.
	mu       sync.Mutex
	vms      []fleet.VM
	unread   bool
	recorded []string
}

// indexed is a client with the index of NodeClaims that the manager's cache has.
type indexed struct{ client.Client }

func (c indexed) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	all := (&client.ListOptions{}).ApplyOptions(options)
	claims, ok := list.(*karpv1.NodeClaimList)
	if !ok || all.FieldSelector == nil {
		return c.Client.List(ctx, list, options...)
	}
	key, _ := all.FieldSelector.RequiresExactMatch(scheduling.FieldKeyOfUID)
	err := c.Client.List(ctx, claims)
	claims.Items = slices.DeleteFunc(claims.Items, func(claim karpv1.NodeClaim) bool { return scheduling.IndexKeyOfUID(&claim) != key })
	return err
}

func newWorld(t *testing.T, change ...func(*seed.Config)) *world {
	t.Helper()
	cluster := plane.Cluster(t)
	c, err := client.New(cluster.Config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, client: c, cluster: cluster, proxmox: testenv.Proxmox(t), clock: clocktesting.NewFakeClock(start)}
	w.api = testenv.Client(t, w.proxmox)
	w.config = seed.Config{
		ClusterID: clusterID,
		Cluster: seed.Cluster{
			Client: indexed{w.client}, Live: w.client, REST: w.cluster.Config, Namespace: namespace, Account: account,
			Version: func() (string, error) { return version, nil },
		},
		Regions:  map[topology.RegionName]seed.Region{testenv.Region: {Proxmox: w.api, VMIDs: fleet.VMIDRange{Lower: 2000, Upper: 2999}, Stop: time.Second, Upload: time.Minute}},
		VMs:      w.fleet,
		VM:       w.withKey,
		Snapshot: w.api.Snapshot,
		Types:    scheduling.DefaultInstanceTypes(),
		Record: func(_ context.Context, written []string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.recorded = append(w.recorded, written...)
		},
		Clock: w.clock,
	}
	for _, change := range change {
		change(&w.config)
	}
	return w
}

func (w *world) seeder() *seed.Seeder { return seed.New(w.config) }

// running means that numaform is not paused.
func running() bool { return false }

func (w *world) controller() *seed.Controller { return seed.NewController(w.seeder(), running) }

func (w *world) fleet() ([]fleet.VM, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.vms), !w.unread
}

func (w *world) withKey(key fleet.Key) (*fleet.VM, bool) {
	vms, known := w.fleet()
	for i := range vms {
		if vms[i].Key == key {
			return &vms[i], known
		}
	}
	return nil, known
}

// vm adds a VM to the fleet. Each test has its own VMIDs, because the tests share the API
// server.
func (w *world) vm(number fleet.VMID, host topology.HostName) fleet.VM {
	w.t.Helper()
	key := fleet.Key(fmt.Sprintf("%08x%024d", int(number), 7))
	vm := fleet.VM{Key: key, VMID: number, Name: fleet.NodeName("workers", number)}
	vm.NodeClass, vm.InstanceType, vm.VCPUs, vm.MemoryMiB = "default", "s1.2VCPU-8GB", 2, 8192
	vm.Host = topology.HostID{Region: testenv.Region, Host: host}
	vm.Seed = fleet.SeedVolume("local", clusterID, number, key)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.vms = append(w.vms, vm)
	return vm
}

// without removes a VM from the fleet.
func (w *world) without(vm fleet.VM) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.vms = slices.DeleteFunc(w.vms, func(other fleet.VM) bool { return other.Key == vm.Key })
}

// claim creates the NodeClaim of a VM.
func (w *world) claim(vm fleet.VM, change ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	w.t.Helper()
	claim := newClaim(vm)
	for _, change := range change {
		change(claim)
	}
	if err := w.client.Create(w.t.Context(), claim); err != nil {
		w.t.Fatal(err)
	}
	return claim
}

func newClaim(vm fleet.VM) *karpv1.NodeClaim {
	return &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name:        vm.Name,
			Labels:      map[string]string{"example.com/team": "blue"},
			Annotations: map[string]string{v1alpha1.AnnotationVM: vm.Name, v1alpha1.AnnotationKey: string(vm.Key)},
		},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef:  &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: "ProxmoxNodeClass", Name: vm.NodeClass},
			Requirements:  []karpv1.NodeSelectorRequirementWithMinValues{},
			Taints:        []corev1.Taint{{Key: "example.com/batch", Value: "yes", Effect: corev1.TaintEffectNoSchedule}},
			StartupTaints: []corev1.Taint{{Key: "example.com/cni", Effect: corev1.TaintEffectNoExecute}},
		},
	}
}

// boot adds a VM with its seed in its drive to the simulated Proxmox.
func (w *world) boot(vm fleet.VM, running bool) {
	w.t.Helper()
	err := w.proxmox.PutGuest(pvesim.Guest{
		VMID: int(vm.VMID), Host: string(vm.Host.Host), Running: running,
		Config: map[string]string{
			"name": vm.Name, "memory": "8192", "cores": "2", "ide2": vm.Seed + ",media=cdrom",
			"description": fleet.Marker{ClusterID: clusterID, Key: vm.Key}.String(),
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// seed calls Seed for VMs, and returns the lines for the record.
func (w *world) seed(s *seed.Seeder, vms ...fleet.VM) []string {
	w.t.Helper()
	written, err := s.Seed(w.t.Context(), vms)
	if err != nil {
		w.t.Fatal(err)
	}
	return written
}

// image returns the seed of a VM, or nil.
func (w *world) image(vm fleet.VM) []byte {
	data, _ := w.proxmox.VolumeData(string(vm.Host.Host), vm.Seed)
	return data
}

// documents returns the content of a VM's seed.
func (w *world) documents(vm fleet.VM) guestsim.Documents {
	w.t.Helper()
	documents, err := guestsim.ReadSeed(w.image(vm))
	if err != nil {
		w.t.Fatal(err)
	}
	return documents
}

// drive returns the content of a VM's drive.
func (w *world) drive(vm fleet.VM) string {
	w.t.Helper()
	guest, ok := w.proxmox.Guest(int(vm.VMID))
	if !ok {
		w.t.Fatalf("vm %d is gone", vm.VMID)
	}
	return guest.Config["ide2"]
}

// records returns the records for a VM: at most one.
func (w *world) records(vm fleet.VM) []jointoken.Record {
	w.t.Helper()
	secrets := &corev1.SecretList{}
	if err := w.client.List(w.t.Context(), secrets, client.InNamespace(namespace), client.HasLabels{jointoken.Label}); err != nil {
		w.t.Fatal(err)
	}
	var records []jointoken.Record
	for i := range secrets.Items {
		record, err := jointoken.Read(&secrets.Items[i])
		if err != nil {
			w.t.Fatal(err)
		}
		if record.VM == vm.Name {
			records = append(records, record)
		}
	}
	return records
}

// tokens returns the tokens for a VM.
func (w *world) tokens(vm fleet.VM) []jointoken.Grant {
	w.t.Helper()
	var tokens []jointoken.Grant
	for _, record := range w.records(vm) {
		tokens = append(tokens, record.Grants...)
	}
	return tokens
}

// onlyToken returns the only token for a VM.
func (w *world) onlyToken(vm fleet.VM) jointoken.Grant {
	w.t.Helper()
	tokens := w.tokens(vm)
	if len(tokens) != 1 {
		w.t.Fatalf("vm %s has tokens %v, want one", vm.Name, tokens)
	}
	return tokens[0]
}

// use records that a VM's token was used by a request.
func (w *world) use(vm fleet.VM, request string) {
	w.t.Helper()
	record := w.records(vm)[0]
	record.Use = jointoken.Use{Request: request, PublicKey: "k"}
	if err := w.client.Update(w.t.Context(), record.Object()); err != nil {
		w.t.Fatal(err)
	}
}

// jwt matches a service-account token; its group matches the encoded claims.
var jwt = regexp.MustCompile(`eyJ[A-Za-z0-9_-]+\.(eyJ[A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+`)

// seeded returns the token in a VM's seed.
func (w *world) seeded(vm fleet.VM) string {
	w.t.Helper()
	join, err := guestsim.NewJoin(w.documents(vm))
	if err != nil {
		w.t.Fatal(err)
	}
	return join.Token
}

// idOf returns the jti of a service-account token.
func idOf(t *testing.T, token string) string {
	t.Helper()
	var claims struct{ JTI string }
	found := jwt.FindStringSubmatch(token)
	if found == nil {
		t.Fatalf("%q is no service-account token", token)
	}
	text, err := base64.RawURLEncoding.DecodeString(found[1])
	if err == nil {
		err = json.Unmarshal(text, &claims)
	}
	if err != nil {
		t.Fatal(err)
	}
	return claims.JTI
}

// wantSeed checks that a VM's seed contains exactly this token.
func (w *world) wantSeed(vm fleet.VM, token jointoken.Grant) {
	w.t.Helper()
	if id := idOf(w.t, w.seeded(vm)); id != token.ID {
		w.t.Errorf("the seed of vm %s has token %s, want %s", vm.Name, id, token.ID)
	}
}

// now returns the current version of an object.
func now[T client.Object](w *world, object T) T {
	w.t.Helper()
	if err := w.client.Get(w.t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		w.t.Fatal(err)
	}
	return object
}

// gone reports whether an object no longer exists.
func (w *world) gone(object client.Object) bool {
	w.t.Helper()
	err := w.client.Get(w.t.Context(), client.ObjectKeyFromObject(object), object)
	if client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}
	return apierrors.IsNotFound(err)
}

// set sets conditions of a claim to true, and its Node name.
func (w *world) set(claim *karpv1.NodeClaim, conditions ...string) {
	w.t.Helper()
	for _, condition := range conditions {
		claim.StatusConditions().SetTrue(condition)
	}
	claim.Status.NodeName = claim.Annotations[v1alpha1.AnnotationVM]
	if err := w.client.Status().Update(w.t.Context(), claim); err != nil {
		w.t.Fatal(err)
	}
}

// reconcile runs the controller once with the current claim.
func (w *world) reconcile(c *seed.Controller, claim *karpv1.NodeClaim) (time.Duration, error) {
	w.t.Helper()
	result, err := c.Reconcile(w.t.Context(), now(w, claim))
	return result.RequeueAfter, err
}

func (w *world) mustReconcile(c *seed.Controller, claim *karpv1.NodeClaim) time.Duration {
	w.t.Helper()
	after, err := w.reconcile(c, claim)
	if err != nil {
		w.t.Fatal(err)
	}
	return after
}

// writes returns the write requests to the simulated Proxmox.
func (w *world) writes() []string {
	var calls []string
	for _, call := range w.proxmox.Calls() {
		if call.Method != "GET" {
			calls = append(calls, call.Method+" "+call.Path)
		}
	}
	return calls
}

// as returns a client that impersonates a user without permissions.
func (w *world) as(user string) client.Client {
	w.t.Helper()
	config := rest.CopyConfig(w.cluster.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user}
	c, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// noSecret checks that no token is in texts or in the log.
func noSecret(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range append(texts, logs.String()) {
		if found := jwt.FindString(text); found != "" {
			t.Errorf("%.2000q holds the token %s", text, found)
		}
	}
}

var errNotYet = errors.New("not yet")

// eventually repeats try until it succeeds.
func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-ticker.C:
		case <-deadline.C:
			t.Fatalf("%s: %v", what, err)
		}
	}
}
