package doctor_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/doctor"
	"github.com/numaform/numaform/internal/hostagent"
	"github.com/numaform/numaform/internal/pvesim"
	"github.com/numaform/numaform/internal/testenv"
	"github.com/numaform/numaform/topology"
)

// byHostAgent makes host agents pin the VMs of the class.
func byHostAgent(p *patient) {
	p.Classes[0].Spec.Placement = v1alpha1.Placement{Policy: v1alpha1.PlacementDedicated, PinWith: v1alpha1.PinWithHostAgent}
}

// agents adds an agent for these clusters to each host.
func agents(p *patient, clusters ...string) {
	p.sim = hostagent.On(p.sim, hostagent.Agent{Rules: claim.Rules{Clusters: clusters}, Isolation: "enforce", Version: "1.2.3"})
}

const pinnedKey = "0123456789abcdef0123456789abcdef"

// pinned adds VM 2001, which runs on pve-1. Its description contains the pins described,
// and its file in the fleet the pins filed.
func pinned(t *testing.T, p *patient, described string, filed ...int) {
	p.ready = func(s *pvesim.Server) {
		err := s.PutGuest(pvesim.Guest{VMID: 2001, Host: "pve-1", Running: true, Config: map[string]string{
			"name": "web-2001", "cores": "2", "memory": "1024", "description": "numaform/1 cluster=" + ourID + " key=" + pinnedKey + " pins=" + described,
		}})
		if err == nil {
			err = hostagent.Publish(s, "pve-1")
		}
		if err != nil {
			t.Error(err)
		}
	}
	vm := fleet.VM{Key: pinnedKey, VMID: 2001, Name: "web-2001", Spec: fleet.Spec{Policy: fleet.PolicyDedicated, PinWith: fleet.PinWithHostAgent}}
	vm.Host, vm.VCPUPins = topology.HostID{Region: testenv.Region, Host: "pve-1"}, filed
	p.Fleet = func(context.Context) (fleet.Fleet, error) { return fleet.Fleet{VMs: []fleet.VM{vm}}, nil }
}

func TestHostAgents(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*patient)
		status doctor.Status
		check  string
		want   []string
	}{
		{"not required", func(*patient) {}, doctor.OK, "agent", []string{"pve-2: has no numaform-agent that publishes its state; no ProxmoxNodeClass uses it on this host"}},
		{"all live", func(p *patient) { byHostAgent(p); agents(p, ourID) }, doctor.OK, "agent", []string{"pve-1: numaform-agent 1.2.3 is running: isolation enforce, last report ", " ago"}},
		{"nowhere", byHostAgent, doctor.Fail, "agent", []string{"homelab/pve-1: has no numaform-agent that publishes its state: install or upgrade numaform-agent on the host"}},
		{"one is dead", func(p *patient) {
			byHostAgent(p)
			agents(p, ourID)
			p.ready = func(s *pvesim.Server) {
				if err := hostagent.Stop(s, "pve-2", 3*time.Hour); err != nil {
					t.Error(err)
				}
			}
		}, doctor.Warn, "agent", []string{"homelab/pve-2: has a numaform-agent that has published nothing for 3h", "systemctl status numaform-agent"}},
		{"for another cluster", func(p *patient) { byHostAgent(p); agents(p, "prod") }, doctor.Fail, "agent", []string{"pins VMs of clusterID prod, not of clusterID test: add test to clusters"}},
		{"pinned as declared", func(p *patient) { agents(p, ourID); pinned(t, p, "2,3", 2, 3) }, doctor.OK, "pin", []string{"pve-1: the host agent pins 1 of 1 VM as declared"}},
		{"pinned otherwise", func(p *patient) { agents(p, ourID); pinned(t, p, "2,3", 3, 2) }, doctor.Warn, "pin", []string{"VM 2001 (web-2001) declares CPUs 3,2 in its file, but the agent reports 2,3: wait five minutes for the next report, then run numaform drift"}},
		{"refused", func(p *patient) { agents(p, ourID); pinned(t, p, "2,3,4", 2, 3, 4) }, doctor.Warn, "agent", []string{"refuses to pin VM 2001 web-2001 as declared: the number of its running vCPUs is unknown or differs from the number of pins (vcpus_differ): replace the VM"}},
		{"dead under VMs that run", func(p *patient) {
			pinned(t, p, "2,3", 2, 3)
			p.ready = func(*pvesim.Server) {}
			p.sim.Hosts[0].Guests = []topology.Guest{{VMID: 2001, Name: "web-2001", Kind: topology.GuestVM, Running: true, VCPUs: 2, MemoryMiB: 1024, ClusterID: ourID, Key: pinnedKey}}
		}, doctor.Warn, "agent", []string{"pve-1: has no numaform-agent that publishes its state: install"}},
		{"not said yet", func(p *patient) {
			pinned(t, p, "2,3", 2, 3)
			other := hostagent.Agent{Rules: claim.Rules{Clusters: []string{"prod"}}}
			p.sim = hostagent.Each(p.sim, map[topology.HostName]hostagent.Agent{"pve-1": {Rules: claim.Rules{Clusters: []string{ourID}}}, "pve-2": other})
			p.ready = func(*pvesim.Server) {}
			p.sim.Hosts[0].Guests = []topology.Guest{{VMID: 2001, Name: "web-2001", Kind: topology.GuestVM, Running: true, VCPUs: 2, MemoryMiB: 1024, ClusterID: ourID, Key: pinnedKey}}
		}, doctor.Warn, "pin", []string{"VM 2001 (web-2001) declares CPUs 2,3 in its file, but the agent does not report it as pinned: wait five minutes for the next report"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			wants(t, examine(t, test.change), test.status, test.check, test.want...)
		})
	}
}

// TestHostAgentsAreReportedOnce checks that a problem of a host is reported once, not once for
// each class.
func TestHostAgentsAreReportedOnce(t *testing.T) {
	t.Parallel()
	report := examine(t, func(p *patient) {
		byHostAgent(p)
		more := p.Classes[0]
		more.Name = "more"
		p.Classes = append(p.Classes, more)
	})
	found := 0
	for _, finding := range report {
		if strings.Contains(finding.What, "numaform-agent that publishes") {
			found++
		}
	}
	if found != 2 {
		t.Errorf("%d findings for 2 hosts: %+v", found, report)
	}
}
