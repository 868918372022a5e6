// Package operator builds numaform from its configuration: it reads numaform.yaml and
// wires clients, engine, fleet and scaler together. It makes no decisions about nodes.
// Start at Load.
package operator

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/ipam"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// Config is numaform.yaml. Load makes its paths relative to the file's directory.
type Config struct {
	ClusterID string    `yaml:"clusterID"`
	Clusters  []Cluster `yaml:"clusters"`
	// TopologyFile is a nodes-settings.json; empty means none.
	TopologyFile string `yaml:"topology_file"`
	// StateDir stores the data of this machine that is not part of the fleet: the engine's
	// working directories, local states, and the clone of a git fleet. It must be outside
	// every checkout. By default, Load sets a directory per fleet below
	// $XDG_STATE_HOME/numaform or $HOME/.local/state/numaform.
	StateDir string `yaml:"state_dir"`
	// InstanceTypesFile contains instance types that replace the generated ones; empty
	// means none.
	InstanceTypesFile string            `yaml:"instance_types_file"`
	Prices            scheduling.Prices `yaml:"prices"`
	Intervals         Intervals         `yaml:"intervals"`
	Engine            Engine            `yaml:"engine"`
	// Modules lists the modules that node files may call in addition to the released
	// ones.
	Modules Modules `yaml:"modules"`
	Fleet   Fleet   `yaml:"fleet"`
	History History `yaml:"history"`
	Policy  Policy  `yaml:"policy"`
	// Approval configures whose signatures approvals need, and freeze windows.
	Approval Approval `yaml:"approval"`
	Join     Join     `yaml:"join"`

	Notifications Notifications `yaml:"notifications"`
}

var currency = regexp.MustCompile(`^[\p{L}\p{Sc}]{1,8}$`)

// maxPrice is the maximum price of a resource, far above any real one.
const maxPrice = 1e6

// checkPrices returns an error for each invalid price.
func checkPrices(p scheduling.Prices) []error {
	if p == (scheduling.Prices{}) {
		return nil
	}
	var mistakes []error
	if !currency.MatchString(p.Currency) {
		mistakes = append(mistakes, fmt.Errorf("prices.currency %q: must be 1 to 8 letters or currency symbols such as EUR", p.Currency))
	}
	for _, price := range []struct {
		key      string
		value    float64
		required bool
	}{
		{"vcpu_hour", p.VCPUHour, true},
		{"memory_gib_hour", p.MemoryGiBHour, true},
		{"disk_gib_month", p.DiskGiBMonth, false},
	} {
		switch in := price.value >= 0 && price.value <= maxPrice; {
		case price.required && (!in || price.value == 0):
			mistakes = append(mistakes, fmt.Errorf("prices.%s: %g: must be positive and at most %d: set it, or remove prices", price.key, price.value, int(maxPrice)))
		case !in:
			mistakes = append(mistakes, fmt.Errorf("prices.%s: %g: must be from 0 to %d", price.key, price.value, int(maxPrice)))
		}
	}
	return mistakes
}

// History configures how records of this installation are distinguished from others.
type History struct {
	// KeyFile contains the key that authenticates records; machines with the same key
	// accept each other's records. Empty means a key of this installation.
	KeyFile string `yaml:"key_file"`
	// CheckpointDir is a directory for copies of the signed checkpoints of the history, on
	// storage that fails and can be changed independently of the fleet's store.
	CheckpointDir string `yaml:"checkpoint_dir"`
	// CheckpointRemote is the URL of another git repository for copies of the checkpoints.
	// NUMAFORM_CHECKPOINT_TOKEN is the password for https.
	CheckpointRemote string `yaml:"checkpoint_remote"`
}

// Intervals configure how often the controller queries Proxmox and Kubernetes while it
// is idle.
type Intervals struct {
	// Update is the interval between queries of Proxmox for changes.
	Update time.Duration `yaml:"update"`
	// Full is the interval between complete reads: the hardware of each host, and the
	// configuration of each guest.
	Full time.Duration `yaml:"full"`
	// Lease is the interval at which the leader renews its Lease. Another replica takes
	// over three to about seven intervals after the last renewal: replicas look at the
	// Lease at random intervals of one to 2.2 times this value, and it expires three
	// intervals after a replica has seen its last renewal.
	Lease time.Duration `yaml:"lease"`
}

// leadership returns how long a Lease of the leader is valid, and for how long the leader
// tries to renew it. The leader waits an interval before it tries, so it gives up half an
// interval before another controller may take over.
func (i Intervals) leadership() (valid, deadline time.Duration) {
	return 3 * i.Lease, i.Lease * 3 / 2
}

// check returns an error for each invalid interval.
func (i Intervals) check() []error {
	var mistakes []error
	walkKeys(reflect.ValueOf(i), "intervals", func(path string, value reflect.Value) {
		if interval := time.Duration(value.Int()); interval < time.Second {
			mistakes = append(mistakes, fmt.Errorf("%s: %s: must be at least 1s", path, interval))
		}
	})
	return mistakes
}

// Join overrides the settings with which the controller's new nodes join, if the
// cluster's own information is missing or wrong.
type Join struct {
	// APIServer is the URL by which nodes reach the API server; empty means the one in
	// ConfigMap kube-public/cluster-info, or else the controller's own.
	APIServer string `yaml:"api_server"`
	// CAFile contains the API server's CA certificates, in PEM.
	CAFile string `yaml:"ca_file"`
	// ExternalCloudProvider is set if a cloud controller manager sets providerIDs.
	ExternalCloudProvider bool     `yaml:"external_cloud_provider"`
	ClusterDNS            []string `yaml:"cluster_dns"`
	ClusterDomain         string   `yaml:"cluster_domain"`
}

// Cluster configures the connection to one Proxmox cluster. Each secret is set either by
// value or by file.
type Cluster struct {
	Region topology.RegionName `yaml:"region"`
	URL    string              `yaml:"url"`
	// URLs are further hosts of the cluster, which are tried if the first does not
	// respond.
	URLs            []string        `yaml:"urls"`
	Insecure        bool            `yaml:"insecure"`
	CAFile          string          `yaml:"ca_file"`
	TokenID         string          `yaml:"token_id"`
	TokenIDFile     string          `yaml:"token_id_file"`
	TokenSecret     string          `yaml:"token_secret"`
	TokenSecretFile string          `yaml:"token_secret_file"`
	Username        string          `yaml:"username"`
	Password        string          `yaml:"password"`
	PasswordFile    string          `yaml:"password_file"`
	Timeouts        Timeouts        `yaml:"timeouts"`
	VMIDRange       fleet.VMIDRange `yaml:"vmid_range"`
	// TemplateVMIDRange is the range of VMIDs of templates; zero means that numaform creates
	// none.
	TemplateVMIDRange fleet.VMIDRange `yaml:"template_vmid_range"`
	// Hosts is the allow list; empty means all.
	Hosts []topology.HostName `yaml:"hosts"`
	// Machines are collected topology files by host.
	Machines map[topology.HostName]string `yaml:"machines"`
	// AddressPools are the static addresses for VMs of classes that name the pools.
	AddressPools []ipam.Config `yaml:"address_pools"`
}

// Timeouts limit Proxmox operations.
type Timeouts struct {
	Clone time.Duration `yaml:"clone"`
	Start time.Duration `yaml:"start"`
	// Stop is for the guest's shutdown before its VM is deleted.
	Stop time.Duration `yaml:"stop"`
	// Delete is for stopping and destroying a VM with its disks.
	Delete time.Duration `yaml:"delete"`
	Upload time.Duration `yaml:"upload"`
}

// Engine selects the OpenTofu or Terraform to run.
type Engine struct {
	// Binary is tofu, terraform or a path; empty means tofu, then terraform.
	Binary string `yaml:"binary"`
	// Version is a constraint such as ">= 1.8".
	Version string `yaml:"version"`
	// PluginDir is a filesystem mirror of providers; empty means the registry.
	PluginDir string `yaml:"plugin_dir"`
	// Concurrency is the maximum number of engines that run at once; 0 means as many as
	// fit in the container's memory.
	Concurrency int `yaml:"concurrency"`
	// ProviderHashes are the hashes of the providers that may run, such as "h1:…"; empty
	// means the image's providers, or else the first one used.
	ProviderHashes []string `yaml:"provider_hashes"`
}

// Modules allows custom modules. A fleet's repository cannot allow any.
type Modules struct {
	// Allow maps the hash of each version to the directory with its modules, which has
	// the same content as modules/released/<hash> in the source.
	Allow map[string]string `yaml:"allow"`
}

// Fleet configures where the desired state and Terraform's states are stored. The files are
// in Dir, in a git repository if Git is set, or in ConfigMaps if ConfigMap is set. With
// ConfigMaps, Dir contains only temporary data.
type Fleet struct {
	Dir       string    `yaml:"dir"`
	Git       Git       `yaml:"git"`
	ConfigMap ConfigMap `yaml:"configmap"`
	Backend   Backend   `yaml:"backend"`
}

// Git stores each change as a commit. NUMAFORM_GIT_TOKEN is the password of an https
// remote.
type Git struct {
	// Enabled is needed only if Remote is empty, for a repository without a remote.
	Enabled bool `yaml:"enabled"`
	// Remote is a URL or path, without user or password for https.
	Remote string `yaml:"remote"`
	Branch string `yaml:"branch"`
	// Subdir is the fleet's directory in the repository.
	Subdir string `yaml:"subdir"`
	// Review pushes each change to a separate branch and applies nothing. In the controller,
	// it makes the mode of NodePools without an annotation manual.
	Review      bool   `yaml:"review"`
	Forge       Forge  `yaml:"forge"`
	AuthorName  string `yaml:"author_name"`
	AuthorEmail string `yaml:"author_email"`
	Username    string `yaml:"username"`
	SSHKeyFile  string `yaml:"ssh_key_file"`
	// CAFile contains CA certificates to trust in addition to the system's, for the remote, the
	// forge and the remote of checkpoints.
	CAFile string `yaml:"ca_file"`
}

// Forge opens pull requests for changes that need approval. NUMAFORM_FORGE_TOKEN is the token
// of its API.
type Forge struct {
	// Kind is github, gitlab or gitea; empty means no pull requests.
	Kind string `yaml:"kind"`
	// URL is the address of the forge; empty means https and the host of the remote.
	URL string `yaml:"url"`
	// Approvers are the users of the forge whose approvals count; empty means that the merge
	// is the approval.
	Approvers []string `yaml:"approvers"`
	// Quorum is how many of them must approve.
	Quorum int `yaml:"quorum"`
	// Labels and Reviewers are set when a pull request is opened; without Reviewers, the
	// Approvers are asked.
	Labels    []string `yaml:"labels"`
	Reviewers []string `yaml:"reviewers"`
	// Merge is who merges approved pull requests: person, or auto for numaform.
	Merge string `yaml:"merge"`
	// Poll is the interval between requests to the forge.
	Poll time.Duration `yaml:"poll"`
}

// ConfigMap stores the fleet in the cluster: in one ConfigMap for each host and each module,
// one for the other files, and two for each change in the history.
type ConfigMap struct {
	Namespace string `yaml:"namespace"`
	Name      string `yaml:"name"`
}

// Policy configures which changes are allowed without approval. Unset fields have their
// defaults.
type Policy struct {
	// Files contain rules in CEL, in addition to the default ones.
	Files []string `yaml:"files"`
	// ReplaceDefault drops the default rules. The invariants remain.
	ReplaceDefault bool   `yaml:"replace_default"`
	Limits         Limits `yaml:"limits"`
}

// Limits configure how much may change. Unset fields have their defaults. 0 allows nothing
// without approval; for break_after, 0 disables the circuit breaker.
type Limits struct {
	Window     *time.Duration `yaml:"window"`
	PerChange  Amount         `yaml:"per_change"`
	PerWindow  Amount         `yaml:"per_window"`
	PerHost    Amount         `yaml:"per_host"`
	PerPool    Amount         `yaml:"per_pool"`
	MaxUpdates *int           `yaml:"max_updates"`
	MaxImports *int           `yaml:"max_imports"`
	BreakAfter *int           `yaml:"break_after"`
}

// Amount limits the number of VMs to create and to delete.
type Amount struct {
	Creates *int `yaml:"creates"`
	Deletes *int `yaml:"deletes"`
}

// Backend is Terraform's backend for all states.
type Backend struct {
	Type   string            `yaml:"type"`
	Config map[string]string `yaml:"config"`
	// Encryption makes OpenTofu encrypt states as configured in the variable
	// TF_ENCRYPTION.
	Encryption bool `yaml:"encryption"`
}

// The provider's timeouts if the configuration has none, the same as the module's.
const (
	defaultClone  = 25 * time.Minute
	defaultStart  = 5 * time.Minute
	defaultDelete = 5 * time.Minute
)

// clusterKeys is a Cluster without its method, for decoding its keys.
type clusterKeys Cluster

// UnmarshalYAML decodes a cluster over its defaults. decode rejects unknown keys, unlike
// yaml.Node.Decode.
func (c *Cluster) UnmarshalYAML(decode func(any) error) error {
	*c = newCluster()
	return decode((*clusterKeys)(c))
}

// newCluster returns a cluster with the defaults.
func newCluster() Cluster {
	return Cluster{
		Timeouts: Timeouts{
			Clone:  defaultClone,
			Start:  defaultStart,
			Stop:   2 * time.Minute,
			Delete: defaultDelete,
			Upload: time.Minute,
		},
		VMIDRange: fleet.VMIDRange{Lower: 2000, Upper: 2999},
	}
}

// ofProvider returns the timeouts for the VMs' files, with 0 for a default of the module,
// so that a file contains only the values that differ from the defaults.
func (t Timeouts) ofProvider() fleet.Timeouts {
	seconds := func(chosen, fallback time.Duration) int {
		if chosen == fallback {
			return 0
		}
		return int(math.Ceil(chosen.Seconds()))
	}
	return fleet.Timeouts{
		Create: seconds(t.Clone+t.Start, defaultClone+defaultStart),
		Start:  seconds(t.Start, defaultStart),
		Delete: seconds(t.Delete, defaultDelete),
	}
}
