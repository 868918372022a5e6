// Package operator builds numaform from its configuration: it reads
// numaform.yaml and wires clients, engine, fleet and scaler together. It decides
// nothing about nodes. Start at Load.
package operator

import (
	"math"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Config is numaform.yaml. Load makes its paths relative to the file's directory.
type Config struct {
	ClusterID string    `yaml:"clusterID"`
	Clusters  []Cluster `yaml:"clusters"`
	// TopologyFile is a nodes-settings.json; empty means none.
	TopologyFile string `yaml:"topology_file"`
	// StateDir holds what belongs to this machine and is part of no fleet: the engine's
	// working directories, local states, the clone of a git fleet. It must lie outside of
	// every checkout. Load fills in a directory per fleet below $XDG_STATE_HOME/numaform
	// or $HOME/.local/state/numaform.
	StateDir string `yaml:"state_dir"`
	// InstanceTypesFile replaces the generated instance types; empty means none.
	InstanceTypesFile string `yaml:"instance_types_file"`
	Engine            Engine `yaml:"engine"`
	// Modules says which modules node files may call besides the released ones.
	Modules Modules `yaml:"modules"`
	Fleet   Fleet   `yaml:"fleet"`
	History History `yaml:"history"`
	Policy  Policy  `yaml:"policy"`
	Join    Join    `yaml:"join"`
}

// History says how the records of this installation are known from those of others.
type History struct {
	// KeyFile holds the key by which records are authenticated; machines that share it
	// take each other's records for their own. Empty means a key of this installation.
	KeyFile string `yaml:"key_file"`
}

// Join says what new nodes of the controller join with, where the cluster itself does
// not tell it right.
type Join struct {
	// APIServer is the URL by which nodes reach the API server; empty means the one in
	// ConfigMap kube-public/cluster-info, or else the one that the controller uses.
	APIServer string `yaml:"api_server"`
	// CAFile holds the certificates that nodes trust it by, in PEM.
	CAFile string `yaml:"ca_file"`
	// ExternalCloudProvider is set where a cloud controller manager writes providerIDs.
	ExternalCloudProvider bool     `yaml:"external_cloud_provider"`
	ClusterDNS            []string `yaml:"cluster_dns"`
	ClusterDomain         string   `yaml:"cluster_domain"`
}

// Cluster is one Proxmox cluster and how to reach it. Of a secret, either the
// value or the file that holds it is set.
type Cluster struct {
	Region topology.RegionName `yaml:"region"`
	URL    string              `yaml:"url"`
	// URLs are those of further hosts of the cluster, which are asked if it does not
	// answer.
	URLs            []string  `yaml:"urls"`
	Insecure        bool      `yaml:"insecure"`
	CAFile          string    `yaml:"ca_file"`
	TokenID         string    `yaml:"token_id"`
	TokenIDFile     string    `yaml:"token_id_file"`
	TokenSecret     string    `yaml:"token_secret"`
	TokenSecretFile string    `yaml:"token_secret_file"`
	Username        string    `yaml:"username"`
	Password        string    `yaml:"password"`
	PasswordFile    string    `yaml:"password_file"`
	Timeouts        Timeouts  `yaml:"timeouts"`
	VMIDRange       VMIDRange `yaml:"vmid_range"`
	// Hosts is the allow list; empty means all.
	Hosts []topology.HostName `yaml:"hosts"`
	// Machines are collected topology files by host.
	Machines map[topology.HostName]string `yaml:"machines"`
}

// Timeouts are how long Proxmox may take over an operation.
type Timeouts struct {
	Clone time.Duration `yaml:"clone,omitempty"`
	Start time.Duration `yaml:"start,omitempty"`
	// Stop is for the guest, which shuts down before its VM is deleted.
	Stop time.Duration `yaml:"stop,omitempty"`
	// Delete is for a VM that is stopped and destroyed, with its disks.
	Delete time.Duration `yaml:"delete,omitempty"`
	Upload time.Duration `yaml:"upload,omitempty"`
}

// VMIDRange is the range of VMIDs that is reserved for numaform.
type VMIDRange struct {
	Lower fleet.VMID `yaml:"lower,omitempty"`
	Upper fleet.VMID `yaml:"upper,omitempty"`
}

// Engine says which OpenTofu or Terraform to run.
type Engine struct {
	// Binary is tofu, terraform or a path; empty means tofu, then terraform.
	Binary string `yaml:"binary"`
	// Version is a constraint such as ">= 1.8".
	Version string `yaml:"version"`
	// PluginDir is a filesystem mirror of providers; empty means the registry.
	PluginDir string `yaml:"plugin_dir"`
	// ProviderHashes are those of the providers that may run, such as "h1:…"; empty
	// means what the image carries, or else what is seen first.
	ProviderHashes []string `yaml:"provider_hashes"`
}

// Modules allows modules of a build of one's own. A fleet's repository cannot.
type Modules struct {
	// Allow are directories with the modules, by the hash of their content: each has what
	// modules/released/<hash> of the source would have.
	Allow map[string]string `yaml:"allow"`
}

// Fleet says where the desired state and Terraform's states are kept. The files lie
// in Dir, in a git repository if Git is set, or in ConfigMaps; of the
// last, Dir holds only what may be lost.
type Fleet struct {
	Dir       string    `yaml:"dir"`
	Git       Git       `yaml:"git"`
	ConfigMap ConfigMap `yaml:"configmap"`
	Backend   Backend   `yaml:"backend"`
}

// Git makes each change a commit. NUMAFORM_GIT_TOKEN is the password of an https
// remote.
type Git struct {
	// Enabled turns it on where Remote is empty: a repository without a remote.
	Enabled bool `yaml:"enabled"`
	// Remote is a URL or path, without user or password for https.
	Remote string `yaml:"remote"`
	Branch string `yaml:"branch"`
	// Subdir is the fleet's directory in the repository.
	Subdir string `yaml:"subdir"`
	// Review pushes each change to a branch of its own and applies nothing.
	Review      bool   `yaml:"review"`
	AuthorName  string `yaml:"author_name"`
	AuthorEmail string `yaml:"author_email"`
	Username    string `yaml:"username"`
	SSHKeyFile  string `yaml:"ssh_key_file"`
}

// ConfigMap keeps the fleet in the cluster, a ConfigMap for each host.
type ConfigMap struct {
	Namespace string `yaml:"namespace"`
	Name      string `yaml:"name"`
}

// Policy says what passes without a person. What is not set is as shipped.
type Policy struct {
	// Files hold rules in CEL that are added to the shipped ones.
	Files []string `yaml:"files"`
	// ReplaceDefault leaves the shipped rules out. The invariants stay.
	ReplaceDefault bool   `yaml:"replace_default"`
	Limits         Limits `yaml:"limits"`
}

// Limits are how much passes. What is not set is as shipped; 0 lets nothing pass
// without a person, and turns the circuit breaker off.
type Limits struct {
	Window     time.Duration `yaml:"window,omitempty"`
	PerChange  Amount        `yaml:"per_change"`
	PerWindow  Amount        `yaml:"per_window"`
	PerHost    Amount        `yaml:"per_host"`
	PerPool    Amount        `yaml:"per_pool"`
	MaxUpdates *int          `yaml:"max_updates"`
	MaxImports *int          `yaml:"max_imports"`
	BreakAfter *int          `yaml:"break_after"`
}

// Amount is how many VMs come and go.
type Amount struct {
	Creates *int `yaml:"creates"`
	Deletes *int `yaml:"deletes"`
}

// Backend is Terraform's backend for all states.
type Backend struct {
	Type   string            `yaml:"type"`
	Config map[string]string `yaml:"config"`
	// Encryption lets OpenTofu encrypt states as the variable TF_ENCRYPTION says.
	Encryption bool `yaml:"encryption"`
}

func defaults() Config {
	return Config{
		Engine: Engine{Version: ">= 1.8"},
		Fleet:  Fleet{Dir: "fleet", Backend: Backend{Type: "local"}},
	}
}

// How long the provider waits where the configuration does not say, as the module has
// it too.
const (
	defaultClone  = 25 * time.Minute
	defaultStart  = 5 * time.Minute
	defaultDelete = 5 * time.Minute
)

// ofProvider returns what files of VMs say to the provider: nothing of what the module
// says anyway, so that a file has only what somebody chose.
func (t Timeouts) ofProvider() fleet.Timeouts {
	seconds := func(chosen, fallback time.Duration) int {
		if chosen == fallback {
			return 0
		}
		return int(math.Ceil(chosen.Seconds()))
	}
	return fleet.Timeouts{
		Create: seconds(t.Clone+t.Start, defaultClone+defaultStart),
		Start:  seconds(t.Start, defaultStart), Delete: seconds(t.Delete, defaultDelete),
	}
}

func (c *Cluster) setDefaults() {
	for _, t := range []struct {
		value    *time.Duration
		fallback time.Duration
	}{
		{&c.Timeouts.Clone, defaultClone},
		{&c.Timeouts.Start, defaultStart},
		{&c.Timeouts.Stop, 2 * time.Minute},
		{&c.Timeouts.Delete, defaultDelete},
		{&c.Timeouts.Upload, time.Minute},
	} {
		if *t.value == 0 {
			*t.value = t.fallback
		}
	}
	if c.VMIDRange.Lower == 0 {
		c.VMIDRange.Lower = 2000
	}
	if c.VMIDRange.Upper == 0 {
		c.VMIDRange.Upper = 2999
	}
}
