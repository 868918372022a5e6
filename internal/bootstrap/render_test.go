package bootstrap_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"github.com/numaform/numaform/internal/bootstrap"
)

// readDoc returns the documentation page about values and functions.
func readDoc() (string, error) {
	content, err := os.ReadFile(filepath.Join("..", "..", "docs", "join.md"))
	return string(content), err
}

// large is the start of a template whose $x has 64 KiB.
const large = "#!\n{{ $x := \"abcdefgh\" }}{{ range 13 }}{{ $x = printf \"%s%s\" $x $x }}{{ end }}"

// TestRefuses checks the messages about errors in templates and in their results.
func TestRefuses(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		document, text, want string
	}{
		"no template":         {"user-data", "#cloud-config\n{{ if }}", "user-data, line 2 of the template: missing value for if"},
		"unknown function":    {"user-data", "#cloud-config\n\n{{ env \"HOME\" }}", `user-data, line 3 of the template: function "env" not defined`},
		"unknown value":       {"user-data", "#!\n{{ .Metadata.Name }}", "user-data, line 2 of the template: <.Metadata.Name>: field Name does not exist"},
		"missing key":         {"user-data", "#!\n{{ .Values.Token }}", `key "Token" does not exist: add it to the Secret of valuesRef`},
		"missing reserve":     {"user-data", "#!\n{{ .Kubernetes.KubeletConfiguration.maxPods }}", `key "maxPods" does not exist`},
		"no header":           {"user-data", "write_files: []\n", "user-data, line 1 of the result: unknown format: begin cloud-init data with #cloud-config"},
		"no YAML":             {"user-data", "#cloud-config\na: [\nb: geheim\n", "of the result: invalid YAML"},
		"broken indentation":  {"user-data", "#cloud-config\na:\n  b: 1\n c: geheim\n", "of the result: invalid YAML: did not find expected"},
		"list":                {"user-data", "#cloud-config\n- geheim\n", "user-data, line 2 of the result: must be a YAML object"},
		"empty":               {"user-data", "", "user-data: must not be empty"},
		"header only":         {"user-data", "#cloud-config\n", "user-data: must not be empty"},
		"key twice":           {"user-data", "#cloud-config\nruncmd: []\nruncmd: [geheim]\n", "this object contains a duplicate key"},
		"inner key twice":     {"user-data", "#cloud-config\na:\n- b: 1\n  b: geheim\n", "line 3 of the result: this object contains a duplicate key"},
		"too long":            {"user-data", "#!\n" + strings.Repeat("x", 257<<10), "exceeds 262144 bytes"},
		"secret in a call":    {"user-data", "#!\n{{ b64dec \"geheim>: geheim\" }}", "user-data, line 2 of the template: <b64dec \"…\">: function b64dec: invalid arguments"},
		"endless":             {"user-data", "#!\n{{ define \"a\" }}x{{ template \"a\" }}{{ end }}{{ template \"a\" }}", "user-data: exceeds 10000 loop iterations and template calls"},
		"a long loop":         {"user-data", "#!\n{{ range 2000000000 }}{{ end }}", "user-data: exceeds 10000 loop iterations and template calls"},
		"loops in loops":      {"user-data", "#!\n{{ range 9999 }}{{ if true }}{{ range 9999 }}{{ end }}{{ end }}{{ end }}", "exceeds 10000 loop iterations"},
		"far in":              {"user-data", "#!\n{{ indent 2000000000 \"geheim\" }}", "function indent: invalid arguments"},
		"farther in":          {"user-data", "#!\n{{ \"geheim\" | nindent -1 }}", "function nindent: invalid arguments"},
		"doubling texts":      {"user-data", "#!\n{{ $x := \"ab\" }}{{ range 60 }}{{ $x = printf \"%s%s\" $x $x }}{{ end }}", "function printf: invalid arguments"},
		"doubling lists":      {"user-data", "#!\n{{ $x := list 1 }}{{ range 60 }}{{ $x = list $x $x }}{{ end }}{{ len (toJson $x) }}", "function list: invalid arguments"},
		"multiplied":          {"user-data", large + "{{ replace \"\" $x $x }}", "function replace: invalid arguments"},
		"multiplied matches":  {"user-data", large + "{{ regexReplaceAll \".\" $x $x }}", "exceeds its time limit here"},
		"multiplied groups":   {"user-data", large + "{{ regexReplaceAll \"(?s).*\" $x (replace \"a\" \"$0\" $x) }}", "function regexReplaceAll: invalid arguments"},
		"multiplied by joins": {"user-data", large + "{{ join $x (split \"\" $x) }}", "function join: invalid arguments"},
		"multiplied verbs":    {"user-data", large + "{{ printf (replace \"a\" \"%[1]s\" $x) $x }}", "function printf: invalid arguments"},
		"wide verbs":          {"user-data", large + "{{ printf (replace \"a\" \"%999999d\" $x) 1 }}", "function printf: invalid arguments"},
		"doubling templates":  {"user-data", "#!\n{{ define \"a\" }}{{ template \"a\" }}{{ template \"a\" }}{{ end }}{{ template \"a\" }}", "exceeds 10000 loop iterations"},
		"meta-data list":      {"meta-data", "[]", "meta-data, line 1 of the result: must be a YAML object"},
		"meta-data twice":     {"meta-data", "instance-id: a\n---\ninstance-id: b\n", "meta-data: contains several YAML documents"},
		"no instance-id":      {"meta-data", "local-hostname: geheim\n", "meta-data: instance-id is missing"},
		"empty instance-id":   {"meta-data", "instance-id: ''\n", "meta-data: instance-id is missing"},
		"network without":     {"network-config", "ethernets: {}\n", "network-config, line 1 of the result: version must be 1 or 2"},
		"network of tomorrow": {"network-config", "version: 3\n", "version must be 1 or 2"},
		"network inside":      {"network-config", "\nnetwork:\n  config: geheim\n", "line 3 of the result: version must be 1 or 2"},
		"vendor-data":         {"vendor-data", "geheim\n", "vendor-data, line 1 of the result: must be a YAML object"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			templates, err := bootstrap.TemplatesOf(map[string][]byte{c.document: []byte(c.text)})
			if err != nil {
				t.Fatal(err)
			}
			documents, err := bootstrap.Render(templates, someValues(t))
			var document *bootstrap.DocumentError
			if !errors.As(err, &document) || document.Document != c.document || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "geheim") {
				t.Errorf("the error repeats the document: %v", err)
			}
			if len(documents[bootstrap.UserData]) > 0 {
				t.Error("returns documents with the error")
			}
		})
	}
}

// TestAccepts checks that the formats that users may use in addition to cloud-config are
// accepted.
func TestAccepts(t *testing.T) {
	t.Parallel()
	for name, templates := range map[string]map[string]string{
		"script":         {"user-data": "#!/bin/sh\nexec join {{ .Kubernetes.BootstrapToken }}\n", "vendor-data": "#cloud-config\npackages: [vim]\n"},
		"jinja":          {"user-data": "## template: jinja\n#cloud-config\nhostname: {{ \"{{ v1.local_hostname }}\" }}\n"},
		"multipart":      {"user-data": "Content-Type: multipart/mixed; boundary=\"x\"\n\n--x--\n"},
		"talos":          {"user-data": "version: v1alpha1\nmachine: {type: worker}\n---\napiVersion: v1alpha1\nkind: HostnameConfig\n"},
		"byte order":     {"user-data": "\ufeff#cloud-config\r\nhostname: a\r\n"},
		"network 1":      {"network-config": "version: 1\nconfig: []\n"},
		"network inside": {"network-config": "network: {version: 2}\n"},
		"own meta-data":  {"meta-data": "instance-id: {{ .Metadata.InstanceID }}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			secret := map[string][]byte{}
			for key, text := range templates {
				secret[key] = []byte(text)
			}
			read, err := bootstrap.TemplatesOf(secret)
			if err != nil {
				t.Fatal(err)
			}
			documents := render(t, read, someValues(t))
			if _, given := templates["vendor-data"]; given != (len(documents) == 4) {
				t.Errorf("files %d", len(documents))
			}
		})
	}
}

func TestUnknownDocument(t *testing.T) {
	t.Parallel()
	_, err := bootstrap.TemplatesOf(map[string][]byte{"userdata": nil})
	var unknown *bootstrap.UnknownKeyError
	if !errors.As(err, &unknown) || unknown.Key != "userdata" {
		t.Errorf("got %v", err)
	}
}

// TestDocumentsHideThemselves checks that no format verb prints the content of documents.
func TestDocumentsHideThemselves(t *testing.T) {
	t.Parallel()
	documents := render(t, bootstrap.Defaults(), someValues(t))
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		for _, secret := range []any{documents, someValues(t)} {
			if text := fmt.Sprintf(verb, secret); strings.Contains(text, "abcdef") || len(text) > 40 {
				t.Errorf("%s prints %s", verb, text)
			}
		}
	}
}

func TestConfigureRefuses(t *testing.T) {
	t.Parallel()
	for name, kubelet := range map[string]bootstrap.Kubelet{
		"label with quote":  {Labels: map[string]string{"a": "b\" --evil=\"c"}},
		"label with comma":  {Labels: map[string]string{"a": "b c"}},
		"label key":         {Labels: map[string]string{"a\nb": "c"}},
		"taint effect":      {Taints: []bootstrap.Taint{{Key: "a", Effect: "Never"}}},
		"taint key":         {Taints: []bootstrap.Taint{{Key: "a b", Effect: "NoExecute"}}},
		"taint value":       {Taints: []bootstrap.Taint{{Key: "a", Value: "b:c", Effect: "NoExecute"}}},
		"taint without key": {Taints: []bootstrap.Taint{{Effect: "NoExecute"}}},
	} {
		values := bootstrap.ValuesOf(someVM())
		if err := values.Configure(kubelet); err == nil || !strings.Contains(err.Error(), "configuring kubelet of workers-2001") {
			t.Errorf("%s: %v", name, err)
		}
	}
	values := bootstrap.ValuesOf(someVM())
	values.Metadata.Hostname = `a" --evil="b`
	if err := values.Configure(bootstrap.Kubelet{}); err == nil {
		t.Error("a hostname ends the quotes")
	}
}

// TestLabels checks that Configure omits exactly the labels with which kubelet would not
// start, according to the list that kubelet uses.
func TestLabels(t *testing.T) {
	t.Parallel()
	values := bootstrap.ValuesOf(someVM())
	given, kept := map[string]string{}, map[string]any{}
	domains := []string{
		"kubernetes.io", "k8s.io", "beta.kubernetes.io", "node.kubernetes.io", "kubelet.kubernetes.io", "x.node.kubernetes.io", "xnode.kubernetes.io",
		"topology.kubernetes.io", "failure-domain.beta.kubernetes.io", "node-restriction.kubernetes.io", "x.k8s.io", "mykubernetes.io", "karpenter.sh",
	}
	for _, domain := range domains {
		for _, name := range []string{"os", "arch", "hostname", "zone", "region", "instance-type", "other"} {
			key := domain + "/" + name
			given[key] = "a"
			reserved := strings.HasSuffix("."+domain, ".kubernetes.io") || strings.HasSuffix("."+domain, ".k8s.io")
			if !reserved || kubeletapis.IsKubeletLabel(key) {
				kept[key] = "a"
			}
		}
	}
	given["app"], kept["app"] = "a", "a"
	if err := values.Configure(bootstrap.Kubelet{Labels: given}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(kept, values.Kubernetes.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if got := values.Kubernetes.Taints; len(got) != 1 || got[0].String() != "karpenter.sh/unregistered=:NoExecute" {
		t.Errorf("taints %v", got)
	}
}

func TestValuesOf(t *testing.T) {
	t.Parallel()
	want := bootstrap.Values{
		Metadata: bootstrap.Metadata{
			Hostname: "workers-2001", InstanceID: "2001", InstanceUUID: "01234567-89ab-cdef-0123-456789abcdef",
			InstanceType: "c1.4VCPU-8GB", ProviderID: "proxmox://region-1/2001", Region: "region-1", Zone: "pve-1",
			Tags: []string{"blue", "team-a"}, NodeClass: "default",
		},
		Resources: bootstrap.Resources{CPU: 4, MemoryMiB: 8192, DiskGiB: 40, NUMANodes: 1},
	}
	if diff := cmp.Diff(want, bootstrap.ValuesOf(someVM())); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
}

// TestStaticNetwork checks the network-config of a VM with two cards and static addresses.
func TestStaticNetwork(t *testing.T) {
	t.Parallel()
	values := someValues(t)
	values.Network = bootstrap.Network{
		DNSServers: []string{"10.0.0.2"}, SearchDomains: []string{"example.org"},
		Interfaces: []bootstrap.Interface{
			{Name: "eth0", Addresses: []string{"10.0.0.7/24", "fd00::7/64"}, Gateway4: "10.0.0.1", Gateway6: "fd00::1", MTU: 9000},
			{Name: "storage", MAC: "BC:24:11:00:00:01", DHCP6: true},
		},
	}
	var got map[string]any
	decodeYAML(t, render(t, bootstrap.Defaults(), values)[bootstrap.NetworkConfig], &got)
	nameservers := map[string]any{"addresses": []any{"10.0.0.2"}, "search": []any{"example.org"}}
	want := map[string]any{"version": 2, "ethernets": map[string]any{
		"eth0": map[string]any{
			"dhcp4": false, "dhcp6": false, "mtu": 9000, "addresses": []any{"10.0.0.7/24", "fd00::7/64"}, "nameservers": nameservers,
			"routes": []any{map[string]any{"to": "0.0.0.0/0", "via": "10.0.0.1"}, map[string]any{"to": "::/0", "via": "fd00::1"}},
		},
		"storage": map[string]any{
			"dhcp4": false, "dhcp6": true, "match": map[string]any{"macaddress": "bc:24:11:00:00:01"}, "nameservers": nameservers,
		},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("network (-want +got):\n%s", diff)
	}
}
