package seed_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/seed"
	"github.com/numaform/numaform/internal/guestsim"
	"github.com/numaform/numaform/internal/jointoken"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/scheduling"
)

// TestSeed checks that a seed contains everything that its guest needs to join: its name
// and providerID, its claim's token and taints, and the cluster.
func TestSeed(t *testing.T) {
	w := newWorld(t)
	first, second := w.vm(2001, "pve-1"), w.vm(2002, "pve-2")
	baked := w.vm(2003, "pve-2")
	baked.Seed = ""
	claim := w.claim(first)
	w.claim(second)
	written := w.seed(w.seeder(), first, baked, second)
	want := []string{
		"uploaded seed local:iso/numaform-prod-2001-000007d1.iso for VM workers-2001 to host homelab/pve-1",
		"uploaded seed local:iso/numaform-prod-2002-000007d2.iso for VM workers-2002 to host homelab/pve-2",
	}
	if diff := cmp.Diff(want, written); diff != "" {
		t.Error(diff)
	}
	token := w.onlyToken(first)
	if owner := w.records(first)[0].Owner; owner != (jointoken.Owner{VM: first.Name, Key: first.Key, NodeClaim: claim.Name, UID: claim.UID}) ||
		!token.Issued.Equal(start) || !token.Expires.Equal(start.Add(15*time.Minute)) {
		t.Errorf("token of %+v from %s to %s", owner, token.Issued, token.Expires)
	}
	if got := now(w, claim).Annotations; got[seed.AnnotationSeed] != seed.Attached {
		t.Errorf("annotations %v", got)
	}
	if len(w.tokens(baked)) > 0 {
		t.Error("a VM without a seed got a token")
	}
	documents := w.documents(first)
	join, err := guestsim.NewJoin(documents)
	if err != nil {
		t.Fatal(err)
	}
	if join.NodeName != first.Name || join.Server != w.cluster.Config.Host || idOf(t, join.Token) != token.ID ||
		string(join.CA) != string(w.cluster.Config.CAData) {
		t.Errorf("joins %s as %s, with its token: %v", join.Server, join.NodeName, idOf(t, join.Token) == token.ID)
	}
	for _, text := range []string{
		"providerID: proxmox://homelab/2001", "karpenter.sh/unregistered", "example.com/batch", "example.com/cni",
		"example.com/team=blue", "maxPods:", "kubeReserved:",
	} {
		if !strings.Contains(string(documents.UserData), text) {
			t.Errorf("the seed lacks %q", text)
		}
	}
	w.wantSeed(second, w.onlyToken(second))
	noSecret(t, written...)
	if !strings.Contains(logs.String(), token.ID) {
		t.Error("the log does not name the token by its jti")
	}
}

// TestSeedOfAStandbyVM checks that a standby VM's seed has no secret until the VM is woken:
// the placeholder needs no claim, and the real seed replaces it in the same volume.
func TestSeedOfAStandbyVM(t *testing.T) {
	w := newWorld(t)
	vm := w.vm(2090, "pve-1")
	standby := vm
	standby.Standby = true
	written := w.seed(w.seeder(), standby)
	want := []string{"uploaded placeholder seed local:iso/numaform-prod-2090-0000082a.iso for standby VM workers-2090 to host homelab/pve-1"}
	if diff := cmp.Diff(want, written); diff != "" {
		t.Error(diff)
	}
	placeholder := w.image(vm)
	if len(placeholder) == 0 || len(w.tokens(vm)) != 0 || jwt.Match(placeholder) {
		t.Fatalf("the placeholder has %d bytes; tokens %v", len(placeholder), w.tokens(vm))
	}
	if documents, err := guestsim.ReadSeed(placeholder); err == nil {
		t.Errorf("a guest would use the placeholder: %s", documents.UserData)
	}

	// A VM that is woken without a claim keeps the placeholder.
	quick := w.config
	quick.ClaimWait, quick.Clock = time.Millisecond, clock.RealClock{}
	if _, err := seed.New(quick).Seed(t.Context(), []fleet.VM{vm}); err == nil {
		t.Error("a woken VM without a claim got a seed")
	}
	if string(w.image(vm)) != string(placeholder) || len(w.tokens(vm)) != 0 {
		t.Errorf("its seed changed, or it has tokens %v", w.tokens(vm))
	}
	w.claim(vm)
	written = w.seed(w.seeder(), vm)
	want = []string{"uploaded seed local:iso/numaform-prod-2090-0000082a.iso for VM workers-2090 to host homelab/pve-1"}
	if diff := cmp.Diff(want, written); diff != "" {
		t.Error(diff)
	}
	w.wantSeed(vm, w.onlyToken(vm))
	noSecret(t, written...)
}

// TestSeedOfAStandbyVMWithoutDrive checks that the placeholder is attached to a standby VM
// whose creation was interrupted after the clone: the engine ignores the drive of a VM that
// it imports, and Proxmox refuses a boot order with a missing drive.
func TestSeedOfAStandbyVMWithoutDrive(t *testing.T) {
	w := newWorld(t)
	vm := w.vm(2094, "pve-1")
	vm.Standby = true
	err := w.proxmox.PutGuest(pvesim.Guest{VMID: int(vm.VMID), Host: string(vm.Host.Host), Config: map[string]string{
		"name": vm.Name, "memory": "8192", "description": fleet.Marker{ClusterID: clusterID, Key: vm.Key}.String(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	w.seed(w.seeder(), vm)
	if drive := w.drive(vm); !strings.HasPrefix(drive, vm.Seed+",") {
		t.Errorf("the drive contains %q, want the placeholder %s", drive, vm.Seed)
	}
}

// TestSeedOfAClassWithItsOwnKubelet checks that a class's kubelet settings and the
// cluster's information reach the guest.
// TestSSHAuthorizedKeys checks that the keys of a class are in the user-data, before the keys
// in its Secret.
func TestSSHAuthorizedKeys(t *testing.T) {
	w := newWorld(t)
	own := class("ssh-keys")
	own.Spec.Metadata.SSHAuthorizedKeys = []string{"ssh-ed25519 AAAAC3Nz me@laptop", "ssh-rsa AAAAB3Nz"}
	own.Spec.Metadata.ValuesRef = &v1alpha1.SecretReference{Name: "ssh-values"}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "ssh-values", Namespace: namespace}, StringData: map[string]string{"SSHAuthorizedKeys": "ssh-ed25519 AAAAof-the-secret\n"},
	}
	if err := errors.Join(w.client.Create(t.Context(), secret), w.client.Create(t.Context(), own)); err != nil {
		t.Fatal(err)
	}
	vm := w.vm(2025, "pve-1")
	vm.NodeClass = own.Name
	w.claim(vm)
	w.seed(w.seeder(), vm)
	const want = `ssh_authorized_keys: ["ssh-ed25519 AAAAC3Nz me@laptop","ssh-rsa AAAAB3Nz","ssh-ed25519 AAAAof-the-secret"]`
	if got := string(w.documents(vm).UserData); !strings.Contains(got, want) {
		t.Errorf("user-data lacks %s:\n%s", want, got)
	}
}

func TestSeedOfAClassWithItsOwnKubelet(t *testing.T) {
	w := newWorld(t, func(c *seed.Config) {
		c.Cluster.Join = seed.Join{
			APIServer: "https://api.example:6443", CA: []byte("-----BEGIN CERTIFICATE-----\n"), CloudController: true,
			ClusterDNS: []string{"10.96.0.10"}, ClusterDomain: "kube.example",
		}
		c.Types[slices.IndexFunc(c.Types, func(i scheduling.InstanceType) bool { return i.Name == "s1.2VCPU-8GB" })].Extra = corev1.ResourceList{"hugepages-2Mi": resource.MustParse("64Mi")}
	})
	own := class("own-kubelet")
	yes, low := true, int32(40)
	own.Spec.Kubelet = &v1alpha1.KubeletConfiguration{
		CPUManagerPolicy: "static", TopologyManagerPolicy: "single-numa-node", MaxPods: &low, FailSwapOn: &yes,
		ShutdownGracePeriod: &metav1.Duration{Duration: 30 * time.Second},
		KubeReserved:        map[string]v1alpha1.ReservedQuantity{"memory": "1234Mi"},
	}
	own.Spec.TokenTTL = &metav1.Duration{Duration: time.Hour}
	own.Spec.Metadata.TemplatesRef = &v1alpha1.SecretReference{Name: "own-templates"}
	own.Spec.Metadata.ValuesRef = &v1alpha1.SecretReference{Name: "own-values"}
	for _, object := range []*corev1.Secret{
		{ObjectMeta: metav1.ObjectMeta{Name: "own-templates", Namespace: namespace}, StringData: map[string]string{
			"user-data": "#cloud-config\nkubelet: {{ .Kubernetes.KubeletConfiguration | toJson }}\nserver: {{ .Kubernetes.APIServer }}\n" +
				"version: {{ .Kubernetes.Version }}\nflags: {{ .Kubernetes.KubeletArgs | toJson }}\nkey: {{ .Values.key }}\n" +
				"pages: [{{ .Resources.HugePages2Mi }}, {{ .Resources.HugePages1Gi }}]\n",
		}},
		{ObjectMeta: metav1.ObjectMeta{Name: "own-values", Namespace: namespace}, StringData: map[string]string{"key": "ssh-ed25519-AAAA"}},
	} {
		if err := w.client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.client.Create(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	vm := w.vm(2004, "pve-1")
	vm.NodeClass = own.Name
	w.claim(vm)
	w.seed(w.seeder(), vm)
	if got := w.onlyToken(vm); got.Expires.Sub(got.Issued) != time.Hour {
		t.Errorf("the token lives %s, want 1h", got.Expires.Sub(got.Issued))
	}
	documents := w.documents(vm)
	var got struct {
		Kubelet              map[string]any
		Server, Version, Key string
		Flags                []string
		Pages                []int
	}
	if err := yaml.Unmarshal(documents.UserData, &got); err != nil {
		t.Fatal(err)
	}
	if got.Server != "https://api.example:6443" || got.Version != version || got.Key != "ssh-ed25519-AAAA" || !slices.Contains(got.Flags, "--cloud-provider=external") {
		t.Errorf("server %s, version %s, key %s, flags %v", got.Server, got.Version, got.Key, got.Flags)
	}
	if !slices.Equal(got.Pages, []int{32, 0}) {
		t.Errorf("huge pages are %v, want 32 of 2 MiB", got.Pages)
	}
	want := map[string]any{
		"cpuManagerPolicy": "static", "topologyManagerPolicy": "single-numa-node", "maxPods": 40.0, "failSwapOn": true,
		"shutdownGracePeriod": "30s", "clusterDNS": []any{"10.96.0.10"}, "clusterDomain": "kube.example", "providerID": nil,
	}
	for key, value := range want {
		if diff := cmp.Diff(value, got.Kubelet[key]); diff != "" {
			t.Errorf("%s: %s", key, diff)
		}
	}
	if reserved, _ := got.Kubelet["kubeReserved"].(map[string]any); reserved["memory"] != "1234Mi" {
		t.Errorf("kubeReserved %v", reserved)
	}
}

// TestSeedAgain checks that each seed has its own token. Earlier tokens stay valid until
// they expire, because the guest may have read one of them; a used token is no longer
// valid.
func TestSeedAgain(t *testing.T) {
	w := newWorld(t)
	seeder := w.seeder()
	vm := w.vm(2005, "pve-1")
	w.claim(vm)
	w.seed(seeder, vm)
	first := w.onlyToken(vm)
	w.clock.Step(8 * time.Minute)
	w.seed(seeder, vm)
	both := w.tokens(vm)
	if len(both) != 2 || both[0].ID != first.ID {
		t.Fatalf("tokens %v, want the first and another one", both)
	}
	w.wantSeed(vm, both[1])
	w.clock.Step(8 * time.Minute)
	w.seed(seeder, vm)
	if third := w.tokens(vm); len(third) != 2 || third[0].ID != both[1].ID {
		t.Errorf("tokens %v, want none that has ended", third)
	}
	w.use(vm, "node-csr-1")
	before := w.records(vm)[0].Secret
	w.seed(seeder, vm)
	w.wantSeed(vm, w.onlyToken(vm))
	if after := w.records(vm)[0]; after.Secret == before || after.Used() {
		t.Errorf("a record that was used is used again: %+v", after)
	}
}

// TestSeedWithABootstrapToken checks that a class with bootstrap tokens gets them in
// kube-system, and that they are deleted with the record.
func TestSeedWithABootstrapToken(t *testing.T) {
	w := newWorld(t, func(c *seed.Config) { c.Cluster.BootstrapTokens = true })
	own := class("bootstrap-token")
	own.Spec.Metadata.Token = v1alpha1.TokenBootstrap
	if err := w.client.Create(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	vm := w.vm(2015, "pve-1")
	vm.NodeClass = own.Name
	w.vms[0] = vm
	claim := w.claim(vm)
	w.seed(w.seeder(), vm)
	grant := w.onlyToken(vm)
	id, secret, _ := strings.Cut(w.seeded(vm), ".")
	object := now(w, jointoken.BootstrapSecret(id))
	if grant.Form() != v1alpha1.TokenBootstrap || id != grant.ID || string(object.Data["token-secret"]) != secret || secret == "" {
		t.Errorf("the seed has token %s, the record %+v", id, grant)
	}
	if !grant.Minted.Equal(object.CreationTimestamp.Time) {
		t.Errorf("minted %s, and the API server says %s", grant.Minted, object.CreationTimestamp)
	}
	w.boot(vm, true)
	w.set(now(w, claim), karpv1.ConditionTypeInitialized)
	w.mustReconcile(w.controller(), claim)
	if !w.gone(object) || len(w.records(vm)) > 0 {
		t.Errorf("the token of a node that joined is there: %v", w.records(vm))
	}
	if strings.Contains(logs.String(), secret) {
		t.Error("the log holds the token's secret")
	}
}

// TestSeedWaitsForTheClaim checks that Seed waits for the claim, which is created after the
// VM was reserved.
func TestSeedWaitsForTheClaim(t *testing.T) {
	w := newWorld(t, func(c *seed.Config) { c.Clock, c.ClaimWait = clock.RealClock{}, time.Minute })
	vm := w.vm(2006, "pve-1")
	done := make(chan error, 1)
	seeder := w.seeder()
	go func() {
		_, err := seeder.Seed(t.Context(), []fleet.VM{vm})
		done <- err
	}()
	w.claim(vm)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	w.wantSeed(vm, w.onlyToken(vm))
}

// TestSeedWithoutAClaim checks that nothing is uploaded if some VMs have no claim that
// could join, and that the error names these VMs.
func TestSeedWithoutAClaim(t *testing.T) {
	w := newWorld(t, func(c *seed.Config) { c.Clock, c.ClaimWait = clock.RealClock{}, 300*time.Millisecond })
	good, none, going := w.vm(2007, "pve-1"), w.vm(2008, "pve-1"), w.vm(2009, "pve-1")
	w.claim(good)
	leaving := w.claim(going, func(c *karpv1.NodeClaim) { c.Finalizers = []string{"karpenter.sh/termination"} })
	if err := w.client.Delete(t.Context(), leaving); err != nil {
		t.Fatal(err)
	}
	written, err := w.seeder().Seed(t.Context(), []fleet.VM{good, none, going})
	var unclaimed *seed.UnclaimedError
	if !errors.As(err, &unclaimed) || len(unclaimed.VMs) != 2 || unclaimed.VMs[0].Name != none.Name || unclaimed.VMs[1].Name != going.Name {
		t.Fatalf("Seed: %v, want an *UnclaimedError of %s and %s", err, none.Name, going.Name)
	}
	if unclaimed.Concerns(good.Key) || !unclaimed.Concerns(none.Key) || !unclaimed.Concerns(going.Key) {
		t.Errorf("it concerns other VMs than it names: %v", unclaimed)
	}
	if len(written) > 0 || len(w.writes()) > 0 || len(w.tokens(good)) > 0 {
		t.Errorf("wrote %v, %v", written, w.writes())
	}
	// A claim of an earlier VM with that name does not count.
	impostor := w.vm(2010, "pve-1")
	w.claim(impostor, func(c *karpv1.NodeClaim) { c.Annotations[v1alpha1.AnnotationKey] = strings.Repeat("0", 32) })
	if _, err := w.seeder().Seed(t.Context(), []fleet.VM{impostor}); !errors.As(err, &unclaimed) {
		t.Errorf("Seed for another key: %v, want an *UnclaimedError", err)
	}
}

// TestCopiedClaimGetsNoSeed checks that the copy of a NodeClaim gets no seed of its VM, and does
// not remove the seed.
func TestCopiedClaimGetsNoSeed(t *testing.T) {
	w := newWorld(t, func(c *seed.Config) { c.Clock, c.ClaimWait = clock.RealClock{}, 300*time.Millisecond })
	vm := w.vm(2070, "pve-1")
	copied := func(name string) func(*karpv1.NodeClaim) {
		return func(c *karpv1.NodeClaim) { c.Name = name }
	}
	copies := []*karpv1.NodeClaim{w.claim(vm, copied("a-copy")), w.claim(vm, copied("z-copy"))}
	if _, err := w.seeder().Seed(t.Context(), []fleet.VM{vm}); !errors.As(err, new(*seed.UnclaimedError)) {
		t.Errorf("Seed: %v, want an *UnclaimedError", err)
	}
	own := w.claim(vm)
	w.seed(w.seeder(), vm)
	w.wantOwner(vm, own)

	// A VM that was created for a NodeClaim of Karpenter belongs to no other one, even if that
	// has the VM's name.
	replacement := w.claim(w.vm(2071, "pve-1"), copied("workers-x"))
	w.mu.Lock()
	other := &w.vms[len(w.vms)-1]
	other.Key = scheduling.KeyOf(replacement.UID)
	other.Seed = fleet.SeedVolume("local", clusterID, other.VMID, other.Key)
	replaced := *other
	w.mu.Unlock()
	copies = append(copies, w.claim(replaced), w.claim(replaced, copied("b-copy")))
	w.seed(w.seeder(), replaced)
	w.wantOwner(replaced, replacement)

	w.boot(vm, true)
	w.boot(replaced, true)
	before := len(w.writes())
	for _, c := range copies {
		w.set(now(w, c), karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized)
		w.mustReconcile(w.controller(), c)
	}
	if after := w.writes(); len(after) != before || w.image(vm) == nil || w.image(replaced) == nil {
		t.Errorf("a copy removed a seed: %v", after[before:])
	}
}

// wantOwner checks that the tokens of a VM are a NodeClaim's.
func (w *world) wantOwner(vm fleet.VM, claim *karpv1.NodeClaim) {
	w.t.Helper()
	records := w.records(vm)
	if len(records) != 1 || records[0].UID != claim.UID {
		w.t.Errorf("the tokens of vm %s are %+v, want one record of NodeClaim %s", vm.Name, records, claim.Name)
	}
}

// TestSeedFails checks that an error with one VM does not prevent the seeds of other VMs,
// and contains no secret.
func TestSeedFails(t *testing.T) {
	w := newWorld(t)
	fine, broken := w.vm(2011, "pve-1"), w.vm(2012, "pve-2")
	w.claim(fine)
	w.claim(broken)
	stop := w.proxmox.AddFault(pvesim.Fault{Method: "POST", Path: "^/nodes/pve-2/storage/.*/upload$", TaskExit: "no space left"})
	seeder := w.seeder()
	written, err := seeder.Seed(t.Context(), []fleet.VM{fine, broken})
	if err == nil || len(written) != 1 || !strings.Contains(err.Error(), broken.Name) || !strings.Contains(err.Error(), "no space left") {
		t.Fatalf("wrote %v: %v, want one line and an error about %s", written, err, broken.Name)
	}
	noSecret(t, append(written, err.Error())...)
	if got := now(w, newClaim(broken)).Annotations[seed.AnnotationSeed]; got != "" {
		t.Errorf("annotated as %s without a seed", got)
	}
	stop()
	w.seed(seeder, fine, broken)
	w.wantSeed(broken, w.tokens(broken)[1])
	elsewhere := w.vm(2013, "pve-1")
	elsewhere.Host.Region = "nowhere"
	w.claim(elsewhere)
	if _, err := seeder.Seed(t.Context(), []fleet.VM{elsewhere}); err == nil || !strings.Contains(err.Error(), `no region "nowhere"`) {
		t.Errorf("Seed in an unknown region: %v", err)
	}
	elsewhere.NodeClass = "vanished"
	if _, err := seeder.Seed(t.Context(), []fleet.VM{elsewhere}); err == nil || !strings.Contains(err.Error(), "ProxmoxNodeClass vanished does not exist") {
		t.Errorf("Seed of a class that is gone: %v", err)
	}
}

func TestCheck(t *testing.T) {
	plain := newWorld(t)
	for name, data := range map[string]map[string]string{
		"check-broken":  {"user-data": "#cloud-config\nx: {{ .Nothing }}\n"},
		"check-address": {"network-config": "version: 2\nethernets: {e: {addresses: [{{ cidrhost \"10.0.0.0/24\" (sub (atoi .Metadata.InstanceID) 1999) }}/24]}}\n"},
		"check-room":    {"network-config": "version: 2\nethernets: {e: {addresses: [{{ cidrhost \"10.0.0.0/22\" (sub (atoi .Metadata.InstanceID) 1999) }}/22]}}\n"},
		"check-token":   {"user-data": "#cloud-config\ntoken: {{ .Kubernetes.BootstrapToken }}\n"},
		"check-unknown": {"userdata": "#cloud-config\n"},
		"check-fine":    {"user-data": "#cloud-config\nname: {{ .Metadata.Hostname }}\n"},
	} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, StringData: data}
		if err := plain.client.Create(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
	}
	foreign := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "check-foreign", Namespace: metav1.NamespaceSystem}}
	if err := plain.client.Create(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	templates := func(name string) func(*v1alpha1.ProxmoxNodeClass) {
		return func(c *v1alpha1.ProxmoxNodeClass) {
			c.Spec.Metadata.TemplatesRef = &v1alpha1.SecretReference{Name: name}
		}
	}
	for _, test := range []struct {
		name   string
		class  func(*v1alpha1.ProxmoxNodeClass)
		config func(*seed.Config)
		reason string
		text   string
	}{
		{name: "the default"},
		{name: "templates of its own", class: templates("check-fine")},
		{name: "no seed", class: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.Metadata = v1alpha1.Metadata{Type: v1alpha1.MetadataNone} }, config: inPod},
		{name: "no templates", class: templates("check-absent"), reason: v1alpha1.ReasonSecretNotFound, text: "secret default/check-absent does not exist (secrets \"check-absent\" not found): create it"},
		{name: "no values", class: func(c *v1alpha1.ProxmoxNodeClass) {
			c.Spec.Metadata.ValuesRef = &v1alpha1.SecretReference{Name: "check-absent"}
		}, reason: v1alpha1.ReasonSecretNotFound, text: "spec.metadata.valuesRef"},
		{name: "a name that there is not", class: templates("check-broken"), reason: v1alpha1.ReasonTemplatesInvalid, text: "secret check-broken of spec.metadata.templatesRef: rendering user-data, line 2"},
		{name: "an address for each VMID", class: templates("check-room")},
		{name: "an address for each VMID of the class", class: func(c *v1alpha1.ProxmoxNodeClass) {
			templates("check-address")(c)
			c.Spec.VMIDRange = &v1alpha1.VMIDRange{Lower: 2000, Upper: 2100}
		}},
		{name: "no address for some", class: templates("check-address"), reason: v1alpha1.ReasonTemplatesInvalid, text: "for VMID 2999: secret check-address of spec.metadata.templatesRef: rendering network-config, line 2"},
		{name: "a document that there is not", class: templates("check-unknown"), reason: v1alpha1.ReasonTemplatesInvalid, text: `key "userdata"`},
		{name: "a Secret that may not be read", class: templates("check-fine"), config: func(c *seed.Config) {
			c.Cluster.Live = plain.as("nobody")
			c.Cluster.Join = seed.Join{APIServer: "https://api.example:6443", CA: []byte("ca"), ClusterDNS: []string{"10.96.0.10"}}
		}, reason: v1alpha1.ReasonSecretForbidden, text: "numaform may not read secret default/check-fine"},
		{name: "a Secret that numaform reads for tokens alone", class: func(c *v1alpha1.ProxmoxNodeClass) {
			c.Spec.Metadata.ValuesRef = &v1alpha1.SecretReference{Name: "check-foreign", Namespace: metav1.NamespaceSystem}
		}, reason: v1alpha1.ReasonSecretForbidden, text: "a class cannot use secret kube-system/check-foreign"},
		{name: "a bootstrap token that the class does not ask for", class: templates("check-token"), reason: v1alpha1.ReasonBootstrapTokenNeeded, text: "user-data uses .Kubernetes.BootstrapToken"},
		{name: "a bootstrap token that the class asks for", class: func(c *v1alpha1.ProxmoxNodeClass) {
			templates("check-token")(c)
			c.Spec.Metadata.Token = v1alpha1.TokenBootstrap
		}, config: func(c *seed.Config) { c.Cluster.BootstrapTokens = true }},
		{name: "a bootstrap token that numaform may not make", class: func(c *v1alpha1.ProxmoxNodeClass) {
			templates("check-token")(c)
			c.Spec.Metadata.Token = v1alpha1.TokenBootstrap
		}, reason: v1alpha1.ReasonBootstrapTokensOff, text: "set rbac.bootstrapTokens in the chart's values"},
		{name: "no ServiceAccount to join as", config: func(c *seed.Config) { c.Cluster.Account = "absent" }, reason: v1alpha1.ReasonServiceAccountNotFound, text: "ServiceAccount default/absent, which does not exist (serviceaccounts \"absent\" not found): install it with the chart"},
		{name: "nobody says where the API server is", config: inPod, reason: seed.ReasonClusterUnknown, text: "set join.api_server in numaform.yaml"},
	} {
		t.Run(test.name, func(t *testing.T) {
			own := class("checked")
			if test.class != nil {
				test.class(own)
			}
			config := plain.config
			if test.config != nil {
				test.config(&config)
			}
			err := seed.New(config).Check(t.Context(), own)
			if test.reason == "" {
				if err != nil {
					t.Errorf("Check: %v", err)
				}
				return
			}
			var problem *seed.MetadataError
			if !errors.As(err, &problem) || problem.ConditionReason() != test.reason || !strings.Contains(err.Error(), test.text) {
				t.Errorf("Check: %v, want %s with %q", err, test.reason, test.text)
			}
		})
	}
	if got := plain.writes(); len(got) > 0 || len(plain.tokens(fleet.VM{Name: "example-2000"})) > 0 {
		t.Errorf("checking wrote %v", got)
	}
}

// inPod configures a Seeder that runs in a Pod of a cluster that was not created by
// kubeadm.
func inPod(c *seed.Config) {
	c.Cluster.REST = &rest.Config{Host: "https://10.96.0.1:443", BearerTokenFile: "/var/run/secrets/kubernetes.io/serviceaccount/token"}
}

// TestCheckWithoutAnAPIServer checks that an API server that does not respond is not
// reported as a problem of the class.
func TestCheckWithoutAnAPIServer(t *testing.T) {
	w := newWorld(t, func(c *seed.Config) {
		c.Cluster.Version = func() (string, error) { return "", &timeout{} }
	})
	err := w.seeder().Check(t.Context(), class("checked"))
	var problem *seed.MetadataError
	if err == nil || errors.As(err, &problem) {
		t.Errorf("Check: %v, want an error that is no *MetadataError", err)
	}
}

// timeout is the error of a network that does not respond.
type timeout struct{}

func (*timeout) Error() string   { return "i/o timeout" }
func (*timeout) Timeout() bool   { return true }
func (*timeout) Temporary() bool { return true }

// TestClusterInfo checks that the API server's address that kubeadm publishes takes
// precedence over the one that numaform uses.
func TestClusterInfo(t *testing.T) {
	w := newWorld(t, inPod)
	info := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespacePublic, Name: "cluster-info"},
		Data: map[string]string{"kubeconfig": "apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n  cluster:\n" +
			"    server: https://192.168.7.10:6443\n    certificate-authority-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg==\n"},
	}
	dns := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-dns"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.0.0.53", Ports: []corev1.ServicePort{{Port: 53}}},
	}
	if err := errors.Join(w.client.Create(t.Context(), info), w.client.Create(t.Context(), dns)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(w.client.Delete(t.Context(), info), w.client.Delete(t.Context(), dns)); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	vm := w.vm(2014, "pve-1")
	w.claim(vm)
	w.seed(w.seeder(), vm)
	documents := w.documents(vm)
	for _, text := range []string{"server: https://192.168.7.10:6443", "10.0.0.53"} {
		if !strings.Contains(string(documents.UserData), text) {
			t.Errorf("the seed lacks %q", text)
		}
	}
	info.Data["kubeconfig"] = "clusters: []"
	if err := w.client.Update(t.Context(), info); err != nil {
		t.Fatal(err)
	}
	var problem *seed.MetadataError
	if err := w.seeder().Check(t.Context(), class("checked")); !errors.As(err, &problem) || problem.Reason != seed.ReasonClusterUnknown {
		t.Errorf("Check with a broken cluster-info: %v", err)
	}
}

// TestUploadsBeforeAnErrorAreRecorded checks that Seed returns the completed uploads together
// with the error of a later step.
func TestUploadsBeforeAnErrorAreRecorded(t *testing.T) {
	w := newWorld(t, func(c *seed.Config) {
		c.Cluster.Join = seed.Join{APIServer: "https://api.example:6443", CA: []byte("-----BEGIN CERTIFICATE-----\n")}
	})
	standby, unclaimed, running := w.vm(2091, "pve-1"), w.vm(2092, "pve-1"), w.vm(2093, "pve-1")
	standby.Standby = true
	quick := w.config
	quick.ClaimWait, quick.Clock = time.Millisecond, clock.RealClock{}
	written, err := seed.New(quick).Seed(t.Context(), []fleet.VM{unclaimed, standby})
	if want := []string{"uploaded placeholder seed " + standby.Seed + " for standby VM workers-2091 to host homelab/pve-1"}; err == nil || !slices.Equal(written, want) {
		t.Errorf("got %v; wrote %q, want %q", err, written, want)
	}

	w.claim(running)
	empty := running
	empty.Seed = "none"
	w.boot(empty, true)
	defer w.proxmox.AddFault(pvesim.Fault{Method: "PUT", Path: "/qemu/2093/config", Status: 500, Reason: "locked"})()
	written, err = w.seeder().Seed(t.Context(), []fleet.VM{running})
	if want := []string{"uploaded seed " + running.Seed + " for VM workers-2093 to host homelab/pve-1"}; err == nil || !slices.Equal(written, want) {
		t.Errorf("got %v; wrote %q, want %q", err, written, want)
	}
}
