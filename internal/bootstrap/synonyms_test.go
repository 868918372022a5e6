package bootstrap_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/bootstrap"
)

// TestTemplatesOfKPP checks that templates with the functions, orders of arguments and values
// of karpenter-provider-proxmox v0.12.0 render, and mean the same
// (pkg/providers/instance/cloudinit/functions.go and types.go, and types.go above them).
func TestTemplatesOfKPP(t *testing.T) {
	t.Parallel()
	values := someValues(t)
	values.Values = map[string]any{"Keys": "ssh-a,ssh-b", "One": "ssh-a", "Endpoint": "https://10.0.0.1:6443"}
	values.Kubernetes.BootstrapToken = "abcdef.0123456789abcdef"
	values.Resources.HugePages2Mi = 512
	values.Network = bootstrap.Network{
		DNSServers: []string{"1.1.1.1"}, SearchDomains: []string{"example.org"},
		Interfaces: []bootstrap.Interface{
			{Name: "eth0", MAC: "BC:24:11:00:00:01", Addresses: []string{"192.0.2.7/24", "2001:db8::7/64"}, Gateway4: "192.0.2.1", Gateway6: "2001:db8::1", MTU: 1400},
			{Name: "eth1", MAC: "BC:24:11:00:00:02", DHCP4: true, DHCP6: true},
			{Name: "eth2", MAC: "BC:24:11:00:00:03", DHCP4: true},
		},
	}
	for name, c := range map[string]struct{ document, template, want string }{
		"a separator after the text":  {"user-data", `{{ split .Values.Keys "," }} {{ with get .Values "One" }}{{ split . "," | len }}{{ end }} {{ range (split .Values.Keys ",") }}[{{ . }}]{{ end }}`, "[ssh-a ssh-b] 1 [ssh-a][ssh-b]"},
		"a separator before the text": {"user-data", `{{ .Values.Keys | split "," }} {{ split "," .Values.Keys }} {{ split "," "a,b" }}`, "[ssh-a ssh-b] [ssh-a ssh-b] [a b]"},
		"a list before the separator": {"user-data", `{{ join .Metadata.Tags "," }} {{ join (split .Values.Keys ",") "+" }}`, "blue,team-a ssh-a+ssh-b"},
		"pretty YAML":                 {"user-data", `{{ dict "a" (dict "b" 1) | toYamlPretty | nindent 2 }}`, "\n  a:\n    b: 1"},
		"metadata": {
			"user-data", `{{ with .Metadata }}{{ .Hostname }} {{ .InstanceID }} {{ .InstanceUUID }} {{ .InstanceType }} {{ .ProviderID }} {{ .Region }} {{ .Zone }} {{ .NodeClass }} {{ hasTag .Tags "blue" }}{{ end }}`,
			"workers-2001 2001 01234567-89ab-cdef-0123-456789abcdef c1.4VCPU-8GB proxmox://region-1/2001 region-1 pve-1 default true",
		},
		"resources":  {"user-data", `{{ .Resources.CPU }} {{ .Resources.Memory }} {{ .Resources.Hugepages2Mi }} {{ with .Resources.Hugepages1Gi }}no{{ end }}`, "4 8589934592 512 "},
		"kubernetes": {"user-data", `{{ .Kubernetes.Version }} {{ .Kubernetes.BootstrapToken }} {{ eq (.Kubernetes.RootCA | b64enc | b64dec) .Kubernetes.RootCA }}`, "v1.36.3 abcdef.0123456789abcdef true"},
		"settings of kubelet": {
			"user-data", `{{ .Kubernetes.KubeletSettings | toYamlPretty }}`,
			"clusterDNS:\n  - 10.96.0.10\nevictionHard:\n  memory.available: 100Mi\n  nodefs.available: 10%\nkubeReserved:\n  cpu: 80m\n  memory: 512Mi\n" +
				"providerID: proxmox://region-1/2001\nregisterWithTaints:\n  - effect: NoExecute\n    key: karpenter.sh/unregistered\n" +
				"  - effect: NoSchedule\n    key: team\n    value: a\n  - effect: NoExecute\n    key: cni\nsystemReserved:\n  memory: 100Mi",
		},
		"metadata without a prefix": {"meta-data", "instance-id: {{ .InstanceID }}\nhost: {{ .Hostname }} {{ .ProviderID }} {{ .Zone }} {{ .InstanceType }}\n", "instance-id: 2001\nhost: workers-2001 proxmox://region-1/2001 pve-1 c1.4VCPU-8GB\n"},
		"interfaces without a prefix": {
			"network-config", "version: 2\nethernets:\n{{- range $card := .Interfaces }}\n  {{ $card.Name }}: {match: {macaddress: {{ $card.MacAddr | lower | quote }}}, dhcp4: {{ $card.DHCPv4 }}, dhcp6: {{ $card.DHCPv6 }}" +
				"{{ if ne $card.MTU 0 }}, mtu: {{ $card.MTU }}{{ end }}, a: {{ toJson $card.Address4 }}, b: {{ toJson $card.Address6 }}, c: [{{ $card.Gateway4 }}], d: ['{{ $card.Gateway6 }}']" +
				"{{ if and $card.SLAAC $card.NodeAddress6 }}, e: {{ $card.NodeAddress6 | cidrslaac $card.MacAddr }}{{ end }}, f: {{ $card.SLAAC }}, g: '{{ $card.NodeAddress4 }}{{ $card.NodeGateway4 }}{{ $card.NodeGateway6 }}'}\n{{- end }}\n" +
				"x: [{{ join .NameServers \",\" }}, {{ join $.SearchDomains \",\" }}, {{ join .Network.NameServers \",\" }}]\n",
			"version: 2\nethernets:\n" +
				"  eth0: {match: {macaddress: \"bc:24:11:00:00:01\"}, dhcp4: false, dhcp6: false, mtu: 1400, a: [\"192.0.2.7/24\"], b: [\"2001:db8::7/64\"], c: [192.0.2.1], d: ['2001:db8::1'], f: false, g: ''}\n" +
				"  eth1: {match: {macaddress: \"bc:24:11:00:00:02\"}, dhcp4: true, dhcp6: true, a: null, b: null, c: [], d: [''], f: false, g: ''}\n" +
				"  eth2: {match: {macaddress: \"bc:24:11:00:00:03\"}, dhcp4: true, dhcp6: false, a: null, b: null, c: [], d: [''], f: true, g: ''}\n" +
				"x: [1.1.1.1, example.org, 1.1.1.1]\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefix := ""
			if c.document == "user-data" {
				prefix = "#!\n"
			}
			templates := bootstrap.Defaults()
			templates[c.document] = prefix + c.template
			got := string(render(t, templates, values)[c.document])
			if diff := cmp.Diff(prefix+c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestAllValuesHaveTheNamesOfKPP checks the keys with which a template writes all values to a
// file.
func TestAllValuesHaveTheNamesOfKPP(t *testing.T) {
	t.Parallel()
	values := someValues(t)
	values.Values = map[string]any{"Key": "value"}
	got := render(t, withUserData("#cloud-config\n{{ toYamlPretty . }}\n"), values)[bootstrap.UserData]
	for _, line := range []string{"metadata:\n  hostname: workers-2001\n  instanceid: \"2001\"\n", "  providerid: proxmox://region-1/2001\n", "kubernetes:\n", "  kubeletconfiguration:\n", "values:\n  Key: value\n"} {
		if !strings.Contains(string(got), line) {
			t.Errorf("%q is not in\n%s", line, got)
		}
	}
}

// TestIgnition checks that user-data can be an Ignition config, and that formats that look
// like one but that no guest reads are refused.
func TestIgnition(t *testing.T) {
	t.Parallel()
	const config = `{"ignition": {"version": "3.4.0"}, "storage": {"files": [{"path": "/etc/hostname", "contents": {"source": "data:,{{ .Metadata.Hostname }}"}}]}}`
	got := render(t, withUserData(config), someValues(t))[bootstrap.UserData]
	if want := strings.ReplaceAll(config, "{{ .Metadata.Hostname }}", "workers-2001"); string(got) != want {
		t.Errorf("user-data is %s", got)
	}
	for text, want := range map[string]string{
		"ignition: {version: 3.4.0}\n":                      "Ignition reads only JSON",
		"\ufeff{\"ignition\": {\"version\": \"3.4.0\"}}":    "Ignition reads only JSON",
		"variant: flatcar\nversion: 1.1.0\n":                "this is a Butane config, which no guest reads: translate it",
		"variant: fcos\nversion: 1.5.0\nignition: {a: b}\n": "Ignition reads only JSON",
		"{\"storage\": {}}":                                 "unknown format",
	} {
		_, err := bootstrap.Render(withUserData(text), someValues(t))
		var document *bootstrap.DocumentError
		if !errors.As(err, &document) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
