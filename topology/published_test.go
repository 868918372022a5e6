package topology_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

func published(t testing.TB, name string) string {
	t.Helper()
	file, err := machines.File(name)
	if err != nil {
		t.Fatal(err)
	}
	file.Title, file.Note, file.Source = "", "", nil
	text, err := file.Published()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestPublishedIsReadBack(t *testing.T) {
	t.Parallel()
	for _, name := range machines.Names() {
		text := published(t, name)
		want := load(t, name).WithSource(topology.SourceAgent)
		got, found, err := topology.ParsePublished("Rack 4, left.\r\n\r\n" + text + "Call the NOC first.")
		if diff := cmp.Diff(want, got); diff != "" || !found || err != nil {
			t.Errorf("%s: found %t, error %v (-want +got):\n%s", name, found, err, diff)
		}
		// The limits in the Proxmox schema: 64 KiB for notes, 8 KiB for a description.
		if most := 64 << 10; len(text) > most || (len(want.CPUs) <= 64 && len(text) > 8<<10) {
			t.Errorf("%s: %d bytes for %d CPUs", name, len(text), len(want.CPUs))
		}
	}
}

func TestPublishedByHandMayHaveLines(t *testing.T) {
	t.Parallel()
	data, err := machines.JSON("nuc-i7-1165g7-4c8t")
	if err != nil {
		t.Fatal(err)
	}
	m, found, err := topology.ParsePublished("<!-- numaform-topology\n" + string(data) + "-->\n")
	if !found || err != nil || !m.SiblingsKnown() || m.Sources[topology.FactSiblings] != topology.SourceAgent {
		t.Errorf("found %t, error %v, machine %+v", found, err, m)
	}
}

func TestPublishedCannotEndItsComment(t *testing.T) {
	t.Parallel()
	m := sound()
	file := topology.CollectedFile{Format: 1, Model: "x\n-->\n<script>", NUMANodes: m.NUMANodes, CPUs: m.CPUs}
	text, err := file.Published()
	if err != nil || strings.Count(string(text), "-->") != 1 || strings.Count(string(text), "\n") != 3 {
		t.Errorf("error %v, text %q", err, text)
	}
}

func TestParsePublishedRefuses(t *testing.T) {
	t.Parallel()
	block := published(t, "laptop-i5-m560-2c4t")
	for _, test := range []struct {
		name, notes, err string
		found            bool
	}{
		{name: "no notes"},
		{name: "unrelated notes", notes: "numaform-topology is nice\n--> see <!-- numaform-topology below"},
		{"twice", block + block, "duplicate line \"<!-- numaform-topology\": remove one", true},
		{"one within the other", "<!-- numaform-topology\n" + block, "duplicate line", true},
		{"cut off", block[:len(block)/2], `has no line "-->" after it: the text is incomplete; publish it again`, true},
		{"no JSON", "<!-- numaform-topology\nhello\n-->", "line 1: not JSON", true},
		{"an unknown key", "<!-- numaform-topology\n{\"format\": 1, \"affinity\": []}\n-->", "affinity: unknown key", true},
		{"a later format", strings.Replace(block, `"format":1`, `"format":2`, 1), "it has format 2, but this numaform reads only format 1", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m, found, err := topology.ParsePublished(test.notes)
			checkError(t, err, test.err)
			if found != test.found || len(m.CPUs) != 0 {
				t.Errorf("found %t, machine %+v", found, m)
			}
		})
	}
}

func FuzzParsePublished(f *testing.F) {
	f.Add(published(f, "laptop-i5-m560-2c4t"))
	f.Add("notes\n<!-- numaform-topology\n{}\n-->\n")
	f.Fuzz(func(t *testing.T, notes string) {
		m, found, err := topology.ParsePublished(notes)
		if err != nil || !found {
			return
		}
		text, err := topology.CollectedFile{Format: 1, Model: m.Model, Arch: m.Arch, MemoryMiB: m.MemoryMiB, NUMANodes: m.NUMANodes, CPUs: m.CPUs}.Published()
		if err != nil {
			t.Fatal(err)
		}
		again, _, err := topology.ParsePublished(string(text))
		if diff := cmp.Diff(m, again); err != nil || diff != "" {
			t.Fatalf("%q prints as %q, error %v:\n%s", notes, text, err, diff)
		}
	})
}

func TestConfidence(t *testing.T) {
	t.Parallel()
	exact := load(t, "xeon-4108-2s-smt")
	holes := load(t, "xeon-e5-2680v3-offline-cpu0")
	counts := topology.FromCounts("", 2, 16, 32, 1000)
	report := asReport(exact)
	for _, test := range []struct {
		name    string
		machine topology.Machine
		want    topology.Confidence
		missing []topology.Fact
	}{
		{"all", exact, topology.ConfidenceExact, nil},
		{"CPUs on no node", holes, topology.ConfidencePartial, []topology.Fact{topology.FactNUMA}},
		{"report", report, topology.ConfidencePartial, []topology.Fact{topology.FactSiblings, topology.FactCaches, topology.FactMemory}},
		{"counts", counts, topology.ConfidenceCounts, []topology.Fact{topology.FactSiblings, topology.FactCaches, topology.FactNUMA, topology.FactMemory}},
		{"nothing", topology.Machine{}, topology.ConfidenceNone, []topology.Fact{topology.FactCPUs, topology.FactSiblings, topology.FactCaches, topology.FactNUMA, topology.FactMemory}},
	} {
		if got := test.machine.Confidence(); got != test.want {
			t.Errorf("%s: confidence %q, want %q", test.name, got, test.want)
		}
		if diff := cmp.Diff(test.missing, test.machine.Missing()); diff != "" {
			t.Errorf("%s: missing (-want +got):\n%s", test.name, diff)
		}
	}
}

// TestPublishIn checks that the rest of the notes is unchanged.
func TestPublishIn(t *testing.T) {
	t.Parallel()
	file, err := topology.ParseCollectedFile([]byte(`{"format":1,"numa_nodes":[{"id":0,"memory_mib":1}],"cpus":[{"id":0,"online":true,"numa_node":0,"socket":0,"core":0,"l3":0}]}`))
	if err != nil {
		t.Fatal(err)
	}
	block, err := file.Published()
	if err != nil {
		t.Fatal(err)
	}
	for notes, want := range map[string]string{
		"":            string(block),
		"rack 3":      "rack 3\n" + string(block),
		"rack 3\n":    "rack 3\n" + string(block),
		string(block): string(block),
		"a\n<!-- numaform-topology\n{}\n-->\nb\n": "a\n" + string(block) + "b\n",
	} {
		if got, err := file.PublishIn(notes); err != nil || got != want {
			t.Errorf("PublishIn(%q) = %q, %v, want %q", notes, got, err, want)
		}
	}
	for _, notes := range []string{"<!-- numaform-topology\n{}", string(block) + string(block)} {
		if _, err := file.PublishIn(notes); err == nil {
			t.Errorf("PublishIn(%q) succeeded", notes)
		}
	}
}
