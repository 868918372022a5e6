package topology_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/topology"
)

// agentAt is the time at which the tests' agents published.
var agentAt = time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)

func agent() topology.Agent {
	return topology.Agent{
		Version: "1.2.3", At: agentAt, Isolation: "enforce", Clusters: []string{"prod"}, MaxPinnedPercent: 90,
		ReservedCPUs: topology.CPUs(0, 24), Pinned: map[int]topology.Pins{2001: {4, 36, 5, 37}},
		Refused: map[int]string{2002: "overlap"},
	}
}

const agentLine = `{"format":1,"version":"1.2.3","at":"2026-11-22T03:00:00Z","isolation":"enforce","clusters":["prod"],` +
	`"max_pinned_percent":90,"reserved_cpus":"0,24","problem":"","pinned":{"2001":"4,36,5,37"},"refused":{"2002":"overlap"}}`

func agentNotes(line string) string { return "<!-- numaform-agent\n" + line + "\n-->\n" }

func TestParseAgent(t *testing.T) {
	t.Parallel()
	notes := "Rack 4, left.\r\n" + published(t, "laptop-i5-m560-2c4t") + agentNotes(agentLine) + "Call the NOC first."
	got, found, err := topology.ParseAgent(notes)
	if diff := cmp.Diff(agent(), got); diff != "" || !found || err != nil {
		t.Errorf("found %t, error %v (-want +got):\n%s", found, err, diff)
	}
	if m, found, err := topology.ParsePublished(notes); !found || err != nil || len(m.CPUs) == 0 {
		t.Errorf("the topology in the same notes: found %t, error %v", found, err)
	}
}

func TestParseAgentRefuses(t *testing.T) {
	t.Parallel()
	with := func(old, text string) string { return agentNotes(strings.Replace(agentLine, old, text, 1)) }
	many := strings.Repeat(`"prod",`, 256)
	for _, test := range []struct {
		name, notes, err string
		found            bool
	}{
		{name: "no notes"},
		{name: "a topology alone", notes: published(t, "laptop-i5-m560-2c4t")},
		{"twice", agentNotes(agentLine) + agentNotes(agentLine), "duplicate line \"<!-- numaform-agent\": remove one", true},
		{"cut off", agentNotes(agentLine)[:60], `has no line "-->" after it: the text is incomplete; publish it again`, true},
		{"no JSON", agentNotes("hello"), "line 1: not JSON", true},
		{"an unknown key", with(`"version"`, `"affinity":"0","version"`), "affinity: unknown key", true},
		{"a key twice", with(`"version"`, `"isolation":"off","version"`), "isolation: duplicate key", true},
		{"null", with(`["prod"]`, "null"), "clusters: must be", true},
		{"a later format", with(`"format":1`, `"format":2`), "it has format 2, but", true},
		{"no format", with(`"format":1,`, ""), "it has format 0, but", true},
		{"no version", with("1.2.3", ""), "version is \"\"", true},
		{"a terminal's escape", with("1.2.3", `1\u001b[2J`), "version is", true},
		{"lines in the problem", with(`"problem":""`, `"problem":"a\nb"`), "problem is", true},
		{"a long problem", with(`"problem":""`, `"problem":"`+strings.Repeat("x", 1025)+`"`), "problem is", true},
		{"no time", with("2026-11-22T03:00:00Z", "yesterday"), "at: ", true},
		{"an impossible time", with("2026", "0001"), "at is", true},
		{"another isolation", with("enforce", "perhaps"), `isolation is "perhaps": must be off, report or enforce`, true},
		{"no ceiling", with("90", "0"), "max_pinned_percent is 0", true},
		{"an invalid cluster id", with(`"prod"`, `"prod\u0020"`), "clusters names", true},
		{"many clusters", with(`"prod"`, many+`"prod"`), "clusters has 257 entries", true},
		{"no VMID", with("2001", "0"), "pinned maps guest 0", true},
		{"a VMID in words", with("2001", "web"), "must be a number", true},
		{"no pins", with("4,36,5,37", ""), "parsing pins", true},
		{"a CPU twice", with("4,36,5,37", "4,4"), "parsing pins", true},
		{"two spellings", with("4,36,5,37", "04"), "parsing pins", true},
		{"a CPU too large", with("4,36,5,37", "65536"), "parsing pins", true},
		{"a reason in prose", with(`"overlap"`, `"it overlaps"`), "refused maps guest 2002", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, found, err := topology.ParseAgent(test.notes)
			checkError(t, err, test.err)
			if found != test.found || got.Version != "" {
				t.Errorf("found %t, agent %+v", found, got)
			}
		})
	}
}

func TestAgentPublishIn(t *testing.T) {
	t.Parallel()
	block := agentNotes(strings.Replace(agentLine, `"problem":"",`, "", 1))
	topo := published(t, "laptop-i5-m560-2c4t")
	for notes, want := range map[string]string{
		"":                                   block,
		"rack 3":                             "rack 3\n" + block,
		topo:                                 topo + block,
		"a\n" + agentNotes("{}") + "b\n":     "a\n" + block + "b\n",
		agentNotes(agentLine) + topo + "end": block + topo + "end",
	} {
		if got, err := agent().PublishIn(notes); err != nil || got != want {
			t.Errorf("PublishIn(%q) = %q, %v, want %q", notes, got, err, want)
		}
	}
	// The published topology is added to the notes, and does not replace the agent's block.
	file, err := topology.ParseCollectedFile([]byte(`{"format":1,"numa_nodes":[{"id":0,"memory_mib":1}],"cpus":[{"id":0,"online":true,"numa_node":0,"socket":0,"core":0,"l3":0}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := file.PublishIn(block); err != nil || !strings.HasPrefix(got, block+"<!-- numaform-topology\n") {
		t.Errorf("PublishIn = %q, %v", got, err)
	}
	wrong := agent()
	wrong.Problem = "two\nlines"
	if _, err := wrong.PublishIn(""); err == nil {
		t.Error("published invalid data")
	}
	if _, err := agent().PublishIn(block + block); err == nil {
		t.Error("published into notes with two sections")
	}
}

func TestAgentCannotEndItsComment(t *testing.T) {
	t.Parallel()
	a := agent()
	a.Problem = "--> <script>"
	text, err := a.PublishIn("")
	if err != nil || strings.Count(text, "-->") != 1 || strings.Count(text, "\n") != 3 {
		t.Errorf("error %v, text %q", err, text)
	}
}

func FuzzParseAgent(f *testing.F) {
	f.Add(agentNotes(agentLine))
	f.Add("notes\n<!-- numaform-agent\n{}\n-->\n")
	f.Add(agentNotes(strings.Replace(agentLine, "03:00:00Z", "03:00:00.5+05:30", 1)))
	f.Fuzz(func(t *testing.T, notes string) {
		a, found, err := topology.ParseAgent(notes)
		if err != nil || !found {
			return
		}
		text, err := a.PublishIn(notes)
		if err != nil {
			t.Fatal(err)
		}
		again, _, err := topology.ParseAgent(text)
		if err != nil || fmt.Sprintf("%+v", a) != fmt.Sprintf("%+v", again) {
			t.Fatalf("%q prints as %q, error %v:\n%s", notes, text, err, cmp.Diff(a, again))
		}
		if _, _, err := topology.ParseAgent(text + text); err == nil {
			t.Fatal("two sections were accepted")
		}
	})
}

func TestSnapshotKeepsTheAgent(t *testing.T) {
	t.Parallel()
	a := agent()
	snapshot := topology.Snapshot{
		Regions: []topology.Region{{Name: "fra", Quorate: true}},
		Hosts:   []topology.Host{{Region: "fra", Name: "pve1", Online: true, Agent: &a, ReadAt: agentAt.Add(time.Minute), Contradicted: "CPUs"}},
	}
	text, err := snapshot.Print()
	if err != nil {
		t.Fatal(err)
	}
	got, err := topology.ParseSnapshot(text)
	if diff := cmp.Diff(&snapshot, got); err != nil || diff != "" {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	for _, change := range [][2]string{{"enforce", "maybe"}, {"read_at", "read_on"}, {`"read_at": "2026-11-22T03:01:00Z",`, ""}} {
		if _, err := topology.ParseSnapshot([]byte(strings.Replace(string(text), change[0], change[1], 1))); err == nil {
			t.Errorf("a snapshot with %q for %q was accepted", change[1], change[0])
		}
	}
}
