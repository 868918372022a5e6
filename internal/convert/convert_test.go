package convert_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/numaform/numaform/internal/convert"
)

var update = flag.Bool("update", false, "rewrite the golden files and the tables of the migration pages")

// settings are the settings of the tests.
func settings() convert.Settings {
	return convert.Settings{ClusterID: "quickstart", Region: "homelab", Template: "debian-13-k8s", Namespace: "numaform"}
}

// read reads the configuration of a peer in testdata, with each of its options.
func read(t *testing.T, peer convert.Peer) []convert.Object {
	t.Helper()
	dir := filepath.Join("testdata", string(peer))
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var objects []convert.Object
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, parse(t, entry.Name(), string(data))...)
	}
	return objects
}

func parse(t *testing.T, name, text string) []convert.Object {
	t.Helper()
	objects, err := convert.Read(name, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// logins are the options of config.yaml that exclude the ones in testdata.
const logins = `
clusters:
- {region: One, url: "https://192.0.2.1:8006/api2/json", username: root@pam, password: secret-1}
- {region: Two, url: "https://192.0.2.2:8006/api2/json", token_id_file: /etc/id, token_secret_file: /etc/secret}
`

// TestConverted compares the result for each option of each peer with the expected one.
func TestConverted(t *testing.T) {
	t.Parallel()
	for _, peer := range convert.Peers() {
		t.Run(string(peer), func(t *testing.T) {
			t.Parallel()
			result, err := convert.Convert(peer, read(t, peer), settings())
			if err != nil {
				t.Fatal(err)
			}
			var got txtar.Archive
			var report strings.Builder
			for _, line := range result.Lines {
				if line.Verdict == convert.Unknown {
					t.Errorf("the table lacks %s %s", line.Object, line.Path)
				}
				fmt.Fprintf(&report, "%s: %s %s -> %s: %s\n", line.Verdict, line.Object, line.Path, line.Ours, line.Reason)
			}
			got.Files = append(got.Files, txtar.File{Name: "report", Data: []byte(report.String())})
			for _, file := range result.Files {
				mark := ""
				if file.Secret {
					mark = " (secret)"
				}
				got.Files = append(got.Files, txtar.File{Name: file.Name + mark, Data: file.Content})
			}
			golden(t, filepath.Join("testdata", string(peer)+".txtar"), string(txtar.Format(&got)))
			for _, secret := range []string{"5f7c1a52", "ssh-ed25519", "AAAA", "--token abc", "rabbit\n"} {
				if strings.Contains(report.String(), secret) {
					t.Errorf("the report contains %s", secret)
				}
			}
			for _, file := range result.Files {
				if !file.Secret && strings.Contains(string(file.Content), "5f7c1a52") {
					t.Errorf("%s contains the token and is not marked", file.Name)
				}
			}
		})
	}
}

// TestAllOptionsAreInTheTests checks that the configurations in testdata have each option of
// the tables.
func TestAllOptionsAreInTheTests(t *testing.T) {
	t.Parallel()
	for _, peer := range convert.Peers() {
		objects := read(t, peer)
		switch peer {
		case convert.KPP:
			objects = append(objects, parse(t, "config.yaml", logins)...)
		case convert.Kproximate:
			objects = append(objects, parse(t, "more.env", "pmPassword=a\n")...)
		}
		unused, err := convert.Unused(peer, objects, settings())
		if err != nil {
			t.Fatal(err)
		}
		if len(unused) > 0 {
			t.Errorf("%s: no test has these options:\n%s", peer, strings.Join(unused, "\n"))
		}
	}
}

// TestTables checks that the migration pages have the tables of the converter.
func TestTables(t *testing.T) {
	t.Parallel()
	const begin, end = "<!-- The table is generated: go test ./internal/convert -update -->\n", "<!-- End of the table -->\n"
	for _, peer := range convert.Peers() {
		path := filepath.Join("..", "..", "docs", "migration-"+string(peer)+".md")
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		before, rest, ok := strings.Cut(string(page), begin)
		_, after, closed := strings.Cut(rest, end)
		if !ok || !closed {
			t.Fatalf("%s does not have the lines %q and %q", path, begin, end)
		}
		golden(t, path, before+begin+convert.Table(peer)+"\n"+end+after)
	}
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got): run go test ./internal/convert -update\n%s", path, diff)
	}
}

// convertText converts files.
func convertText(t *testing.T, peer convert.Peer, files map[string]string) *convert.Result {
	t.Helper()
	var objects []convert.Object
	for name, text := range files {
		objects = append(objects, parse(t, name, text)...)
	}
	result, err := convert.Convert(peer, objects, convert.Settings{ClusterID: "prod", Region: "homelab"})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// content returns a file of the result.
func content(t *testing.T, result *convert.Result, name string) string {
	t.Helper()
	for _, file := range result.Files {
		if file.Name == name {
			return string(file.Content)
		}
	}
	t.Fatalf("the result has no file %s", name)
	return ""
}

// TestNothingIsDroppedSilently checks that each unknown option is reported, wherever it is.
func TestNothingIsDroppedSilently(t *testing.T) {
	t.Parallel()
	result := convertText(t, convert.KPP, map[string]string{
		"config.yaml": "clusters:\n- {region: a, url: https://192.0.2.1:8006, novel: 1}\nlimits: {a: 1}\n",
		"class.yaml": "apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1\nkind: ProxmoxNodeClass\nmetadata: {name: a}\n" +
			"spec: {instanceTemplateRef: {kind: ProxmoxTemplate, name: gone}, novel: [{a: 1}], bootDevice: {iops: 3}, empty: {}}\n",
		"other.yaml":  "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n",
		"values.yaml": "image: {novel: 1}\nsettings: {novel: {}}\n",
	})
	got := map[string]convert.Verdict{}
	for _, line := range result.Lines {
		if line.Verdict == convert.Unknown || strings.Contains(line.Reason, "gone") {
			got[line.Object+" "+line.Path] = line.Verdict
		}
	}
	want := map[string]convert.Verdict{
		"config.yaml clusters[0].novel": convert.Unknown, "config.yaml limits.a": convert.Unknown,
		"ProxmoxNodeClass/a spec.novel[0].a": convert.Unknown, "ProxmoxNodeClass/a spec.bootDevice.iops": convert.Unknown, "ProxmoxNodeClass/a spec.empty": convert.Unknown,
		"ProxmoxNodeClass/a spec.instanceTemplateRef": convert.Dropped, "Service/a ": convert.Unknown,
		"values.yaml image.novel": convert.Unknown, "values.yaml settings.novel": convert.Unknown,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestLogins checks how each kind of credential is converted, and that ranges of VMIDs do not
// overlap.
func TestLogins(t *testing.T) {
	t.Parallel()
	result := convertText(t, convert.KPP, map[string]string{
		"config.yaml": logins,
		"values.yaml": "extraArgs: [-node-policy=static, -proxmox-vmid=500]\n",
		"class.yaml": "apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1\nkind: ProxmoxNodeClass\nmetadata: {name: a}\n" +
			"spec: {instanceTemplateRef: {kind: ProxmoxUnmanagedTemplate, name: u}}\n---\n" +
			"apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1\nkind: ProxmoxUnmanagedTemplate\nmetadata: {name: u}\nspec: {region: One, templateName: talos, tags: [x]}\n",
	})
	const config = `clusterID: prod
clusters:
- password_file: secrets/One-password
  region: One
  url: https://192.0.2.1:8006/api2/json
  username: root@pam
  vmid_range:
    lower: 500
    upper: 1499
- region: Two
  token_id_file: /etc/id
  token_secret_file: /etc/secret
  url: https://192.0.2.2:8006/api2/json
  vmid_range:
    lower: 1500
    upper: 2499
fleet:
  backend:
    type: local
  dir: fleet
`
	if diff := cmp.Diff(config, content(t, result, "numaform.yaml")); diff != "" {
		t.Errorf("numaform.yaml (-want +got):\n%s", diff)
	}
	const class = `apiVersion: numaform.dev/v1alpha1
kind: ProxmoxNodeClass
metadata:
  name: a
spec:
  placement:
    hostSelection: Balanced
    pinWith: Affinity
    policy: Dedicated
  region: One
  template:
    name: talos
    tags:
    - x
`
	if diff := cmp.Diff(class, content(t, result, "manifests/nodeclasses.yaml")); diff != "" {
		t.Errorf("class (-want +got):\n%s", diff)
	}
	if got := content(t, result, "secrets/One-password"); got != "secret-1\n" {
		t.Errorf("password is %q", got)
	}
}

// TestProvidersOfOneCluster checks that providers with the same endpoint become classes of one
// region, whose range of VMIDs includes theirs, and keep their ranges.
func TestProvidersOfOneCluster(t *testing.T) {
	t.Parallel()
	provider := func(name, host, lower, upper string) string {
		return "apiVersion: kubenodesmith.parawell.cloud/v1alpha1\nkind: NodeSmithProvider\nmetadata: {name: " + name + "}\n" +
			"spec: {type: proxmox, proxmox: {endpoint: 'https://" + host + ":8006/api2/json', vmIDRange: {lower: " + lower + ", upper: " + upper + "}}}\n---\n"
	}
	result := convertText(t, convert.KubeNodeSmith, map[string]string{
		"a.yaml": provider("small", "192.0.2.1", "500", "599") + provider("large", "192.0.2.1", "400", "450") + provider("other", "192.0.2.2", "700", "799"),
	})
	config := content(t, result, "numaform.yaml")
	for _, want := range []string{
		"- region: homelab\n  url: https://192.0.2.1:8006/api2/json\n  vmid_range:\n    lower: 400\n    upper: 599\n",
		"- region: other\n  url: https://192.0.2.2:8006/api2/json\n  vmid_range:\n    lower: 700\n    upper: 799\n",
	} {
		if !strings.Contains(config, want) {
			t.Errorf("%q is not in\n%s", want, config)
		}
	}
	classes := content(t, result, "manifests/nodeclasses.yaml")
	for want, times := range map[string]int{
		"region: homelab": 2, "vmidRange:": 2, "vmidRange:\n    lower: 500\n    upper: 599\n": 1, "vmidRange:\n    lower: 400\n    upper: 450\n": 1,
	} {
		if got := strings.Count(classes, want); got != times {
			t.Errorf("%q is %d times in the classes, want %d:\n%s", want, got, times, classes)
		}
	}
}

// TestOptionsOfVMs checks options of KubeNodeSmith's VMs that exist several times, or not.
func TestOptionsOfVMs(t *testing.T) {
	t.Parallel()
	result := convertText(t, convert.KubeNodeSmith, map[string]string{"a.yaml": `apiVersion: kubenodesmith.parawell.cloud/v1alpha1
kind: NodeSmithProvider
metadata: {name: a}
spec:
  type: proxmox
  proxmox:
    endpoint: https://192.0.2.1:8006/api2/json
    vmOptions:
    - {name: scsi1, value: "fast:100,ssd=1"}
    - {name: scsi2, value: "slow:7"}
    - {name: scsi3, value: "/dev/sdb"}
    - {name: hostpci0, value: "mapping=gpu,mdev=nvidia-63,pcie=1,x-vga=1"}
    - {name: hostpci1, value: "0000:01:00.0"}
    - {name: vga, value: serial1}
    - {name: ipconfig1, value: ip=dhcp}
    - {name: net0, value: "virtio=BC:24:11:00:00:01,bridge=vmbr0"}
    - {name: net1, value: "model=e1000"}
    - {name: cpu, value: "cputype=host,hidden=1"}
    - {name: tablet, value: 1}
    - {name: onboot, value: 0}
    - {name: sata5, value: "slow:9"}
    - {name: boot, value: "order=net0;sata5"}
    - {name: novel, value: 1}
`})
	const want = `spec:
  bootDevice:
    size: 9G
    storage: slow
  cpuType: host
  dataDisks:
  - size: 100G
    storage: fast
  - size: 7G
    storage: slow
  hardware:
    vga:
      type: serial1
  networks:
  - bridge: vmbr0
    model: virtio
  pciDevices:
  - mapping: gpu
    mdev: nvidia-63
    pcie: true
    xvga: true
  region: homelab
`
	if got := content(t, result, "manifests/nodeclasses.yaml"); !strings.Contains(got, want) {
		t.Errorf("%q is not in\n%s", want, got)
	}
	verdicts := ""
	for _, line := range result.Lines {
		if strings.Contains(line.Path, "vmOptions") {
			verdicts += string(line.Verdict) + " "
		}
	}
	if want := "changed changed dropped kept dropped changed dropped changed dropped changed changed dropped changed dropped unknown "; verdicts != want {
		t.Errorf("verdicts %s, want %s", verdicts, want)
	}
}

// TestTemplateText checks that templates of karpenter-provider-proxmox mean the same after the
// conversion, and that the rest of their text stays as it is.
func TestTemplateText(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ document, theirs, ours string }{
		"unchanged":            {"user-data", `{{- /* split "a" "b" */ -}} {{ .Metadata.Hostname | upper }} {{ split .Values.Key "," }}`, ""},
		"two literals":         {"user-data", `{{ index (split "a,b" ",") 1 }}`, `{{ index (split "," "a,b") 1 }}`},
		"two values":           {"user-data", `{{- split .Values.Key  $.Values.Key -}}`, `{{- split $.Values.Key  .Values.Key -}}`},
		"a literal text":       {"user-data", `{{ split "a-b" .Values.Key | len }}`, `{{ split .Values.Key ("a-b") | len }}`},
		"nested":               {"user-data", "{{ range split (index (split `a b` ` `) 0) (get .Values `Key`) }}{{ split `x` . }}{{ end }}", "{{ range split (get .Values `Key`) (index (split ` ` `a b`) 0) }}{{ split . (`x`) }}{{ end }}"},
		"a piped separator":    {"user-data", `{{ "," | split .Values.Key }} {{ .Values.Key | lower | split "a" | len }}`, `{{ split "," .Values.Key }} {{ split (.Values.Key | lower) ("a") | len }}`},
		"kubelet":              {"user-data", `{{ .Kubernetes.KubeletConfiguration | toYaml }}{{ .Kubernetes.KubeletConfiguration.CPUCFSQuota }}{{ printf "%v" $.Kubernetes.KubeletConfiguration.MaxPods }}`, `{{ .Kubernetes.KubeletSettings | toYaml }}{{ get .Kubernetes.KubeletSettings "cpuCFSQuota" }}{{ printf "%v" (get $.Kubernetes.KubeletSettings "maxPods") }}`},
		"kubelet in a with":    {"user-data", `{{ with .Kubernetes }}{{ with .KubeletConfiguration }}{{ .CPUManagerPolicy }}{{ else }}{{ .Version }}{{ end }}{{ end }}`, `{{ with .Kubernetes }}{{ with .KubeletSettings }}{{ get . "cpuManagerPolicy" }}{{ else }}{{ .Version }}{{ end }}{{ end }}`},
		"kubelet in variables": {"user-data", `{{ $k := .Kubernetes }}{{ $c := ($k).KubeletConfiguration }}{{ if $c.MaxPods }}{{ $c.KubeReserved.cpu }}{{ end }}`, `{{ $k := .Kubernetes }}{{ $c := ($k).KubeletSettings }}{{ if get $c "maxPods" }}{{ (get $c "kubeReserved").cpu }}{{ end }}`},
		"another dot":          {"user-data", `{{ range $i, $v := .Metadata.Tags }}{{ .KubeletConfiguration }}{{ $v.KubeletConfiguration }}{{ end }}`, ""},
		"a missing value":      {"user-data", `{{ .Values.Key }} {{ .Values.None }}{{ with .Values }}{{ .None | default "a" }}{{ end }}`, `{{ .Values.Key }} {{ get .Values "None" }}{{ with .Values }}{{ get . "None" | default "a" }}{{ end }}`},
		"all of meta-data":     {"meta-data", `{{ . | toYaml }} {{ toJson $ }} {{ .Hostname }}{{ with . }}{{ .Zone }}{{ toJson . }}{{ end }}`, `{{ .Metadata | toYaml }} {{ toJson $.Metadata }} {{ .Hostname }}{{ with .Metadata }}{{ .Zone }}{{ toJson . }}{{ end }}`},
		"all of the network":   {"network-config", `{{ range .Interfaces }}{{ .Name }}{{ . }}{{ $.NameServers }}{{ end }}{{ toYaml . }}`, `{{ range .Interfaces }}{{ .Name }}{{ . }}{{ $.NameServers }}{{ end }}{{ toYaml .Network }}`},
		"all of user-data":     {"user-data", `{{ toYaml . }}{{ define "a" }}{{ .Kubernetes.KubeletConfiguration.MaxPods }}{{ end }}{{ template "a" . }}`, `{{ toYaml . }}{{ define "a" }}{{ get .Kubernetes.KubeletSettings "maxPods" }}{{ end }}{{ template "a" . }}`},
		"invalid":              {"user-data", `{{ if }} {{ split "a" "b" }}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := c.ours
			if want == "" {
				want = c.theirs
			}
			got, notes := convert.Rewrite(c.document, c.theirs, map[string]any{"Key": "a"})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if (len(notes) == 0) != (c.ours == "" && name != "invalid") {
				t.Errorf("notes %q", notes)
			}
		})
	}
}

// TestNetworksOfTemplates checks which networks of karpenter-provider-proxmox become address
// pools, and what is reported about the others.
func TestNetworksOfTemplates(t *testing.T) {
	t.Parallel()
	const (
		one     = "clusters:\n- {region: A, url: https://192.0.2.1:8006}\n"
		another = "- {region: b, url: https://192.0.2.2:8006}\n"
	)
	for name, c := range map[string]struct{ config, region, cards, pools, reason string }{
		"a network":               {one, "", "{bridge: a, address4: 192.0.2.0/24, gateway4: 192.0.2.1, dnsServers: [192.0.2.53]}", "a", ""},
		"two cards":               {one, "", "{bridge: a, address4: 192.0.2.0/24, gateway4: 192.0.2.1}, {bridge: b, address4: 192.0.2.0/24, dnsServers: [192.0.2.53]}", "a", "without gateway4"},
		"a region":                {one + another, "A", "{bridge: a, address4: 192.0.2.0/24, gateway4: 192.0.2.1, dnsServers: [192.0.2.53]}", "a", ""},
		"several regions":         {one + another, "", "{bridge: a, address4: 192.0.2.0/24}", "", "nodes of several regions"},
		"another region":          {one, "c", "{bridge: a, address4: 192.0.2.0/24}", "", "the configuration of its region is not in the input"},
		"an address":              {one, "", "{bridge: a, address4: 192.0.2.7/24}", "", "is not a network"},
		"a gateway elsewhere":     {one, "", "{bridge: a, address4: 192.0.2.0/24, gateway4: 192.0.3.1}", "a", "is not in 192.0.2.0/24"},
		"another gateway":         {one, "", "{bridge: a, address4: 192.0.2.0/24, gateway4: 192.0.2.1, dnsServers: [192.0.2.53]}, {bridge: b, address4: 192.0.2.0/24, gateway4: 192.0.2.2}", "a", "another gateway for 192.0.2.0/24"},
		"a gateway alone":         {one, "", "{bridge: a, gateway4: 192.0.2.1}", "", "the card has no pool"},
		"DNS servers alone":       {one, "", "{bridge: a, dnsServers: [192.0.2.53]}", "", "no card has a pool"},
		"DHCP for IPv6":           {one, "", "{bridge: a, address6: dhcp}", "", "DHCP for IPv4 only"},
		"no static configuration": {one, "", "{bridge: a, address4: dhcp, address6: auto}", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result := convertText(t, convert.KPP, map[string]string{
				"config.yaml": c.config,
				"class.yaml": "apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1\nkind: ProxmoxNodeClass\nmetadata: {name: a}\n" +
					"spec: {instanceTemplateRef: {kind: ProxmoxTemplate, name: a}, metadataOptions: {type: cdrom}, securityGroups: [{name: web}]}\n---\n" +
					"apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1\nkind: ProxmoxTemplate\nmetadata: {name: a}\nspec: {region: '" + c.region + "', network: [" + c.cards + "]}\n",
			})
			config := content(t, result, "numaform.yaml")
			if got := strings.Count(config, "subnet: 192.0.2.0/24"); got != len(c.pools) {
				t.Errorf("%d pools, want %d:\n%s", got, len(c.pools), config)
			}
			if got := strings.Contains(content(t, result, "manifests/nodeclasses.yaml"), "- net-192-0-2-0-24"); got != (c.pools != "") {
				t.Errorf("the class has a pool: %t", got)
			}
			if strings.Contains(content(t, result, "manifests/nodeclasses.yaml"), "web") {
				t.Error("the class has a group without firewall")
			}
			found := c.reason == ""
			for _, line := range result.Lines {
				if strings.Contains(line.Path, "network[") {
					found = found || strings.Contains(line.Reason, c.reason)
				}
			}
			if !found {
				t.Errorf("no line has the reason %q: %v", c.reason, result.Lines)
			}
		})
	}
}

// TestErrors checks the errors about inputs that are no configuration of the peer.
func TestErrors(t *testing.T) {
	t.Parallel()
	for peer, want := range map[convert.Peer]string{
		convert.KPP: "found no configuration of karpenter-provider-proxmox", convert.Kproximate: "found no configuration of kproximate",
		convert.KubeNodeSmith: "found no NodeSmithProvider", "other": "is not a peer",
	} {
		if _, err := convert.Convert(peer, nil, settings()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", peer, err, want)
		}
	}
	for text, want := range map[string]string{"a: [": "document 1: invalid YAML", "5": "must be a Kubernetes object"} {
		if _, err := convert.Read("x.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
