package cluster_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/jointoken"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/test/startcheck"
	"github.com/numaform/numaform/topology"
)

// onlooker records facts that cannot be observed at the end of a test.
type onlooker struct {
	// mu guards the fields below.
	mu sync.Mutex
	// early lists VMs that were stopped or destroyed while pods ran on their nodes.
	early []string
	// secrets are the Proxmox credentials and the secret parts of bootstrap tokens.
	secrets map[string]bool
	// tokens counts the records of join tokens, whose secrets are only in seeds.
	tokens int
	// states contains every version of the states.
	states map[string][]byte
}

// watchOver starts an onlooker that records until the test ends.
func watchOver(w *world) *onlooker {
	n := &onlooker{secrets: map[string]bool{pvesim.DefaultTokenSecret: true}, states: map[string][]byte{}}
	w.proxmox.AddFault(pvesim.Fault{
		Path: `^/nodes/[^/]+/qemu/\d+/?$|^/nodes/[^/]+/qemu/\d+/status/(stop|shutdown)$`,
		Hit:  func(ctx context.Context, call pvesim.Call) { n.power(ctx, w, call) },
	})
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			n.watchSecrets(ctx, w)
		}
	})
	w.t.Cleanup(func() {
		cancel()
		watching.Wait()
	})
	return n
}

// power checks whether a node has pods when its VM is stopped or destroyed.
func (n *onlooker) power(ctx context.Context, w *world, call pvesim.Call) {
	vmid := vmPath.FindStringSubmatch(call.Path)
	if call.Method == "GET" || vmid == nil {
		return
	}
	id, _ := strconv.Atoi(vmid[1])
	guest, _ := w.proxmox.Guest(id)
	pods, err := podsOn(ctx, w.api, guest.Config["name"])
	if err != nil {
		pods = []string{err.Error()}
	}
	if len(pods) > 0 {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.early = append(n.early, fmt.Sprintf("%s %s: node %s had pods %v", call.Method, call.Path, guest.Config["name"], pods))
	}
}

// watchSecrets records tokens and states, until ctx or the watch ends.
func (n *onlooker) watchSecrets(ctx context.Context, w *world) {
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	<-ticker.C
	secrets, err := w.plane.Client(w.t).CoreV1().Secrets("").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return // the API server is down
	}
	defer secrets.Stop()
	for event := range secrets.ResultChan() {
		if secret, ok := event.Object.(*corev1.Secret); ok && event.Type != watch.Deleted {
			n.secret(secret)
		}
	}
}

func (n *onlooker) secret(secret *corev1.Secret) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if secret.Type == corev1.SecretTypeBootstrapToken {
		n.secrets[string(secret.Data["token-secret"])] = true
	}
	if secret.Labels[jointoken.Label] != "" {
		n.tokens++
	}
	if state := secret.Data["tfstate"]; state != nil {
		n.states[secret.Name+" "+secret.ResourceVersion] = state
	}
}

// plantForeign creates unmanaged VMs: one outside the VMID range, one inside it, and one of
// another cluster.
func (s *scene) plantForeign() {
	s.t.Helper()
	marker := fleet.Marker{ClusterID: "other", Key: "00112233445566778899aabbccddeeff"}
	for vmid, config := range map[int]map[string]string{
		900:  {"name": "db", "cores": "1", "memory": "512"},
		2001: {"name": "sits-in-the-range", "cores": "1", "memory": "512"},
		2003: {"name": "of-another-cluster", "cores": "1", "memory": "512", "description": marker.String()},
	} {
		if err := s.proxmox.PutGuest(pvesim.Guest{VMID: vmid, Host: "pve-1", Config: config, Running: true}); err != nil {
			s.t.Fatal(err)
		}
		guest, _ := s.proxmox.Guest(vmid)
		s.foreign[vmid] = guest.Raw
	}
}

// check checks the invariants of docs/faults.md in etcd, Proxmox and the backend, except
// I6: see checkSecrets. No change may be in progress.
func (s *scene) check() {
	s.t.Helper()
	s.checkClaims()
	s.checkForeign()
	s.checkPins()
	s.checkAddresses()
	s.checkDrained()
	s.checkHistory()
	s.checkStates()
}

// checkAddresses checks that each VM of the fleet has a static address of its own, and that
// its guest uses it.
func (s *scene) checkAddresses() {
	s.t.Helper()
	var nodes corev1.NodeList
	s.list(&nodes)
	owners := map[netip.Addr]string{}
	for _, guest := range s.guestsOf(clusterID) {
		name := guest.Config["name"]
		addresses := fleet.ParseAddresses(guest.Config["description"])
		if len(addresses) != 1 || owners[addresses[0]] != "" || !netip.MustParsePrefix("10.44.0.0/24").Contains(addresses[0]) {
			s.t.Errorf("VM %s has the addresses %v, in use are %v", name, addresses, owners)
			continue
		}
		owners[addresses[0]] = name
		i := slices.IndexFunc(nodes.Items, func(node corev1.Node) bool { return node.Name == name })
		if i < 0 {
			continue // checkClaims reports it
		}
		reported := func(a corev1.NodeAddress) bool {
			return a.Type == corev1.NodeInternalIP && a.Address == addresses[0].String()
		}
		if !slices.ContainsFunc(nodes.Items[i].Status.Addresses, reported) {
			s.t.Errorf("Node %s reports %v, want %s", name, nodes.Items[i].Status.Addresses, addresses[0])
		}
	}
}

// guestsOf returns the guests with a cluster's marker.
func (w *world) guestsOf(cluster string) []pvesim.GuestState {
	return slices.DeleteFunc(w.proxmox.Guests(), func(guest pvesim.GuestState) bool {
		marker, ok := fleet.ParseMarker(guest.Config["description"])
		return !ok || marker.ClusterID != cluster
	})
}

// checkClaims checks I1: the VMs with the fleet's marker match the launched NodeClaims and
// the Nodes, and are complete and running. No other VMs were created.
func (s *scene) checkClaims() {
	s.t.Helper()
	var claims karpv1.NodeClaimList
	var nodes corev1.NodeList
	s.list(&claims)
	s.list(&nodes)
	var launched, joined, made []string
	for i := range claims.Items {
		launched = append(launched, claims.Items[i].Status.ProviderID)
	}
	for i := range nodes.Items {
		joined = append(joined, nodes.Items[i].Spec.ProviderID)
	}
	for _, guest := range s.guestsOf(clusterID) {
		made = append(made, fleet.ProviderID(testenv.Region, fleet.VMID(guest.VMID)))
		if !guest.Running || guest.Config["lock"] != "" || len(guest.Pending)+len(guest.Delete) > 0 {
			s.t.Errorf("I1: %d is incomplete: running %t, lock %q, pending %v", guest.VMID, guest.Running, guest.Config["lock"], guest.Pending)
		}
	}
	for _, ids := range [][]string{launched, joined, made} {
		slices.Sort(ids)
	}
	if diff := cmp.Diff(launched, made); diff != "" {
		s.t.Errorf("I1: NodeClaims and VMs differ (-claims +VMs):\n%s", diff)
	}
	if diff := cmp.Diff(joined, made); diff != "" {
		s.t.Errorf("I1: Nodes and VMs differ (-nodes +VMs):\n%s", diff)
	}
	for _, guest := range s.proxmox.Guests() {
		_, isForeign := s.foreign[guest.VMID]
		_, ours := fleet.ParseMarker(guest.Config["description"])
		if !isForeign && !ours && guest.Config["template"] != "1" {
			s.t.Errorf("I1: guest %d is neither in the fleet nor unmanaged:\n%s", guest.VMID, guest.Raw)
		}
	}
}

func (s *scene) list(list client.ObjectList, options ...client.ListOption) {
	s.t.Helper()
	if err := s.api.List(context.Background(), list, options...); err != nil {
		s.t.Fatal(err)
	}
}

// checkForeign checks I2: no unmanaged VM was changed.
func (s *scene) checkForeign() {
	s.t.Helper()
	for _, vmid := range slices.Sorted(maps.Keys(s.foreign)) {
		guest, exists := s.proxmox.Guest(vmid)
		if !exists || !guest.Running || guest.Raw != s.foreign[vmid] {
			s.t.Errorf("I2: unmanaged VM %d: exists %t, running %t\n%s", vmid, exists, guest.Running, cmp.Diff(s.foreign[vmid], guest.Raw))
		}
	}
}

// checkPins checks I3: no two VMs share a pinned CPU, and no NUMA node's memory is
// overcommitted.
func (s *scene) checkPins() {
	s.t.Helper()
	s.pinsAreExclusive()
	for _, host := range testenv.Hosts(s.t) {
		var guests []startcheck.Guest
		for _, guest := range s.proxmox.Guests() {
			if guest.Running && guest.Host == string(host.Name) {
				guests = append(guests, s.startGuest(guest))
			}
		}
		for _, fault := range startcheck.Check(&host, guests) {
			s.t.Errorf("I3: %s: %v", host.Name, fault)
		}
	}
}

// startGuest reads the values with which a running guest was started.
func (s *scene) startGuest(guest pvesim.GuestState) startcheck.Guest {
	s.t.Helper()
	number := func(key string, otherwise int) int {
		if n, err := strconv.Atoi(guest.Runtime[key]); err == nil {
			return n
		}
		return otherwise
	}
	marker, _ := fleet.ParseMarker(guest.Config["description"])
	result := startcheck.Guest{
		VMID: guest.VMID, Sockets: number("sockets", 1), Cores: number("cores", 1), MemoryMiB: int64(number("memory", 512)),
		NUMAEnabled: guest.Runtime["numa"] == "1", NUMA: map[int]topology.NUMACell{}, Pins: marker.Pins, Exclusive: len(marker.Pins) > 0,
	}
	for key, value := range guest.Runtime {
		n, err := strconv.Atoi(strings.TrimPrefix(key, "numa"))
		if !strings.HasPrefix(key, "numa") || err != nil {
			continue
		}
		if result.NUMA[n], err = topology.ParseNUMA(value); err != nil {
			s.t.Fatal(err)
		}
	}
	return result
}

// checkDrained checks I4: no VM was stopped or destroyed before its Node was drained.
func (s *scene) checkDrained() {
	s.t.Helper()
	s.onlooker.mu.Lock()
	defer s.onlooker.mu.Unlock()
	for _, early := range s.onlooker.early {
		s.t.Errorf("I4: %s", early)
	}
	s.onlooker.early = nil
}

// checkHistory checks I5: the fleet's history records each plan that an engine applied, and
// each VM that was written to.
func (s *scene) checkHistory() {
	s.t.Helper()
	entries := s.history()
	plans, vms := map[string]bool{}, map[string]bool{}
	for _, entry := range entries {
		for _, host := range entry.Change.Hosts {
			plans[host.PlanSHA256] = true
			for _, target := range slices.Concat(host.Create, host.Delete, host.Import, host.Update, host.Wake) {
				vms[strconv.Itoa(int(target.VMID))] = host.PlanSHA256 != ""
			}
		}
	}
	applied, err := os.ReadFile(filepath.Join(s.dir, "engine.applied"))
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(applied)) {
		if hash := strings.Fields(line)[0]; !plans[hash] {
			s.t.Errorf("I5: plan %s was applied, but is in no record", hash)
		}
	}
	for _, vmid := range s.written() {
		if !vms[vmid] {
			s.t.Errorf("I5: VM %s was written to, but is in no record with a plan", vmid)
		}
	}
	if left := unfinished(entries); len(left) > 0 {
		s.t.Errorf("I5: the history ends with unfinished hosts: %v", left)
	}
}

// written returns the VMIDs of the VMs that requests to Proxmox changed.
func (s *scene) written() []string {
	var vmids []string
	for _, call := range s.proxmox.Calls() {
		vmid := vmPath.FindStringSubmatch(call.Path)
		switch {
		case call.Method == "GET" || vmid == nil || call.Status >= 400:
		case strings.HasSuffix(call.Path, "/clone"):
			vmids = append(vmids, call.Params["newid"])
		default:
			vmids = append(vmids, vmid[1])
		}
	}
	slices.Sort(vmids)
	return slices.Compact(vmids)
}

// checkStates checks I7: the states match Proxmox and are complete, and no lock is left.
func (s *scene) checkStates() {
	s.t.Helper()
	var secrets corev1.SecretList
	s.list(&secrets, client.InNamespace(namespace))
	var held, made []int
	for i := range secrets.Items {
		if packed := secrets.Items[i].Data["tfstate"]; packed != nil {
			vmids, tainted := vmsOf(s.t, unpacked(s.t, packed))
			held = append(held, vmids...)
			if len(tainted) > 0 {
				s.t.Errorf("I7: %s contains tainted VMs %v", secrets.Items[i].Name, tainted)
			}
		}
	}
	for _, guest := range s.guestsOf(clusterID) {
		made = append(made, guest.VMID)
	}
	slices.Sort(held)
	slices.Sort(made)
	if !slices.Equal(held, made) {
		s.t.Errorf("I7: the states have VMs %v, Proxmox has %v", held, made)
	}
	s.lockIsFree()
}

// lockIsFree waits until no lock is left. The controller can hold the fleet's lock briefly
// without a change in progress: two seconds after a change in Proxmox outside a plan, such
// as the removal of a seed, it writes a record.
func (s *scene) lockIsFree() {
	s.t.Helper()
	s.eventually(20*time.Second, func(context.Context) string {
		if locks := s.locks(); len(locks) > 0 {
			return fmt.Sprintf("I7: locks are left: %v", locks)
		}
		return ""
	})
}

// locks returns the Leases that are held, except the leader's. A Lease that was not renewed
// in time is not held.
func (s *scene) locks() (held []string) {
	var leases coordinationv1.LeaseList
	s.list(&leases, client.InNamespace(namespace))
	for i := range leases.Items {
		spec := leases.Items[i].Spec
		expired := spec.RenewTime != nil && spec.LeaseDurationSeconds != nil &&
			time.Since(spec.RenewTime.Time) > time.Duration(*spec.LeaseDurationSeconds)*time.Second
		if leases.Items[i].Name != "numaform-controller" && spec.HolderIdentity != nil && *spec.HolderIdentity != "" && !expired {
			held = append(held, leases.Items[i].Name+": "+*spec.HolderIdentity)
		}
	}
	return held
}

// failer is the subset of testing.TB that helpers need.
type failer interface {
	Helper()
	Fatal(args ...any)
}

func unpacked(t failer, packed []byte) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// vmsOf reads the VMs of a state.
func vmsOf(t failer, content []byte) (vmids, tainted []int) {
	t.Helper()
	var state struct {
		Resources []struct {
			Type      string `json:"type"`
			Instances []struct {
				Status     string `json:"status"`
				Attributes struct {
					VMID int `json:"vm_id"`
				} `json:"attributes"`
			} `json:"instances"`
		} `json:"resources"`
	}
	if err := json.Unmarshal(content, &state); err != nil {
		t.Fatal(err)
	}
	for _, resource := range state.Resources {
		for _, instance := range resource.Instances {
			if resource.Type != "proxmox_virtual_environment_vm" {
				continue
			}
			vmids = append(vmids, instance.Attributes.VMID)
			if instance.Status != "" {
				tainted = append(tainted, instance.Attributes.VMID)
			}
		}
	}
	return vmids, tainted
}

// checkSecrets checks I6: no secret is in a state, a record, an event, a widely readable
// object, or the output or remaining files of the controllers.
func (s *scene) checkSecrets() {
	s.t.Helper()
	s.onlooker.mu.Lock()
	defer s.onlooker.mu.Unlock()
	if s.onlooker.tokens == 0 || len(s.onlooker.states) == 0 {
		s.t.Errorf("I6: no secrets to search for: %d join tokens, %d states", s.onlooker.tokens, len(s.onlooker.states))
	}
	for name, state := range s.onlooker.states {
		s.search("state "+name, unpacked(s.t, state))
	}
	var maps corev1.ConfigMapList
	var events corev1.EventList
	var newEvents eventsv1.EventList
	var claims karpv1.NodeClaimList
	var nodes corev1.NodeList
	for _, list := range []client.ObjectList{&maps, &events, &newEvents, &claims, &nodes} {
		s.list(list)
		text, err := json.Marshal(runtime.Object(list))
		if err != nil {
			s.t.Fatal(err)
		}
		s.search(fmt.Sprintf("%T", list), text)
	}
	for i := range maps.Items {
		for name, packed := range maps.Items[i].BinaryData {
			s.search("ConfigMap "+maps.Items[i].Name+" "+name, unpacked(s.t, packed))
		}
	}
	for _, said := range s.said {
		said.mu.Lock()
		s.search("a controller's log", said.text.Bytes())
		said.mu.Unlock()
	}
	s.searchDisk(filepath.Join(s.dir, "fleet"))
}

func (s *scene) searchDisk(dir string) {
	s.t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		s.search(path, content)
		return nil
	})
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
}

// jwt matches a service-account token.
var jwt = regexp.MustCompile(`eyJ[A-Za-z0-9_-]+\.eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+`)

func (s *scene) search(name string, content []byte) {
	s.t.Helper()
	if token := jwt.Find(content); token != nil {
		s.t.Errorf("I6: %s contains the token %s", name, token)
	}
	for secret := range s.onlooker.secrets {
		if bytes.Contains(content, []byte(secret)) {
			s.t.Errorf("I6: %s contains the secret %s", name, secret)
		}
	}
}
