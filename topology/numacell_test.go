package topology_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/numaform/numaform/topology"
)

func TestParseNUMA(t *testing.T) {
	t.Parallel()
	full := topology.NUMACell{
		GuestCPUs: topology.CPUs(0, 1, 2, 3, 8, 9, 10, 11), HostNodes: topology.CPUs(0, 1),
		MemoryMiB: 4096, Policy: topology.NUMABind,
	}
	for _, test := range []struct {
		name, text string
		want       topology.NUMACell
		prints     string
		err        string
	}{
		{
			name: "all keys", text: "cpus=0-3;8-11,hostnodes=0-1,memory=4096,policy=bind", want: full,
			prints: "cpus=0-3;8-11,hostnodes=0-1,memory=4096,policy=bind",
		},
		{
			name: "any order, empty parts", text: "policy=bind,memory=4096,,hostnodes=1;0,cpus=8-11;0-3,", want: full,
			prints: "cpus=0-3;8-11,hostnodes=0-1,memory=4096,policy=bind",
		},
		{
			name: "cpus alone", text: "cpus=0", want: topology.NUMACell{GuestCPUs: topology.CPUs(0)},
			prints: "cpus=0",
		},
		{name: "empty", text: "", err: "cpus is missing"},
		{name: "no cpus", text: "hostnodes=0,memory=1,policy=bind", err: "cpus is missing"},
		{name: "cpus of nothing", text: "cpus=;,memory=1", err: "cpus is missing"},
		{name: "no value", text: "cpus=", err: "must have the form key=value"},
		{name: "no key", text: "0-3", err: "must have the form key=value"},
		{name: "twice", text: "cpus=0,cpus=1", err: `"cpus" is a duplicate key`},
		{name: "unknown key", text: "cpus=0,size=1", err: `"size": unknown key: must be cpus, hostnodes, memory or policy`},
		{name: "unknown policy", text: "cpus=0,policy=local", err: `"local": must be bind, preferred or interleave`},
		{name: "negative memory", text: "cpus=0,memory=-1", err: "must be a positive number of MiB"},
		{name: "memory with unit", text: "cpus=0,memory=4G", err: `"4G": must be a positive number of MiB`},
		{name: "hostile cpus", text: "cpus=0-99999999", err: "is too large"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := topology.ParseNUMA(test.text)
			checkError(t, err, test.err)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("cell (-want +got):\n%s", diff)
			}
			if err == nil && topology.FormatNUMA(got) != test.prints {
				t.Errorf("prints as %s, want %s", topology.FormatNUMA(got), test.prints)
			}
		})
	}
}

func TestNUMARoundTrip(t *testing.T) {
	t.Parallel()
	ids := rapid.SliceOfN(rapid.IntRange(0, 255), 1, 32)
	rapid.Check(t, func(t *rapid.T) {
		want := topology.NUMACell{
			GuestCPUs: topology.CPUs(ids.Draw(t, "cpus")...),
			HostNodes: topology.CPUs(rapid.SliceOf(rapid.IntRange(0, 127)).Draw(t, "nodes")...),
			MemoryMiB: rapid.Int64Range(0, 1<<40).Draw(t, "memory"),
			Policy: rapid.SampledFrom([]topology.NUMAPolicy{
				"", topology.NUMABind, topology.NUMAPreferred, topology.NUMAInterleave,
			}).Draw(t, "policy"),
		}
		got, err := topology.ParseNUMA(topology.FormatNUMA(want))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Fatalf("error %v, cell (-want +got):\n%s", err, diff)
		}
	})
}

func FuzzParseNUMA(f *testing.F) {
	for _, seed := range []string{"cpus=0-3;8-11,hostnodes=0-1,memory=4096,policy=bind", "cpus=0", "policy=bind,,cpus=;1", "=,="} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		cell, err := topology.ParseNUMA(text)
		if err != nil {
			return
		}
		again, err := topology.ParseNUMA(topology.FormatNUMA(cell))
		if diff := cmp.Diff(cell, again); err != nil || diff != "" {
			t.Fatalf("%q prints as %s, error %v:\n%s", text, topology.FormatNUMA(cell), err, diff)
		}
	})
}
