// Package operator builds numaform from its configuration: it reads
// numaform.yaml and wires clients, engine, fleet and scaler together. It decides
// nothing about nodes. Start at Load.
package operator

import (
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
	// InstanceTypesFile replaces the generated instance types; empty means none.
	InstanceTypesFile string `yaml:"instance_types_file"`
	Engine            Engine `yaml:"engine"`
	Fleet             Fleet  `yaml:"fleet"`
}

// Cluster is one Proxmox cluster and how to reach it. Of a secret, either the
// value or the file that holds it is set.
type Cluster struct {
	Region          topology.RegionName `yaml:"region"`
	URL             string              `yaml:"url"`
	Insecure        bool                `yaml:"insecure"`
	CAFile          string              `yaml:"ca_file"`
	TokenID         string              `yaml:"token_id"`
	TokenIDFile     string              `yaml:"token_id_file"`
	TokenSecret     string              `yaml:"token_secret"`
	TokenSecretFile string              `yaml:"token_secret_file"`
	Username        string              `yaml:"username"`
	Password        string              `yaml:"password"`
	PasswordFile    string              `yaml:"password_file"`
	Timeouts        Timeouts            `yaml:"timeouts"`
	VMIDRange       VMIDRange           `yaml:"vmid_range"`
	// Hosts is the allow list; empty means all.
	Hosts []topology.HostName `yaml:"hosts"`
	// Machines are collected topology files by host.
	Machines map[topology.HostName]string `yaml:"machines"`
}

// Timeouts are how long Proxmox may take over an operation.
type Timeouts struct {
	Clone  time.Duration `yaml:"clone"`
	Start  time.Duration `yaml:"start"`
	Stop   time.Duration `yaml:"stop"`
	Upload time.Duration `yaml:"upload"`
}

// VMIDRange is the range of VMIDs that is reserved for numaform.
type VMIDRange struct {
	Lower fleet.VMID `yaml:"lower"`
	Upper fleet.VMID `yaml:"upper"`
}

// Engine says which OpenTofu or Terraform to run.
type Engine struct {
	// Binary is tofu, terraform or a path; empty means tofu, then terraform.
	Binary string `yaml:"binary"`
	// Version is a constraint such as ">= 1.8".
	Version string `yaml:"version"`
	// PluginDir is a filesystem mirror of providers; empty means the registry.
	PluginDir string `yaml:"plugin_dir"`
}

// Fleet says where the desired state and Terraform's states are kept.
type Fleet struct {
	Dir     string  `yaml:"dir"`
	Backend Backend `yaml:"backend"`
}

// Backend is Terraform's backend for all states.
type Backend struct {
	Type   string            `yaml:"type"`
	Config map[string]string `yaml:"config"`
}

func defaults() Config {
	return Config{
		Engine: Engine{Version: ">= 1.8"},
		Fleet:  Fleet{Dir: "fleet", Backend: Backend{Type: "local"}},
	}
}

func (c *Cluster) setDefaults() {
	for _, t := range []struct {
		value    *time.Duration
		fallback time.Duration
	}{
		{&c.Timeouts.Clone, 10 * time.Minute},
		{&c.Timeouts.Start, 2 * time.Minute},
		{&c.Timeouts.Stop, 2 * time.Minute},
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
