package machines_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/topology"
	"github.com/numaform/numaform/topology/machines"
)

// counts are the numbers of a machine's parts; CPUs includes offline CPUs.
type counts struct {
	CPUs, Online, Cores, Sockets, NUMANodes, L3, Groups int
	MemoryMiB                                           int64
}

func TestLoad(t *testing.T) {
	t.Parallel()
	want := map[string]counts{
		"epyc-7451-2s-8node":          {96, 96, 48, 2, 8, 16, 16, 0},
		"epyc-7763-2s-nps1-assumed":   {128, 128, 128, 2, 2, 16, 16, 0},
		"hybrid-i7-1370p-6p8e":        {20, 20, 14, 1, 1, 1, 2, 31728},
		"kunpeng920-2s-4node":         {128, 128, 128, 2, 4, 4, 4, 514678},
		"laptop-i5-m560-2c4t":         {4, 4, 2, 1, 1, 1, 1, 0},
		"nuc-i7-1165g7-4c8t":          {8, 8, 4, 1, 1, 1, 1, 0},
		"opteron-48c-8node-sparse":    {48, 48, 48, 4, 8, 8, 8, 98301},
		"opteron-6276-4s-8node":       {64, 64, 32, 4, 8, 8, 8, 122856},
		"ryzen-ai-hx370-2ccx":         {24, 24, 12, 1, 1, 2, 2, 0},
		"xeon-4108-2s-smt":            {32, 32, 16, 2, 2, 2, 2, 95161},
		"xeon-6230-2s-snc2":           {80, 80, 40, 2, 4, 2, 4, 1522444},
		"xeon-e5-2680v3-offline-cpu0": {24, 17, 17, 2, 1, 2, 2, 65536},
		"xeon-e7-4870-4s-pci":         {40, 40, 40, 4, 4, 4, 4, 524274},
		"xeon-x7460-16s-4node":        {96, 96, 96, 16, 4, 16, 16, 516087},
	}
	got := map[string]counts{}
	for _, name := range machines.Names() {
		m, err := machines.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		got[name] = count(&m)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("machines (-want +got):\n%s", diff)
	}
}

func count(m *topology.Machine) counts {
	sockets, caches := map[int]bool{}, map[int]bool{}
	for _, cpu := range m.CPUs {
		if cpu.Online {
			sockets[cpu.Socket], caches[cpu.L3] = true, true
		}
	}
	return counts{
		CPUs: len(m.CPUs), Online: m.OnlineCPUs().Size(), Cores: len(m.Cores()), Sockets: len(sockets),
		NUMANodes: len(m.NUMANodes), L3: len(caches), Groups: len(m.Groups()), MemoryMiB: m.MemoryMiB,
	}
}

func TestFilesPrintAsTheyAre(t *testing.T) {
	t.Parallel()
	for _, name := range machines.Names() {
		data, err := machines.JSON(name)
		if err != nil {
			t.Fatal(err)
		}
		file, err := machines.File(name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := file.Print()
		if err != nil || !bytes.Equal(text, data) {
			t.Errorf("%s prints differently, error %v:\n%s", name, err, cmp.Diff(string(data), string(text)))
		}
		if file.Title == "" || file.Source == nil || file.Source.Repo == "" || file.Source.License == "" {
			t.Errorf("%s lacks a title or a source", name)
		}
	}
}

func TestMachinesSurviveCollected(t *testing.T) {
	t.Parallel()
	for _, name := range machines.Names() {
		want, err := machines.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := want.Collected()
		if err != nil {
			t.Fatal(err)
		}
		got, err := topology.ParseCollected(text)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: error %v, machine (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestUnknownMachine(t *testing.T) {
	t.Parallel()
	_, err := machines.Load("../secret")
	if err == nil || !strings.Contains(err.Error(), "must be one of epyc-7451-2s-8node, ") {
		t.Errorf("got error %v, want one that lists the machines", err)
	}
}
