package operator_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/modules"
	"github.com/numaform/numaform/topology"
)

const minimal = `clusterID: prod
clusters:
- region: region-1
  url: https://pve-1.example:8006/api2/json
  token_id: numaform@pve!scaler
  token_secret_file: token
`

// load writes text to numaform.yaml, next to the files token and empty, and loads it with
// its secrets. It also returns the directory.
func load(t *testing.T, text string, environ ...string) (*operator.Config, string, error) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"numaform.yaml": text, "token": "s3cret\n", "empty": "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config, err := operator.Load(filepath.Join(dir, "numaform.yaml"), environ, "NUMAFORM_CONFIG")
	if err == nil {
		err = config.ReadSecrets()
	}
	return config, dir, err
}

func TestLoadDefaults(t *testing.T) {
	t.Parallel()
	got, dir, err := load(t, minimal)
	if err != nil {
		t.Fatal(err)
	}
	want := &operator.Config{
		ClusterID: "prod",
		Clusters: []operator.Cluster{{
			Region: "region-1", URL: "https://pve-1.example:8006/api2/json",
			TokenID: "numaform@pve!scaler", TokenSecret: "s3cret", TokenSecretFile: filepath.Join(dir, "token"),
			Timeouts: operator.Timeouts{
				Clone: 25 * time.Minute, Start: 5 * time.Minute, Stop: 2 * time.Minute, Delete: 5 * time.Minute, Upload: time.Minute,
			},
			VMIDRange: fleet.VMIDRange{Lower: 2000, Upper: 2999},
		}},
		Notifications: operator.Notifications{Interval: time.Minute, Repeat: 4 * time.Hour},
		Intervals:     operator.Intervals{Update: 30 * time.Second, Full: 10 * time.Minute, Lease: 10 * time.Second},
		Engine:        operator.Engine{Version: ">= 1.8"},
		Fleet: operator.Fleet{
			Dir: filepath.Join(dir, "fleet"), Backend: operator.Backend{Type: "local"},
			Git: operator.Git{Forge: operator.Forge{Quorum: 1, Labels: []string{"numaform"}, Merge: "person", Poll: 30 * time.Second}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	if got, want := got.Clusters[0].Endpoint(), "https://pve-1.example:8006/"; got != want {
		t.Errorf("Endpoint = %q, want %q", got, want)
	}
}

// TestRegionsAsInProviderIDs checks that a region can have every name that a label can have,
// because nodes of other autoscalers keep their providerIDs.
func TestRegionsAsInProviderIDs(t *testing.T) {
	t.Parallel()
	for _, region := range []string{"Region-1", "DC_1.a", "R"} {
		config, _, err := load(t, strings.Replace(minimal, "region-1", region, 1))
		if err != nil || string(config.Clusters[0].Region) != region {
			t.Errorf("region %q: %v", region, err)
		}
	}
}

// TestTimeoutsOfTheModule checks that the configuration's defaults equal the module's,
// because a file omits values that are the default of both.
func TestTimeoutsOfTheModule(t *testing.T) {
	t.Parallel()
	variables := string(modules.Files()[modules.NodeModule+"/variables.tf"])
	for name, want := range map[string]time.Duration{"create": 25*time.Minute + 5*time.Minute, "start": 5 * time.Minute, "delete": 5 * time.Minute} {
		text := regexp.MustCompile(name + ` +=.*`).FindString(variables)
		if !strings.HasSuffix(text, fmt.Sprintf("optional(number, %d)", int(want.Seconds()))) {
			t.Errorf("the module has %q, want %s as the configuration has", text, want)
		}
	}
}

// TestTimeoutsOfNewVMs checks that the files of new VMs contain only timeouts that differ
// from the defaults.
func TestTimeoutsOfNewVMs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, timeouts string
		want           fleet.Timeouts
		wait           time.Duration
	}{
		{"none", "", fleet.Timeouts{}, 35 * time.Minute},
		{"those of others", "{stop: 9m, upload: 9m}", fleet.Timeouts{}, 35 * time.Minute},
		{"as they are anyway", "{clone: 25m, start: 5m, delete: 5m}", fleet.Timeouts{}, 35 * time.Minute},
		{"a slow clone", "{clone: 1h}", fleet.Timeouts{Create: 3900}, 65 * time.Minute},
		{"a quick start", "{start: 1500ms}", fleet.Timeouts{Create: 1502, Start: 2}, 35 * time.Minute},
		{"a slow delete", "{delete: 40m}", fleet.Timeouts{Delete: 2400}, 40 * time.Minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			text := minimal
			if test.timeouts != "" {
				text += "  timeouts: " + test.timeouts + "\n"
			}
			config, _, err := load(t, text)
			if err != nil {
				t.Fatal(err)
			}
			if got := config.Regions()[0]; got.Timeouts != test.want || got.WaitDelay != test.wait {
				t.Errorf("timeouts %+v, waits %s; want %+v, %s", got.Timeouts, got.WaitDelay, test.want, test.wait)
			}
		})
	}
}

func TestEnvironmentWins(t *testing.T) {
	t.Parallel()
	config, _, err := load(t, minimal,
		"NUMAFORM_CLUSTERID=test", "NUMAFORM_CLUSTERS_0_TIMEOUTS_CLONE=3m", "NUMAFORM_CLUSTERS_0_INSECURE=true",
		"NUMAFORM_PRICES_CURRENCY=EUR", "NUMAFORM_PRICES_VCPU_HOUR=0.012", "NUMAFORM_PRICES_MEMORY_GIB_HOUR=1", "NUMAFORM_CLUSTERS_0_VMID_RANGE_LOWER=2500", "NUMAFORM_CLUSTERS_0_HOSTS=pve-1,pve-2",
		"NUMAFORM_FLEET_BACKEND_CONFIG={path: /states, a: 'b,c'}", "NUMAFORM_POLICY_LIMITS_MAX_UPDATES=0", "NUMAFORM_CONFIG=elsewhere",
		"NUMAFORM_CLUSTERS_0_URLS=[https://pve-2.example:8006]", "NUMAFORM_SERVICE_HOST=10.0.0.1", "NUMAFORM_PORT=tcp://10.0.0.1:80", "HOME=/root")
	if err != nil {
		t.Fatal(err)
	}
	cluster := config.Clusters[0]
	if config.ClusterID != "test" || cluster.Timeouts.Clone != 3*time.Minute || !cluster.Insecure || cluster.VMIDRange.Lower != 2500 {
		t.Errorf("config = %+v", config)
	}
	if diff := cmp.Diff(map[string]string{"path": "/states", "a": "b,c"}, config.Fleet.Backend.Config); diff != "" {
		t.Errorf("backend (-want +got):\n%s", diff)
	}
	if want := (scheduling.Prices{Currency: "EUR", VCPUHour: 0.012, MemoryGiBHour: 1}); config.Prices != want {
		t.Errorf("prices = %+v, want %+v", config.Prices, want)
	}
	if limit := config.Policy.Limits.MaxUpdates; limit == nil || *limit != 0 || len(cluster.URLs) != 1 {
		t.Errorf("limit = %v, urls = %v", limit, cluster.URLs)
	}
	if diff := cmp.Diff([]topology.HostName{"pve-1", "pve-2"}, cluster.Hosts); diff != "" {
		t.Errorf("hosts (-want +got):\n%s", diff)
	}
}

// TestEnvironmentReplacesFiles checks that a secret in the environment replaces the file
// named in numaform.yaml, and that the environment cannot contain both a secret and a file
// for it.
func TestEnvironmentReplacesFiles(t *testing.T) {
	t.Parallel()
	config, _, err := load(t, minimal, "NUMAFORM_CLUSTERS_0_TOKEN_SECRET=other")
	if err != nil || config.Clusters[0].TokenSecret != "other" {
		t.Errorf("secret %q, error %v", config.Clusters[0].TokenSecret, err)
	}
	if _, _, err := load(t, minimal, "NUMAFORM_CLUSTERS_0_TOKEN_SECRET=other", "NUMAFORM_CLUSTERS_0_TOKEN_SECRET_FILE=token"); err == nil {
		t.Error("both values were used")
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, text, environ, want string }{
		{"unknown key", minimal + "fleat: {}\n", "", "line 7: unknown key fleat"},
		{"wrong type", strings.Replace(minimal, "clusterID: prod", "clusterID: [prod]", 1), "", "line 1: a list: must be a string"},
		{"a key of another place", minimal + "timeouts: {}\n", "", "line 7: unknown key timeouts: move it to clusters[].timeouts"},
		{"a swapped letter", minimal + "  usrename: x\n", "", "did you mean username?"},
		{"nothing like it", minimal + "xyzzy: 1\n", "", "must be one of clusterID, clusters, topology_file"},
		{"not even a section", "prod\n", "", `line 1: "prod": must be a section with the keys clusterID, `},
		{"a second document", minimal + "---\nclusterID: x\n", "", "line 7: a second document begins"},
		{"a duration without unit", minimal + "  timeouts: {stop: 10}\n", "", `line 7: "10": must be a positive duration such as 90s or 10m`},
		{"a duration of nothing", minimal + "  timeouts: {stop: 0s}\n", "", "clusters[0]: timeouts.stop: 0s: must be a positive duration"},
		{"a window of nothing", minimal + "policy: {limits: {window: 0s}}\n", "", "policy.limits.window: 0s: must be a positive duration"},
		{"a number that is a text", minimal + "policy: {limits: {max_updates: many}}\n", "", `line 7: "many": must be an integer`},
		{"a fraction", minimal + "policy: {limits: {break_after: 0.9}}\n", "", `line 7: "0.9": must be an integer`},
		{"prices without a currency", minimal + "prices: {vcpu_hour: 0.01, memory_gib_hour: 0.001}\n", "", `prices.currency "": must be 1 to 8 letters or currency symbols such as EUR`},
		{"a currency that is a price", minimal + "prices: {currency: 3 EUR, vcpu_hour: 0.01, memory_gib_hour: 0.001}\n", "", `prices.currency "3 EUR": must be`},
		{"a currency alone", minimal + "prices: {currency: EUR}\n", "", "prices.vcpu_hour: 0: must be positive and at most 1000000: set it, or remove prices\nprices.memory_gib_hour: 0: must be"},
		{"a negative price", minimal + "prices: {currency: EUR, vcpu_hour: 1, memory_gib_hour: 1, disk_gib_month: -0.5}\n", "", "prices.disk_gib_month: -0.5: must be from 0 to 1000000"},
		{"a price that is no number", minimal + "prices: {currency: EUR, vcpu_hour: .nan, memory_gib_hour: 1}\n", "", "prices.vcpu_hour: NaN: must be positive"},
		{"a price without end", minimal + "prices: {currency: EUR, vcpu_hour: 1, memory_gib_hour: .inf}\n", "", "prices.memory_gib_hour: +Inf: must be positive"},
		{"a price with a comma", minimal + "prices: {currency: EUR, vcpu_hour: '0,01', memory_gib_hour: 1}\n", "", `line 7: "0,01": must be a number such as 0.012`},
		{"a price of a host", minimal + "prices: {host_hour: 1}\n", "", "line 7: unknown key host_hour: must be one of currency, vcpu_hour, memory_gib_hour, disk_gib_month"},
		{"a word for a price by environment", minimal, "NUMAFORM_PRICES_VCPU_HOUR=cheap", `NUMAFORM_PRICES_VCPU_HOUR: "cheap": must be a number such as 0.012`},
		{"a fraction for a VMID", minimal + "  vmid_range: {lower: 2000.7, upper: 2999}\n", "", `"2000.7": must be a number from`},
		{"a fraction in the environment", minimal, "NUMAFORM_POLICY_LIMITS_BREAK_AFTER=0.5", `NUMAFORM_POLICY_LIMITS_BREAK_AFTER: "0.5": must be an integer`},
		{"a word for a boolean", minimal + "  insecure: yes\n", "", `line 7: "yes": must be true or false`},
		{"a text for a boolean", minimal + "  insecure: \"true\"\n", "", `line 7: "true": must be true or false`},
		{"bytes for a text", minimal + "topology_file: !!binary aGk=\n", "", `line 7: "aGk=": must be a string`},
		{"a pair without value", minimal + "fleet: {backend: {config: {bucket: , key: x}}}\n", "", "line 7: bucket is empty: must be a string"},
		{"null in the environment", minimal, "NUMAFORM_FLEET_GIT_REVIEW=null", "NUMAFORM_FLEET_GIT_REVIEW: is empty: must be true or false"},
		{"a comment in the environment", minimal, "NUMAFORM_FLEET_GIT_REVIEW=# x", "NUMAFORM_FLEET_GIT_REVIEW: is empty: must be true or false"},
		{"a limit below nothing", minimal + "policy: {limits: {max_updates: -1}}\n", "", "policy.limits.max_updates: -1: must be 0"},
		{"an entry without value", minimal + "  hosts: [pve-1, ]\n  urls:\n  -\n", "", "line 9: a list entry is empty: set its value"},
		{"no host in a list of hosts", minimal + "  hosts: &none [~]\n", "", "line 7: a list entry is empty"},
		{"a list for pairs", minimal + "fleet: {backend: {config: [a]}}\n", "", "line 7: a list: must be a map such as {name: value}"},
		{"one key twice", minimal + "clusterID: b\n", "", "line 7: duplicate key clusterID, already on line 1"},
		{"merges without end", minimal + "fleet: &f {<<: *f}\n", "", "refers to itself"},
		{"a backend misspelled", minimal + "fleet: {backend: {type: kubernets}}\n", "", `fleet.backend.type "kubernets": did you mean kubernetes?`},
		{"a password in a url", strings.Replace(minimal, "https://", "https://root:s3cret@", 1), "", `url "https://…@pve-1.example:8006/api2/json": must not contain a user or password`},
		{"no url at all", strings.Replace(minimal, "  url: https://pve-1.example:8006/api2/json\n", "", 1), "", `url "": must be https://`},
		{"one of several urls", minimal + "  urls: [pve-2]\n", "", `url "pve-2": must be https://`},
		{"the same hosts twice", minimal + "- {region: b, url: 'https://pve-1.example:8006', vmid_range: {lower: 5000, upper: 5001}}\n", "", "is also in region region-1"},
		{"ranges that overlap", minimal + "- {region: b, url: 'https://pve-9.example:8006'}\n", "", "clusters[1]: vmid_range 2000 to 2999 overlaps 2000 to 2999 of region region-1"},
		{
			"mistakes in address pools",
			minimal + "  address_pools:\n  - {name: a, subnet: 10.0.0.0/24, gateway: 10.1.0.1, exclude: [x]}\n", "",
			"clusters[0]: address_pools[0]: gateway \"10.1.0.1\": is not the address of a host in the subnet 10.0.0.0/24: correct one of the two\n" +
				"clusters[0]: address_pools[0]: exclude[0] \"x\": must be an address, a range such as",
		},
		{
			"address pools that overlap", minimal + "  address_pools: [{name: a, subnet: 10.0.0.0/24}, {name: b, subnet: 10.0.0.0/16}]\n", "",
			`clusters[0]: address_pools[1]: pool "b" overlaps pool "a" of region region-1: both contain 10.0.0.1: give them ranges that do not overlap`,
		},
		{
			"address pools of two regions that overlap",
			minimal + "  address_pools: [{name: a, subnet: 10.0.0.0/24}]\n" +
				"- {region: b, url: 'https://pve-9.example:8006', vmid_range: {lower: 5000, upper: 5001}, address_pools: [{name: a, subnet: 10.0.0.0/24}]}\n", "",
			`clusters[1]: address_pools: pool "a" overlaps pool "a" of region region-1: both contain 10.0.0.1`,
		},
		{
			"one address pool twice", minimal + "  address_pools: [{name: a, subnet: 10.0.0.0/24}, {name: a, subnet: 10.0.1.0/24}]\n", "",
			`clusters[0]: address_pools[1]: duplicate name "a": rename one of the two pools`,
		},
		{"an unknown key of an address pool", minimal + "  address_pools: [{name: a, net: 10.0.0.0/24}]\n", "", "line 7: unknown key net: must be one of name, subnet, ranges"},
		{"a flag that is none", minimal, "NUMAFORM_CONFG=x", "NUMAFORM_CONFG: matches no key of numaform.yaml and no flag: did you mean NUMAFORM_CONFIG?"},
		{"a variable of no key", minimal, "NUMAFORM_CLUSTERS_0_VMID_RANGE=1", "NUMAFORM_CLUSTERS_0_VMID_RANGE: matches no key"},
		{"a variable of no cluster", minimal, "NUMAFORM_CLUSTERS_1_URL=x", "clusters has no entry 1 (the first is 0)"},
		{"a bool by environment", minimal, "NUMAFORM_CLUSTERS_0_INSECURE=si", `NUMAFORM_CLUSTERS_0_INSECURE: "si": must be true or false`},
		{"pairs by environment", minimal, "NUMAFORM_FLEET_BACKEND_CONFIG=path=x", "must be a map such as {name: value}"},
		{"no cluster", "clusterID: prod\n", "", "at least one Proxmox cluster"},
		{"no cluster id", strings.Replace(minimal, "clusterID: prod\n", "", 1), "", `clusterID ""`},
		{"regions that differ in case", minimal + "- {region: Region-1, url: 'https://pve-9.example:8006', vmid_range: {lower: 5000, upper: 5001}}\n", "", `differs from "region-1" not only in upper and lower case`},
		{"region of the modules", strings.Replace(minimal, "region-1", "Modules", 1), "", `region "Modules": must not be modules`},
		{"region with dots", strings.Replace(minimal, "region-1", "a..b", 1), "", `region "a..b": must not be`},
		{"one region twice", minimal + strings.TrimPrefix(minimal, "clusterID: prod\nclusters:\n"), "", `duplicate region "region-1"`},
		{"plain http", strings.Replace(minimal, "https:", "http:", 1), "", "must be https://"},
		{"secret twice", minimal + "  token_secret: x\n", "", "token_secret and token_secret_file are both set"},
		{"missing secret file", strings.Replace(minimal, "file: token", "file: nowhere", 1), "", "reading token_secret_file"},
		{"empty secret file", strings.Replace(minimal, "file: token", "file: empty", 1), "", "is empty: write the token_secret into it; Proxmox shows it only once: " +
			"if it is lost, create the token again on a host, and write its value into the file: " +
			"pveum user token remove numaform@pve scaler && pveum user token add numaform@pve scaler --privsep 0"},
		{"range upside down", minimal + "  vmid_range: {lower: 300, upper: 200}\n", "", "vmid_range 300 to 200"},
		{"bad region", strings.Replace(minimal, "region-1", "Region 1", 1), "", `region "Region 1"`},
		{"bad duration by environment", minimal, "NUMAFORM_CLUSTERS_0_TIMEOUTS_CLONE=soon", "NUMAFORM_CLUSTERS_0_TIMEOUTS_CLONE"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := load(t, tt.text, tt.environ)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want it to contain %q", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "s3cret") {
				t.Errorf("error contains a secret: %v", err)
			}
			for _, ours := range []string{"operator.", "!!", "unmarshal", "reflect"} {
				if err != nil && strings.Contains(err.Error(), ours) {
					t.Errorf("error contains internal terms: %v", err)
				}
			}
		})
	}
}

// TestFileAndVariablesAreReportedTogether checks that one error lists the mistakes in the
// file and in the variables, and that no variable is refused because its cluster could not
// be read.
func TestFileAndVariablesAreReportedTogether(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"unknown key": minimal + "fleat: {}\n",
		"no YAML":     minimal + "fleet: {\n",
		"no clusters": "clusterID: prod\nclusters: x\n",
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "numaform.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := operator.Load(path, []string{"NUMAFORM_CONFG=x", "NUMAFORM_CLUSTERS_0_URL=https://pve-1:8006"}, "NUMAFORM_CONFIG")
		if err == nil || !strings.Contains(err.Error(), "reading "+path+": line ") ||
			!strings.Contains(err.Error(), "\nenvironment variable NUMAFORM_CONFG: matches no key") || strings.Contains(err.Error(), "CLUSTERS") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
