package template_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/template"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

var (
	pve1 = topology.HostID{Region: "lab", Host: "pve-1"} //nolint:gochecknoglobals // a constant
	pve2 = topology.HostID{Region: "lab", Host: "pve-2"} //nolint:gochecknoglobals // a constant
)

// debian returns a ProxmoxTemplate.
func debian() *v1alpha1.ProxmoxTemplate {
	pt := &v1alpha1.ProxmoxTemplate{}
	pt.Name = "debian"
	pt.Spec.Image = v1alpha1.TemplateImage{URL: "https://images.example/a.qcow2", Checksum: strings.Repeat("A", 64), Storage: "local"}
	pt.Spec.Disk = v1alpha1.TemplateDisk{Storage: "local-lvm", SizeGiB: 8}
	pt.Spec.Networks = []v1alpha1.TemplateNetwork{{Bridge: "vmbr0"}}
	return pt
}

// hosts returns pve-1, and pve-2 after a change.
func hosts(change func(*topology.Host)) *topology.Snapshot {
	s := &topology.Snapshot{}
	for _, id := range []topology.HostID{pve1, pve2} {
		s.Hosts = append(s.Hosts, topology.Host{
			Region: id.Region, Name: id.Host, Online: true,
			Storages: []topology.Storage{
				{Name: "local", Active: true, Content: []string{"iso", "import"}}, {Name: "local-lvm", Active: true, Content: []string{"images"}},
			},
		})
	}
	change(&s.Hosts[1])
	return s
}

// TestRequest checks which hosts get a template, and why a host cannot create it.
func TestRequest(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		edit    func(*v1alpha1.ProxmoxTemplate)
		host    func(*topology.Host)
		hosts   int
		blocked string // of pve-2
	}{
		{name: "all hosts", hosts: 2},
		{name: "one host", edit: func(pt *v1alpha1.ProxmoxTemplate) { pt.Spec.Hosts = []string{"lab/pve-2"} }, hosts: 1},
		{name: "another region", edit: func(pt *v1alpha1.ProxmoxTemplate) { pt.Spec.Region = "x" }},
		{name: "offline", host: func(h *topology.Host) { h.Online = false }, hosts: 2, blocked: "the host is offline"},
		{name: "no storage", host: func(h *topology.Host) { h.Storages = h.Storages[1:] }, hosts: 2, blocked: `has no storage "local": correct the storage`},
		{name: "no import", host: func(h *topology.Host) { h.Storages[0].Content = []string{"iso"} }, hosts: 2, blocked: "does not have the content type import: add it with pvesm set local"},
		{name: "no images", host: func(h *topology.Host) { h.Storages[1].Content = []string{"iso"} }, hosts: 2, blocked: "does not have the content type images"},
		{name: "inactive", host: func(h *topology.Host) { h.Storages[1].Active = false }, hosts: 2, blocked: `storage "local-lvm" is not active`},
	} {
		pt := debian()
		if tt.edit != nil {
			tt.edit(pt)
		}
		if tt.host == nil {
			tt.host = func(*topology.Host) {}
		}
		request, name, err := template.Request(pt, hosts(tt.host))
		if err != nil || len(request.Templates) != tt.hosts {
			t.Errorf("%s: %d hosts (%v), want %d", tt.name, len(request.Templates), err, tt.hosts)
		}
		if got := request.Blocked[pve2]; (got == "") != (tt.blocked == "") || !strings.Contains(got, tt.blocked) {
			t.Errorf("%s: pve-2 is blocked by %q, want %q", tt.name, got, tt.blocked)
		}
		for _, one := range request.Templates {
			if one.Name != name || !strings.HasPrefix(name, "debian-") || one.Image.Algorithm != "sha256" || one.Image.Format != "qcow2" || one.Image.Checksum != strings.Repeat("a", 64) {
				t.Errorf("%s: template %+v", tt.name, one)
			}
		}
	}
}

// TestStatus checks the states and the conditions.
func TestStatus(t *testing.T) {
	t.Parallel()
	state := func(host topology.HostID, edit func(*scaler.TemplateState)) scaler.TemplateState {
		s := scaler.TemplateState{Desired: true, Template: fleet.Template{Of: "debian", Name: "debian-1", VMID: 9100, Host: host, Image: fleet.TemplateImage{URL: "https://a/b"}}}
		edit(&s)
		return s
	}
	ready := state(pve1, func(s *scaler.TemplateState) { s.Ready = true })
	for _, tt := range []struct {
		name    string
		states  []scaler.TemplateState
		deleted bool
		// shared changes pve-2; the disks are on shared storage then.
		shared func(*topology.Host)
		// want is the state of pve-2, and reason and message those of the condition.
		want            v1alpha1.TemplateState
		reason, message string
	}{
		{name: "ready", states: []scaler.TemplateState{ready, state(pve2, func(s *scaler.TemplateState) { s.Ready = true })}, want: v1alpha1.TemplateReady},
		{name: "not begun", states: []scaler.TemplateState{ready}, want: v1alpha1.TemplatePending, reason: v1alpha1.ReasonTemplatesPending, message: "lab/pve-2: waits for its turn"},
		{
			name: "downloading", states: []scaler.TemplateState{ready, state(pve2, func(s *scaler.TemplateState) { s.Applying = true })},
			want: v1alpha1.TemplateDownloading, reason: v1alpha1.ReasonTemplatesPending, message: "lab/pve-2: the image is being downloaded",
		},
		{
			name: "checksum", states: []scaler.TemplateState{ready, state(pve2, func(s *scaler.TemplateState) { s.Err = errors.New("x checksum mismatch: got 'a'") })},
			want: v1alpha1.TemplateFailed, reason: v1alpha1.ReasonTemplatesFailed, message: "correct spec.image.checksum",
		},
		{
			name: "full", states: []scaler.TemplateState{ready, state(pve2, func(s *scaler.TemplateState) { s.Err = errors.New("No space left on device") })},
			want: v1alpha1.TemplateFailed, reason: v1alpha1.ReasonTemplatesFailed, message: "a storage is full",
		},
		{
			name: "host down", states: []scaler.TemplateState{ready, state(pve2, func(s *scaler.TemplateState) { s.Err = &scaler.TemplateHostError{Reason: "is offline"} })},
			want: v1alpha1.TemplatePending, reason: v1alpha1.ReasonTemplatesPending, message: "lab/pve-2: is offline",
		},
		{
			name: "approval", states: []scaler.TemplateState{ready, state(pve2, func(s *scaler.TemplateState) {
				s.Err, s.Digest = &scaler.TemplatePendingError{Host: pve2, Why: "create debian-1"}, "abc"
			})},
			want: v1alpha1.TemplatePending, reason: v1alpha1.ReasonPendingApproval, message: "kubectl annotate proxmoxtemplate debian --overwrite numaform.dev/approve-templates=abc",
		},
		{
			name: "old one in use", states: []scaler.TemplateState{ready, state(pve2, func(s *scaler.TemplateState) { s.Ready = true }), state(pve2, func(s *scaler.TemplateState) {
				s.Template.Name, s.Desired, s.Ready, s.Users = "debian-0", false, true, []string{"workers-1", "workers-2"}
			})},
			want: v1alpha1.TemplateReady,
		},
		{
			name: "deleted in use", deleted: true, states: []scaler.TemplateState{state(pve2, func(s *scaler.TemplateState) {
				s.Desired, s.Ready, s.Users = false, true, []string{"a", "b", "c", "d", "e", "f"}
			})},
			want: v1alpha1.TemplateSuperseded, reason: v1alpha1.ReasonTemplateInUse, message: "template 9100 on lab/pve-2 is used by a, b, c, d, e and 1 more",
		},
		{name: "shared", states: []scaler.TemplateState{ready}, shared: func(*topology.Host) {}, want: v1alpha1.TemplateReady},
		{
			name: "shared, not ready", states: []scaler.TemplateState{state(pve1, func(s *scaler.TemplateState) { s.Applying = true })}, shared: func(*topology.Host) {},
			want: v1alpha1.TemplatePending, reason: v1alpha1.ReasonTemplatesPending, message: "lab/pve-2: waits for the template on pve-1",
		},
		{
			name: "shared, without the storage", states: []scaler.TemplateState{ready}, shared: func(h *topology.Host) { h.Storages = h.Storages[:1] },
			want: v1alpha1.TemplatePending, reason: v1alpha1.ReasonTemplatesPending, message: `lab/pve-2: the host has no storage "local-lvm"`,
		},
		{
			name: "shared, no import", states: []scaler.TemplateState{ready}, shared: func(h *topology.Host) { h.Storages = h.Storages[1:] },
			want: v1alpha1.TemplateReady,
		},
		{
			name: "shared, offline", states: []scaler.TemplateState{ready}, shared: func(h *topology.Host) { h.Online = false },
			want: v1alpha1.TemplatePending, reason: v1alpha1.ReasonTemplatesPending, message: "lab/pve-2: the host is offline",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pt := debian()
			if tt.deleted {
				pt.DeletionTimestamp = &metav1.Time{Time: time.Unix(0, 0)}
			}
			snapshot := hosts(func(host *topology.Host) {
				if tt.shared != nil {
					host.Storages[1].Shared = true
					tt.shared(host)
				}
			})
			snapshot.Hosts[0].Storages[1].Shared = tt.shared != nil
			request, _, err := template.Request(pt, snapshot)
			if err != nil {
				t.Fatal(err)
			}
			template.SetStatus(pt, "debian-1", &request, tt.states, snapshot)
			var got v1alpha1.TemplateState
			for _, one := range pt.Status.Templates {
				if one.Host == "lab/pve-2" && one.Name == "debian-1" {
					got = one.State
				}
			}
			root := pt.StatusConditions().Root()
			own := pt.StatusConditions().Get(v1alpha1.ConditionTemplatesReady)
			if got != tt.want || root.IsTrue() != (tt.reason == "") || (tt.reason != "" && own.Reason != tt.reason) || !strings.Contains(root.Message, tt.message) {
				t.Errorf("state %s, want %s; condition %+v, want %s with %q; status %+v", got, tt.want, own, tt.reason, tt.message, pt.Status)
			}
		})
	}
	pt := debian()
	template.SetStatus(pt, "debian-1", &scaler.TemplateRequest{}, nil, &topology.Snapshot{})
	if own := pt.StatusConditions().Get(v1alpha1.ConditionTemplatesReady); own.Reason != v1alpha1.ReasonNoHosts {
		t.Errorf("without hosts: %+v", own)
	}
}

// TestRequestOfAHostThatLeft checks that a host counts as gone if Proxmox no longer lists it,
// but not if it is down, and not if its whole region was not read.
func TestRequestOfAHostThatLeft(t *testing.T) {
	t.Parallel()
	on := func(host topology.HostID) scaler.TemplateState {
		return scaler.TemplateState{Template: fleet.Template{Of: "debian", Host: host}}
	}
	left := topology.HostID{Region: "lab", Host: "pve-3"}
	snapshot := hosts(func(host *topology.Host) { host.Online = false })
	request, _, err := template.Request(debian(), snapshot, on(pve1), on(pve2), on(left), on(left), on(topology.HostID{Region: "x", Host: "pve-4"}))
	if err != nil || !slices.Equal(request.Gone, []topology.HostID{left}) {
		t.Errorf("gone: %v (%v), want %s", request.Gone, err, left)
	}
}
