package topology_test

import (
	"strings"
	"testing"

	"github.com/numaform/numaform/topology"
)

// TestCloneProblem checks from which templates of other hosts a host's VMs can be cloned.
func TestCloneProblem(t *testing.T) {
	t.Parallel()
	disks := func(list ...string) (storages []topology.Storage) {
		for _, name := range list {
			local := strings.HasPrefix(name, "local")
			storages = append(storages, topology.Storage{Name: name, Shared: !local, Active: true})
		}
		return storages
	}
	for _, test := range []struct {
		name   string
		change func(t *topology.Template, from, to *topology.Host)
		full   string
		want   string
	}{
		{name: "shared", change: func(*topology.Template, *topology.Host, *topology.Host) {}},
		{name: "full on shared storage", change: func(*topology.Template, *topology.Host, *topology.Host) {}, full: "san"},
		{name: "full on the same storage", change: func(*topology.Template, *topology.Host, *topology.Host) {}, full: "nas"},
		{
			name: "full on local storage", full: "local",
			change: func(*topology.Template, *topology.Host, *topology.Host) {},
			want:   `cannot use template 9000 on a, because "local" is not shared storage, and Proxmox creates full clones on other storages only on the template's host`,
		},
		{
			name: "local", change: func(t *topology.Template, _, _ *topology.Host) { t.Storage = "local" },
			want: `cannot use template 9000 on a, because a drive of the template is on "local", which is not shared storage`,
		},
		{
			name: "a local CD image", change: func(t *topology.Template, _, _ *topology.Host) { t.OtherStorages = []string{"local"} },
			want: `a drive of the template is on "local"`,
		},
		{
			name: "unknown storage", change: func(_ *topology.Template, from, _ *topology.Host) { from.Storages = nil },
			want: `a drive of the template is on "nas"`,
		},
		{
			name: "not on this host", change: func(_ *topology.Template, _, to *topology.Host) { to.Storages = disks("local", "san") },
			want: `cannot use template 9000 on a, because storage "nas" does not exist or is not active`,
		},
		{
			name: "not active", change: func(_ *topology.Template, _, to *topology.Host) { to.Storages[1].Active = false },
			want: `storage "nas" does not exist or is not active`,
		},
		{
			name: "full on a storage that this host lacks", full: "san", change: func(_ *topology.Template, _, to *topology.Host) { to.Storages = disks("nas") },
			want: `storage "san" does not exist or is not active`,
		},
		{name: "offline", change: func(_ *topology.Template, from, _ *topology.Host) { from.Online = false }, want: "cannot use template 9000 on a, which is offline"},
		{name: "unreadable", change: func(_ *topology.Template, from, _ *topology.Host) { from.Problem = "does not respond" }, want: "which does not respond"},
		{name: "another cluster", change: func(_ *topology.Template, from, _ *topology.Host) { from.Region = "other" }, want: "is in another Proxmox cluster than template 9000 on a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			template := &topology.Template{VMID: 9000, Storage: "nas"}
			from := &topology.Host{Region: "lab", Name: "a", Online: true, Storages: disks("local", "nas", "san")}
			to := &topology.Host{Region: "lab", Name: "b", Online: true, Storages: disks("local", "nas", "san")}
			test.change(template, from, to)
			got := to.CloneProblem(template, from, test.full)
			if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
