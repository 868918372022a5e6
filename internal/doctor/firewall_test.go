package doctor_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/doctor"
	"github.com/numaform/numaform/internal/pvesim"
)

// grouped adds a security group to the class, and enables the Proxmox firewall.
func grouped(p *patient) {
	p.Classes[0].Spec.SecurityGroups = []string{"k8s"}
	p.sim.Firewall = true
}

// broken makes requests for a path fail.
func broken(path string) func(*patient) {
	return func(p *patient) {
		p.ready = func(s *pvesim.Server) { s.AddFault(pvesim.Fault{Path: path, Status: 500, Reason: "broken"}) }
	}
}

// send sends the simulated Proxmox a request that numaform never sends.
func send(t *testing.T, s *pvesim.Server, method, path string, params url.Values) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, s.URL()+"/api2/json"+path, strings.NewReader(params.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Authorization", "PVEAPIToken="+pvesim.DefaultToken+"="+pvesim.DefaultTokenSecret)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(s.CertPEM())
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s", method, path, response.Status)
	}
}

func TestFirewall(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*patient)
		// options and rules belong to the template's firewall on pve-1.
		options, rules url.Values
		status         doctor.Status
		want           []string
	}{
		{
			"datacenter off", func(p *patient) { p.sim.Firewall = false }, nil, nil,
			doctor.Warn,
			[]string{"homelab: the firewall of the datacenter is off", "Datacenter > Firewall"},
		},
		{"datacenter on", nil, nil, nil, doctor.OK, []string{"homelab: the firewall of the datacenter is on"}},
		{"template off", nil, nil, nil, doctor.Warn, []string{
			"class workers on homelab/pve-1: template debian-13-k8s (VMID 9001) has a disabled firewall", "pvesh set /nodes/pve-1/qemu/9001/firewall/options --enable 1",
		}},
		{"device off", func(p *patient) { p.Classes[0].Spec.Networks = nil }, url.Values{"enable": {"1"}}, nil, doctor.Warn, []string{
			"(VMID 9001) has no network device", "qm set 9001 --net0",
		}},
		{"all on", nil, url.Values{"enable": {"1"}}, nil, doctor.OK, []string{"class workers on homelab/pve-1: template debian-13-k8s (VMID 9001) has an enabled firewall"}},
		{"device of the template on", func(p *patient) {
			p.Classes[0].Spec.Networks = nil
			p.sim.Hosts[0].Templates[0].Options["net0"] = "virtio,bridge=vmbr0,firewall=1"
		}, url.Values{"enable": {"1"}}, nil, doctor.OK, []string{"pve-1: template debian-13-k8s (VMID 9001) has an enabled firewall"}},
		{
			"rules", nil,
			url.Values{"enable": {"1"}},
			url.Values{"type": {"in"}, "action": {"ACCEPT"}},
			doctor.Warn,
			[]string{"has 1 firewall rule, so", "pvesh delete /nodes/pve-1/qemu/9001/firewall/rules/0"},
		},
		{"datacenter unread", broken("^/cluster/firewall"), nil, nil, doctor.Fail, []string{"homelab: checking the datacenter's firewall", "500 broken"}},
		{"template unread", broken("9001/firewall/rules$"), nil, nil, doctor.Fail, []string{"on homelab/pve-1: checking the firewall of VM 9001", "500 broken"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			report := examine(t, func(p *patient) {
				grouped(p)
				p.Classes[0].Spec.Networks = []v1alpha1.Network{{Bridge: "vmbr0", Firewall: true}}
				if test.change != nil {
					test.change(p)
				}
				ready := p.ready
				p.ready = func(s *pvesim.Server) {
					ready(s)
					if test.options != nil {
						send(t, s, http.MethodPut, "/nodes/pve-1/qemu/9001/firewall/options", test.options)
					}
					if test.rules != nil {
						send(t, s, http.MethodPost, "/nodes/pve-1/qemu/9001/firewall/rules", test.rules)
					}
				}
			})
			wants(t, report, test.status, "firewall", test.want...)
		})
	}
	for _, finding := range examine(t, func(*patient) {}) {
		if finding.Check == "firewall" || strings.Contains(finding.What, "firewall") {
			t.Errorf("a class without security groups has %s", finding.Line())
		}
	}
}
