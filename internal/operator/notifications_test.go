package operator_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/controllers/event"
	"github.com/numaform/numaform/internal/notify"
	"github.com/numaform/numaform/internal/operator"
)

// TestNotices checks which events become notifications, and which of them have the same
// cause.
func TestNotices(t *testing.T) {
	t.Parallel()
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "workers", UID: "p"}}
	claim := func(name string) client.Object {
		return &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	}
	plan := func(phase v1alpha1.ScalePlanPhase) client.Object {
		return &v1alpha1.ScalePlan{ObjectMeta: metav1.ObjectMeta{Name: "workers-7f3a"}, Status: v1alpha1.ScalePlanStatus{Phase: phase}}
	}
	class := &v1alpha1.ProxmoxNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "workers"}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w-1"}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "@here"}}
	of := func(object client.Object, reason, message string, cause ...string) events.Event {
		return event.New(object, corev1.EventTypeWarning, reason, message, cause...)
	}
	same := map[string]string{} // the key of each label
	for _, test := range []struct {
		event events.Event
		want  string // kind and object; "" for no notification
		label string // events with the same label have the same key
	}{
		{of(plan("Pending"), "ScalePlanProposed", "2 VMs"), "waiting ScalePlan workers-7f3a", "plan"},
		{of(pool, "PendingApproval", "waits", "workers-7f3a 0001-01-01 00:00:00 +0000 UTC"), "waiting NodePool workers", "plan"},
		{of(pool, "PendingApproval", "a VM waits", " 0001-01-01 00:00:00 +0000 UTC"), "", ""},
		{of(pod, "PendingApproval", "waits", "workers-7f3a"), "", ""},
		{of(plan("Failed"), "ScalePlanProposed", "2 VMs"), "denied ScalePlan workers-7f3a", "denied plan"},
		{of(pool, "PlanDenied", "denied", "workers-7f3a 0001"), "denied NodePool workers", "denied plan"},
		{of(plan("Rejected"), "ScalePlanFinished", "Rejected: no"), "denied ScalePlan workers-7f3a", "denied plan"},
		{of(plan("Failed"), "ScalePlanFinished", "Failed: x"), "failed ScalePlan workers-7f3a", "failed plan"},
		{of(plan("Expired"), "ScalePlanFinished", "Expired: x"), "failed ScalePlan workers-7f3a", "failed plan"},
		{of(plan("Superseded"), "ScalePlanFinished", "Superseded: x"), "", ""},
		{of(plan("Applied"), "ScalePlanFinished", "Applied: x"), "", ""},
		{of(plan("Approved"), "ScalePlanDecided", "approved by alice"), "", ""},
		{of(plan("Approved"), "BreakGlassApproval", "alice: shop down"), "waiting ScalePlan workers-7f3a", "glass"},
		{of(plan("Pending"), "ChangeFrozen", "waits"), "waiting ScalePlan workers-7f3a", "frozen"},
		{of(plan("Superseded"), "FreezeEnded", "ended"), "waiting ScalePlan workers-7f3a", "thawed"},
		{of(claim("w-1"), "VMFailed", "creating VM w-1 failed"), "failed NodeClaim w-1", "w-1"},
		{of(pool, "VMFailed", "creating VM w-1 failed"), "failed NodePool workers", "w-1"},
		{of(claim("w-2"), "VMFailed", "creating VM w-2 failed"), "failed NodeClaim w-2", "w-2"},
		{of(pool, "LimitReached", "5 pods", "x"), "waiting NodePool workers", "limit"},
		{of(pool, "LimitReached", "6 pods", "x"), "waiting NodePool workers", "limit"},
		{of(class, "ProxmoxUnread", "timeout after 5.1s"), "failed ProxmoxNodeClass workers", "class"},
		{of(class, "ProxmoxUnread", "timeout after 5.2s"), "failed ProxmoxNodeClass workers", "class"},
		{of(class, "Ready", "nodes can be created"), "", ""},
		{of(claim("w-1"), "WrongLogin", "denied", "csr-1"), "denied NodeClaim w-1", "csr-1"},
		{of(claim("w-1"), "WrongLogin", "denied", "csr-2"), "denied NodeClaim w-1", "csr-2"},
		{of(node, "OrphanedVM", "guest w-1"), "failed Node w-1", "orphan"},
		{of(node, "DisruptionBlocked", "Karpenter's own"), "", ""},
		{of(pod, "FailedScheduling", "no place"), "", ""},
	} {
		recorder := record.NewFakeRecorder(1)
		var got []notify.Notice
		operator.Notifying(events.NewRecorder(recorder), func(n notify.Notice) { got = append(got, n) }).Publish(test.event)
		if len(recorder.Events) != 1 {
			t.Errorf("%s: the event was not published", test.event.Reason)
		}
		name := fmt.Sprintf("%s on %T", test.event.Reason, test.event.InvolvedObject)
		if test.want == "" {
			if len(got) > 0 {
				t.Errorf("%s: got %+v, want no notification", name, got)
			}
			continue
		}
		if len(got) != 1 || string(got[0].Kind)+" "+got[0].Object != test.want || got[0].Reason != test.event.Reason || got[0].Message != test.event.Message {
			t.Errorf("%s: got %+v, want %s", name, got, test.want)
			continue
		}
		key := got[0].Key
		for label, other := range same {
			if (label == test.label) != (other == key) {
				t.Errorf("%s: the key %q of %s and %q of %s", name, key, test.label, other, label)
			}
		}
		same[test.label] = key
	}
}

// TestNotableReasonsAreDocumented checks that docs/notifications.md lists the reasons of each
// kind, or refers to their list in docs/events.md.
func TestNotableReasonsAreDocumented(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page, eventsPage := read("notifications.md"), read("events.md")
	rows := map[notify.Kind]string{}
	for _, match := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|.*$").FindAllStringSubmatch(page, -1) {
		rows[notify.Kind(match[1])] = match[0]
	}
	kinds := operator.Notable()
	for _, reason := range slices.Sorted(maps.Keys(kinds)) {
		inClass := regexp.MustCompile("(?m)^\\| [^|]*`" + reason + "`[^|]*\\| [^|]*\\|$").MatchString(eventsPage)
		if !strings.Contains(rows[kinds[reason]], "`"+reason+"`") && !inClass {
			t.Errorf("docs/notifications.md does not list %s as %s", reason, kinds[reason])
		}
	}
	for kind, row := range rows {
		for _, match := range regexp.MustCompile("`([A-Z][A-Za-z]+)`").FindAllStringSubmatch(row, -1) {
			if reason := match[1]; kinds[reason] != kind && reason != "Paused" && !strings.HasPrefix(reason, "ScalePlan") {
				t.Errorf("docs/notifications.md lists %s as %s, but it is %q", reason, kind, kinds[reason])
			}
		}
	}
}

// TestNotificationMemory checks that each target has its own record.
func TestNotificationMemory(t *testing.T) {
	t.Parallel()
	cluster := fake.NewClientset()
	memory := operator.NotificationMemory(cluster, "numaform")
	if stored, err := memory.Load(t.Context(), "a"); stored != "" || err != nil {
		t.Errorf("got %q, %v before anything was stored", stored, err)
	}
	for _, write := range [][2]string{{"a", "1"}, {"b", "2"}, {"a", "3"}} {
		if err := memory.Save(t.Context(), write[0], write[1]); err != nil {
			t.Fatal(err)
		}
	}
	for target, want := range map[string]string{"a": "3", "b": "2"} {
		if stored, err := memory.Load(t.Context(), target); stored != want || err != nil {
			t.Errorf("%s: got %q, %v", target, stored, err)
		}
	}
}

const notifications = `notifications:
  repeat: 12h
  targets:
  - {name: chat, type: slack, url_file: slack-url}
  - {name: room, type: matrix, url: https://matrix.example, room: "!a:b", token_file: token, ca_file: ca.pem}
  - {name: mail, type: mail, server: "mail.example:587", username: u, password_file: token, from: a@example.org, to: [b@example.org]}
`

func TestNotifications(t *testing.T) {
	t.Parallel()
	config, dir, err := load(t, minimal+notifications, "NUMAFORM_NOTIFICATIONS_TARGETS_0_URL=https://hooks.slack.com/services/planted-secret")
	if err != nil {
		t.Fatal(err)
	}
	targets := config.Notifications.Targets
	want := notify.Target{Name: "chat", Type: notify.Slack, URL: "https://hooks.slack.com/services/planted-secret"}
	if diff := cmp.Diff(want, targets[0]); diff != "" || len(targets) != 3 {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n := config.Notifications; n.Interval.String() != "1m0s" || n.Repeat.String() != "12h0m0s" || targets[1].CAFile != filepath.Join(dir, "ca.pem") {
		t.Errorf("got %+v", n)
	}
	if files := config.SecretFiles(); !slices.Contains(files, filepath.Join(dir, "token")) {
		t.Errorf("got the files %v", files)
	}
	redact := config.Redact([]string{"AWS_SECRET_ACCESS_KEY=another-secret"})
	for _, text := range []string{"posting to https://hooks.slack.com/services/planted-secret failed", "token s3cret is wrong", "another-secret", "/services/planted-secret"} {
		if got := redact(text); strings.Contains(got, "secret") || strings.Contains(got, "s3cret") {
			t.Errorf("got %q", got)
		}
	}
}

func TestNotificationMistakes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ text, environ, want string }{
		{"{targets: [{name: a, type: slack, url: https://hooks.slack.com/planted-secret}]}", "", "notifications.targets[0].url: is a secret, which must not be in numaform.yaml: set url_file to a file with it, or set the variable NUMAFORM_NOTIFICATIONS_TARGETS_0_URL"},
		{"{targets: [{name: a, type: webhook, url: https://h, token: planted-secret}]}", "", "notifications.targets[0].token: is a secret"},
		{"{targets: [{name: a, type: mail, password: planted-secret}]}", "", "notifications.targets[0].password: is a secret"},
		{"{targets: [{name: a, type: slack}, {name: a, type: webhook, url: 'http://h'}]}", "NUMAFORM_NOTIFICATIONS_TARGETS_0_URL=x:planted-secret", "notifications.targets[0]: url: must be a URL"},
		{"{targets: [{name: a, type: webhook, url: 'http://h'}, {name: a, type: webhook, url: 'http://h'}]}", "", `notifications.targets[1]: duplicate name "a"`},
		{"{interval: 10ms}", "", "notifications.interval: 10ms: must be at least 1s"},
		{"{repeat: 1s}", "", "notifications.repeat: 1s: must be at least 1m"},
		{"{target: []}", "", "unknown key target"},
		{"{targets: [" + strings.Repeat("{name: a, type: webhook, url: 'http://h'},", 11) + "]}", "", "11 targets: must be at most 10"},
	} {
		var environ []string
		if test.environ != "" {
			environ = append(environ, test.environ)
		}
		_, _, err := load(t, minimal+"notifications: "+test.text+"\n", environ...)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "planted-secret") {
			t.Errorf("got %v, want %q and no secret", err, test.want)
		}
	}
}
