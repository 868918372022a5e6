package topology_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/topology"
)

func TestParseCollectedLeavesMissingFactsUnknown(t *testing.T) {
	t.Parallel()
	got, err := topology.ParseCollected([]byte(`{"format": 1, "numa_nodes": [{"id": 0}], "cpus": [
		{"id": 1, "numa_node": 0}, {"id": 0, "online": false}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := topology.Machine{
		NUMANodes: []topology.NUMANode{{ID: 0, MemoryMiB: topology.Unknown}},
		CPUs: []topology.CPU{
			{ID: 0, NUMANode: topology.Unknown, Socket: topology.Unknown, Core: topology.Unknown, L3: topology.Unknown},
			{ID: 1, Online: true, NUMANode: 0, Socket: topology.Unknown, Core: topology.Unknown, L3: topology.Unknown},
		},
		Sources: map[topology.Fact]topology.Source{
			topology.FactCPUs: topology.SourceCollected, topology.FactNUMA: topology.SourceCollected,
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("machine (-want +got):\n%s", diff)
	}
}

func TestParseCollectedRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, text, err string }{
		{"nothing", ``, "line 1: not JSON: unexpected end of text"},
		{"half a file", "{\n\"format\": 1,\n\"cpus\": [", "line 3: not JSON"},
		{"a stray word", "{\n\"format\": one}", "line 2: not JSON"},
		{"two values", "{}\n{}", "line 2: unexpected data after the JSON value"},
		{"a list", `[]`, "line 1: the file: must be an object, not an array"},
		{"no format", `{"numa_nodes": [], "cpus": []}`, "it has format 0, but this numaform reads only format 1"},
		{"a later format", `{"format": 2, "numa_nodes": [], "cpus": []}`, "it has format 2, but this numaform reads only format 1"},
		{"no CPUs", `{"format": 1, "numa_nodes": [], "cpus": []}`, "cpus is empty"},
		{"an unknown key", "{\"format\": 1,\n\"cpu\": []}", "line 2: cpu: unknown key: must be one of arch, cpus, format,"},
		{"an unknown inner key", "{\"format\": 1, \"cpus\": [\n{\"id\": 0},\n{\"id\": 1, \"cor\": 0}]}", "line 3: cpus[1].cor: unknown key"},
		{"another case", `{"Format": 1}`, "line 1: Format: unknown key"},
		{"a key twice", "{\"format\": 1,\n\"format\": 1}", "line 2: format: duplicate key"},
		{"null", `{"format": 1, "cpus": null}`, "cpus: must be an array, not null"},
		{"a text for a number", `{"format": "1"}`, "format: must be a number, not a string"},
		{"a fraction", `{"format": 1.5}`, `format: "1.5": must be a whole number`},
		{"too large a number", `{"format": 99999999999999999999}`, "must be a whole number"},
		{"a key that is no number", `{"format": 1, "numa_nodes": [{"id": 0, "distances": {"x": 10}}]}`, `numa_nodes[0].distances.x: key "x" must be a number`},
		{"depth", strings.Repeat("[", 1000), "nested at most 16 levels deep"},
		{"a fault of the machine", `{"format": 1, "numa_nodes": [{"id": 0}], "cpus": [{"id": 0}, {"id": 0}]}`, "cpu 0 is listed twice"},
		{"a CPU without id", `{"format": 1, "numa_nodes": [{"id": 0}], "cpus": [{}]}`, "cpu -1: must be an ID from 0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := topology.ParseCollected([]byte(test.text))
			checkError(t, err, test.err)
		})
	}
}

func TestParseCollectedLimitsFaults(t *testing.T) {
	t.Parallel()
	text := `{"format": 1, "cpus": [` + strings.Repeat(`{"x": 0},`, 999) + `{}]}`
	_, err := topology.ParseCollected([]byte(text))
	if err == nil || strings.Count(err.Error(), "\n") > 20 {
		t.Errorf("got %d lines of faults", strings.Count(err.Error(), "\n"))
	}
}

func FuzzParseCollected(f *testing.F) {
	f.Add([]byte(`{"format": 1, "numa_nodes": [{"id": 0, "memory_mib": 1, "distances": {"0": 10}}], "cpus": [{"id": 0, "numa_node": 0, "kind": "efficiency"}]}`))
	f.Add([]byte(`{"format": 1, "title": "a\u0000<b>", "numa_nodes": [], "cpus": []}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := topology.ParseCollectedFile(data)
		if err != nil {
			return
		}
		text, err := file.Print()
		if err != nil {
			t.Fatal(err)
		}
		again, err := topology.ParseCollectedFile(text)
		if diff := cmp.Diff(file, again); err != nil || diff != "" {
			t.Fatalf("%s prints as %s, error %v:\n%s", data, text, err, diff)
		}
	})
}
