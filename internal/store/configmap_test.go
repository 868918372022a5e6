package store_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/audit"
	"github.com/numaform/numaform/internal/store"
)

const namespace = "default"

// fleetName returns a unique name.
func fleetName() string { return "fleet-" + strings.ToLower(rand.Text()[:8]) }

func openConfigMap(t *testing.T, client kubernetes.Interface, name string) *store.ConfigMap {
	t.Helper()
	c, err := store.NewConfigMap(client, namespace, name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func configMapPlace(t *testing.T) place {
	name := fleetName()
	open := func(t *testing.T) interruptible { return openConfigMap(t, client(t), name) }
	return place{open: open, elsewhere: open}
}

// TestConfigMaps checks the ConfigMaps of a fleet, and that records cannot be changed.
func TestConfigMaps(t *testing.T) {
	t.Parallel()
	name := fleetName()
	c := openConfigMap(t, client(t), name)
	first := changed(0, 2000)
	begin(t, c, desired(), first)
	configMaps := client(t).CoreV1().ConfigMaps(namespace)
	list, err := configMaps.List(t.Context(), metav1.ListOptions{LabelSelector: "numaform.dev/fleet=" + name + ",numaform.dev/part=files"})
	if err != nil {
		t.Fatal(err)
	}
	held := map[string]bool{}
	for _, m := range list.Items {
		for key := range m.Data {
			held[m.Annotations["numaform.dev/directory"]+":"+key] = true
		}
	}
	for _, want := range []string{":fleet.json", ":.gitignore", "r/pve-1:main.tf", "r/pve-1:node-a-2001.tf"} {
		if !held[want] {
			t.Errorf("no ConfigMap holds %s: %v", want, held)
		}
	}
	record, err := configMaps.Get(t.Context(), name+"-"+strings.ToLower(first.ID), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	record.Data["record.json"] = "{}"
	if _, err := configMaps.Update(t.Context(), record, metav1.UpdateOptions{}); err == nil {
		t.Error("a record can be changed")
	}
}

func TestConfigMapByHand(t *testing.T) {
	t.Parallel()
	name := fleetName()
	c := openConfigMap(t, client(t), name)
	begin(t, c, desired(), changed(0))
	_, base := readFrom(t, c)
	configMaps := client(t).CoreV1().ConfigMaps(namespace)
	list, err := configMaps.List(t.Context(), metav1.ListOptions{LabelSelector: "numaform.dev/fleet=" + name})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list.Items {
		if _, has := m.Data["node-a-2001.tf"]; has {
			delete(m.Data, "node-a-2001.tf")
			if _, err := configMaps.Update(t.Context(), &m, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := desired()
	delete(want, "r/pve-1/node-a-2001.tf")
	wantEdit(t, c, want)
	if err := c.Begin(t.Context(), base, desired(), changed(1)); !errors.Is(err, store.ErrMoved) {
		t.Errorf("after an edit: %v, want ErrMoved", err)
	}
	wantFiles(t, c, want)
	begin(t, c, render(map[fleet.VMID]string{2007: "pve-2"}), changed(2))
	wantFiles(t, c, render(map[fleet.VMID]string{2007: "pve-2"}))
}

// wantEdit waits until a store reads the files after an edit by hand, which it may see a
// little later.
func wantEdit(t *testing.T, s store.Store, want generator.Files) {
	t.Helper()
	for range 1000 {
		if files, _ := readFrom(t, s); maps.EqualFunc(files, want, bytes.Equal) {
			return
		}
	}
	wantFiles(t, s, want)
}

// lists records the options of requests for lists of ConfigMaps, and can answer those that
// name a resource version as an API server does whose data was restored from a backup.
type lists struct {
	under    http.RoundTripper
	restored atomic.Bool
	waiting  atomic.Int32
}

const tooLarge = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"Timeout: Too large resource version: 9, current: 1",` +
	`"reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}]},"code":504}`

func (l *lists) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/configmaps") {
		return l.under.RoundTrip(r)
	}
	switch query := r.URL.Query(); {
	case query.Get("resourceVersionMatch") != string(metav1.ResourceVersionMatchNotOlderThan):
		l.waiting.Add(1)
	case l.restored.Load():
		return &http.Response{
			StatusCode: http.StatusGatewayTimeout, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(strings.NewReader(tooLarge)), Request: r,
		}, nil
	}
	return l.under.RoundTrip(r)
}

// TestReadsDoNotWaitForOtherObjects checks that no list makes the API server wait for its
// watch cache, which can take 100 ms after a change of an object of another kind. If
// Kubernetes was restored from a backup, the versions of the last writes do not exist.
func TestReadsDoNotWaitForOtherObjects(t *testing.T) {
	t.Parallel()
	name, transport := fleetName(), &lists{}
	config := rest.CopyConfig(cluster(t).Config)
	config.Wrap(func(under http.RoundTripper) http.RoundTripper {
		transport.under = under
		return transport
	})
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	first := changed(0, 2000)
	begin(t, openConfigMap(t, client(t), name), desired(), first)

	c := openConfigMap(t, kube, name)
	wantFiles(t, c, desired())
	begin(t, c, render(nil), changed(1))
	end(t, c, changed(1))
	wantFiles(t, c, render(nil))
	wantHistory(t, c, time.Time{}, open(first), closed(changed(1)))
	if waiting := transport.waiting.Load(); waiting > 0 {
		t.Errorf("%d lists without a resource version", waiting)
	}

	transport.restored.Store(true)
	wantFiles(t, c, render(nil))
	wantHistory(t, c, time.Time{}, open(first), closed(changed(1)))
}

// later sets a clock that is ahead, so that other processes' locks have expired.
func later(c *store.ConfigMap) {
	c.SetClock(clocktesting.NewFakeClock(time.Now().Add(31 * time.Second)))
}

// TestPausedHolder replaces a paused controller with another. The old one can no longer
// write, although the files have not changed since it read them.
func TestPausedHolder(t *testing.T) {
	t.Parallel()
	name := fleetName()
	paused, next := openConfigMap(t, client(t), name), openConfigMap(t, client(t), name)
	paused.SetClock(clocktesting.NewFakeClock(time.Now())) // its time stops
	unlock, err := paused.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	begin(t, paused, desired(), changed(0))
	_, base := readFrom(t, paused)
	later(next)
	unlockNext, err := next.Lock(t.Context())
	if err != nil {
		t.Fatalf("taking over: %v", err)
	}
	begin(t, next, desired(), changed(1))
	if err := paused.Begin(t.Context(), base, render(nil), changed(2)); !errors.Is(err, store.ErrMoved) {
		t.Errorf("the old holder writes: %v, want ErrMoved", err)
	}
	if err := unlock(); !errors.Is(err, store.ErrLeaseLost) {
		t.Errorf("unlocking what was lost: %v", err)
	}
	begin(t, next, render(nil), changed(3))
	wantFiles(t, paused, render(nil))
	wantHistory(t, paused, time.Time{}, open(changed(0)), open(changed(1)), open(changed(3)))
	if err := unlockNext(); err != nil {
		t.Error(err)
	}
}

// TestLeaseSaysHowLongItLasts checks that a lock is respected for the duration that its
// holder set.
func TestLeaseSaysHowLongItLasts(t *testing.T) {
	t.Parallel()
	kube, name := client(t), fleetName()
	holder, seconds, renewed := "another", int32(60), metav1.NewMicroTime(time.Now())
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &renewed},
	}
	if _, err := kube.CoordinationV1().Leases(namespace).Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := openConfigMap(t, kube, name)
	s.SetClock(clocktesting.NewFakeClock(renewed.Add(50 * time.Second)))
	if _, err := s.Lock(t.Context()); !errors.Is(err, store.ErrLocked) {
		t.Errorf("after 50 of 60 seconds: %v, want ErrLocked", err)
	}
	s.SetClock(clocktesting.NewFakeClock(renewed.Add(61 * time.Second)))
	unlock, err := s.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := unlock(); err != nil {
		t.Error(err)
	}
}

// TestPausedWriter pauses a writer at each step, completes another writer's change, and
// continues the first writer. The fleet is then the other writer's.
func TestPausedWriter(t *testing.T) {
	t.Parallel()
	last := render(map[fleet.VMID]string{2009: "pve-3"})
	for step := 0; ; step++ {
		name := fleetName()
		paused, other := openConfigMap(t, client(t), name), openConfigMap(t, client(t), name)
		begin(t, paused, render(map[fleet.VMID]string{2000: "pve-1"}), changed(0))
		_, base := readFrom(t, paused)
		left, at := step, ""
		paused.Interrupt(func(name string) error {
			if left == 0 {
				at = name
				begin(t, other, last, changed(2))
			}
			left--
			return nil
		})
		if err := paused.Begin(t.Context(), base, desired(), changed(1)); err != nil && !errors.Is(err, store.ErrMoved) {
			t.Fatalf("paused at %q: %v", at, err)
		}
		if at == "" {
			break
		}
		wantFiles(t, other, last)
	}
}

// TestLeaseFromTheFuture acquires the lock of a holder that died while its clock was ahead:
// not before the lock was not renewed for the duration that the holder set.
func TestLeaseFromTheFuture(t *testing.T) {
	t.Parallel()
	kube, name := client(t), fleetName()
	holder, seconds, renewed := "another", int32(60), metav1.NewMicroTime(time.Now().AddDate(0, 0, 30))
	leases := kube.CoordinationV1().Leases(namespace)
	lease, err := leases.Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &renewed},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s, at := openConfigMap(t, kube, name), clocktesting.NewFakeClock(time.Now())
	s.SetClock(at)
	locked := func() {
		t.Helper()
		if _, err := s.Lock(t.Context()); !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), "kubectl delete lease --namespace "+namespace+" "+name) {
			t.Fatalf("%v, want ErrLocked and how to release the lock", err)
		}
		if got, err := s.Holder(t.Context()); err != nil || got != holder {
			t.Fatalf("holder %q, %v", got, err)
		}
	}
	locked()
	at.Step(50 * time.Second)
	renewed = metav1.NewMicroTime(renewed.Add(50 * time.Second)) // it still runs
	lease.Spec.RenewTime = &renewed
	if _, err := leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	locked()
	at.Step(59 * time.Second)
	locked()
	at.Step(time.Second)
	if got, err := s.Holder(t.Context()); err != nil || got != "" {
		t.Errorf("holder %q, %v, want none", got, err)
	}
	unlock, err := s.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := unlock(); err != nil {
		t.Error(err)
	}
}

// TestStageOfAConfigMapIsDamaged interrupts a write and damages the staged steps: no
// reader gets the fleet as it was before the write.
func TestStageOfAConfigMapIsDamaged(t *testing.T) {
	t.Parallel()
	name := fleetName()
	c := openConfigMap(t, client(t), name)
	old := render(map[fleet.VMID]string{2000: "pve-1"})
	begin(t, c, old, changed(0))
	_, base := readFrom(t, c)
	begun := false
	c.Interrupt(func(step string) error {
		if begun {
			return errCrash
		}
		begun = step == "root" // names the record, which holds the files
		return nil
	})
	change := changed(1)
	if err := c.Begin(t.Context(), base, desired(), change); !errors.Is(err, errCrash) {
		t.Fatalf("got %v, want the write interrupted", err)
	}
	c.Interrupt(nil)

	configMaps := client(t).CoreV1().ConfigMaps(namespace)
	record, err := configMaps.Get(t.Context(), name+"-"+strings.ToLower(change.ID), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const key = "files.json.gz"
	whole := record.BinaryData[key]
	for damage, content := range map[string][]byte{"": whole, "no archive": []byte("x"), "cut off": whole[:len(whole)-9], "empty": nil} {
		if err := configMaps.Delete(t.Context(), record.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		record.ResourceVersion, record.UID, record.BinaryData = "", "", map[string][]byte{key: content}
		if record, err = configMaps.Create(t.Context(), record, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		reader := openConfigMap(t, client(t), name)
		if damage == "" {
			wantFiles(t, reader, desired())
			continue
		}
		files, _, err := reader.Read(t.Context())
		if err == nil || len(files) > 0 || !strings.Contains(err.Error(), record.Name+", which contains an interrupted write: ") {
			t.Errorf("%s: %d files, %v, want the record named", damage, len(files), err)
		}
	}
}

func TestLeaseIsRenewed(t *testing.T) {
	t.Parallel()
	name := fleetName()
	holder, other := openConfigMap(t, client(t), name), openConfigMap(t, client(t), name)
	at := clocktesting.NewFakeClock(time.Now())
	holder.SetClock(at)
	other.SetClock(at)
	unlock, err := holder.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		at.Step(10 * time.Second)
		waitForRenewal(t, name, at.Now())
	}
	if _, err := other.Lock(t.Context()); !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), "held by process ") {
		t.Errorf("while it is renewed: %v", err)
	}
	if err := unlock(); err != nil {
		t.Error(err)
	}
	unlock, err = other.Lock(t.Context())
	if err != nil {
		t.Fatalf("after unlock: %v", err)
	}
	if err := unlock(); err != nil {
		t.Error(err)
	}
}

// waitForRenewal waits until a lease was renewed at or after a given time.
func waitForRenewal(t *testing.T, name string, at time.Time) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		l, err := client(t).CoordinationV1().Leases(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("waiting for the lease to be renewed: %v", err)
		}
		if !l.Spec.RenewTime.Time.Before(at.Truncate(time.Microsecond)) {
			return
		}
		<-tick.C
	}
}

// lossy loses the responses to some successful requests.
type lossy struct {
	under http.RoundTripper
	lose  func(*http.Request) bool
}

var errLost = errors.New("the answer was lost")

func (l lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := l.under.RoundTrip(r)
	if err == nil && l.lose(r) {
		return nil, errors.Join(errLost, response.Body.Close())
	}
	return response, err
}

// TestLostResponse loses the response to the decisive update. The change is then the
// desired state, with its record, and the next writer continues.
func TestLostResponse(t *testing.T) {
	t.Parallel()
	name := fleetName()
	plain := openConfigMap(t, client(t), name)
	begin(t, plain, render(nil), changed(0))
	config := rest.CopyConfig(cluster(t).Config)
	config.Wrap(func(under http.RoundTripper) http.RoundTripper {
		return lossy{under: under, lose: func(r *http.Request) bool {
			return r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/configmaps/"+name)
		}}
	})
	bad, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	_, base := readFrom(t, plain)
	if err := openConfigMap(t, bad, name).Begin(t.Context(), base, desired(), changed(1)); !errors.Is(err, errLost) {
		t.Errorf("got %v, want the lost answer", err)
	}
	wantFiles(t, plain, desired())
	wantHistory(t, plain, time.Time{}, open(changed(0)), open(changed(1)))
	begin(t, plain, render(nil), changed(2))
	wantFiles(t, plain, render(nil))
}

func TestConfigMapLimits(t *testing.T) {
	t.Parallel()
	c := openConfigMap(t, client(t), fleetName())
	begin(t, c, desired(), changed(0))
	_, base := readFrom(t, c)
	for want, edit := range map[string]func(generator.Files){
		"Kubernetes allows 1048576": func(f generator.Files) { f["r/pve-1/node-a-2002.tf"] = []byte(strings.Repeat("# x\n", 300_000)) },
		"cannot be a key of a ConfigMap: rename its host": func(f generator.Files) {
			f["r/pve-1/node-a..2002.tf"] = []byte("# Generated by numaform for pool a\n")
		},
	} {
		files := desired()
		edit(files)
		wantError(t, c.Begin(t.Context(), base, files, changed(1)), "nothing was written", want)
	}
	big := changed(1)
	big.Why = strings.Repeat("because ", 200_000)
	wantError(t, c.Begin(t.Context(), base, render(nil), big), "Kubernetes allows 1048576")
	wantFiles(t, c, desired())
	wantHistory(t, c, time.Time{}, open(changed(0)))
	if _, err := store.NewConfigMap(client(t), namespace, "No Name"); err == nil || !strings.Contains(err.Error(), `"No Name"`) {
		t.Errorf("a name that is none: %v", err)
	}
}

// TestConfigMapOfExactSize fills a ConfigMap to the last byte that Kubernetes accepts.
func TestConfigMapOfExactSize(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	for _, test := range []struct {
		text, binary int
		want         bool
	}{
		{text: limit, want: true},
		{text: limit + 1},
		{text: limit - 100, binary: 100, want: true},
		{text: limit - 100, binary: 101},
	} {
		if got := store.Fits(test.text, test.binary); got != test.want {
			t.Errorf("%d bytes of text and %d others fit: %v, want %v", test.text, test.binary, got, test.want)
		}
	}
}

// TestFenceByHand reads lock numbers that a person may have written: an impossible number
// counts as none; otherwise no process could write again.
func TestFenceByHand(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"7": 7, "2147483647": 2147483647, "2147483648": 0, "9223372036854775807": 0, "seven": 0, "": 0} {
		if got := store.FenceOf(text); got != want {
			t.Errorf("%q is %d, want %d", text, got, want)
		}
	}
}

func TestConfigMapHistoryOverDays(t *testing.T) {
	t.Parallel()
	c := openConfigMap(t, client(t), fleetName())
	var all []audit.Entry
	for i, minutes := range []int{0, 14 * 60, 3 * 24 * 60, 100 * 24 * 60} {
		change := changed(minutes, 2000+i)
		begin(t, c, desired(), change)
		end(t, c, change)
		all = append(all, closed(change))
	}
	wantHistory(t, c, time.Time{}, all...)
	wantHistory(t, c, all[1].Change.Time, all[1:]...)
	wantHistory(t, c, all[2].Change.Time, all[2:]...)
	wantHistory(t, c, all[2].Change.Time.Add(time.Second), all[3:]...)
	wantHistory(t, c, all[3].Change.Time.Add(9000*time.Hour), all[3:]...)
}

// TestConfigMapOverwrittenRecords overwrites records as another client: the changes
// before and after them are still found.
func TestConfigMapOverwrittenRecords(t *testing.T) {
	t.Parallel()
	for _, suffix := range []string{"", "-outcome"} {
		for _, content := range []string{"", "null", "looks good", `{"format": 1, "id": "another"}`} {
			t.Run(suffix+content, func(t *testing.T) {
				t.Parallel()
				name := fleetName()
				c := openConfigMap(t, client(t), name)
				for i := range 3 {
					begin(t, c, desired(), changed(i))
					end(t, c, changed(i))
				}
				configMaps := client(t).CoreV1().ConfigMaps(namespace)
				record, err := configMaps.Get(t.Context(), name+"-"+strings.ToLower(changed(1).ID)+suffix, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				// A record is immutable, so replace it.
				replaced := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: record.Name, Labels: record.Labels, Annotations: record.Annotations}}
				for key := range record.Data {
					replaced.Data = map[string]string{key: content}
				}
				if err := configMaps.Delete(t.Context(), record.Name, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				if _, err := configMaps.Create(t.Context(), replaced, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				for _, since := range []time.Time{{}, changed(0).Time} {
					list := historyOf(t, c, since)
					if len(list) != 3 || list[0].Outcome == nil || list[2].Outcome == nil || list[1].Outcome != nil || list[1].Change.ID != changed(1).ID ||
						!strings.Contains(list[1].Unreadable, record.Name) {
						t.Errorf("history since %s: %+v", since, list)
					}
					if keep := strings.Contains(list[1].Unreadable, "keep its ConfigMap"); keep != (suffix == "") {
						t.Errorf("hint: %s", list[1].Unreadable)
					}
				}
			})
		}
	}
}

func TestConfigMapDeletedRecord(t *testing.T) {
	t.Parallel()
	name := fleetName()
	c := openConfigMap(t, client(t), name)
	begin(t, c, desired(), changed(0))
	begin(t, c, desired(), changed(1))
	lost := name + "-" + strings.ToLower(changed(0).ID)
	if err := client(t).CoreV1().ConfigMaps(namespace).Delete(t.Context(), lost, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := c.History(t.Context(), time.Time{})
	wantError(t, err, lost, "in the annotations of ConfigMap "+name+"-"+strings.ToLower(changed(1).ID))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want ErrNotExist", err)
	}
}
