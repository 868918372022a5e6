package operator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/confine"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/state"
	"github.com/numaform/numaform/topology"
)

// Connect returns a client for each Proxmox cluster of the configuration. It reads
// secrets, CAs and collected topologies, but makes no requests.
func (c *Config) Connect() (map[topology.RegionName]*proxmox.Client, error) {
	return c.ConnectObserved(func(topology.RegionName) proxmox.Observe { return nil })
}

// ConnectObserved is like Connect, with an observer for each region's requests.
func (c *Config) ConnectObserved(observe func(topology.RegionName) proxmox.Observe) (map[topology.RegionName]*proxmox.Client, error) {
	if err := c.ReadSecrets(); err != nil {
		return nil, err
	}
	clients := map[topology.RegionName]*proxmox.Client{}
	var mistakes []error
	for i := range c.Clusters {
		client, err := c.Clusters[i].connect(observe(c.Clusters[i].Region))
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("cluster %s: %w", c.Clusters[i].Region, err))
			continue
		}
		clients[c.Clusters[i].Region] = client
	}
	return clients, errors.Join(mistakes...)
}

func (c *Cluster) connect(observe proxmox.Observe) (*proxmox.Client, error) {
	config := proxmox.Config{
		Region:      c.Region,
		URL:         c.addresses()[0],
		URLs:        c.addresses()[1:],
		Insecure:    c.Insecure,
		TokenID:     c.TokenID,
		TokenSecret: c.TokenSecret,
		Username:    c.Username,
		Password:    c.Password,
		Reread:      c.reread(),
		Hosts:       c.Hosts,
		Machines:    map[topology.HostName]topology.Machine{},
		Observe:     observe,
		Addresses:   len(c.AddressPools) > 0,
	}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading ca_file: %w: %s", err, readFix(err, "copy /etc/pve/pve-root-ca.pem from a host"))
		}
		config.CA = pem
	}
	for host, path := range c.Machines {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading the topology of host %s: %w: %s", host, err, readFix(err, "correct its path under machines"))
		}
		if config.Machines[host], err = topology.ParseCollected(text); err != nil {
			return nil, fmt.Errorf("reading %s: %w: write it with `numaform topology collect` on host %s", path, err, host)
		}
	}
	return proxmox.New(config)
}

// Regions returns the scaler's configuration of each cluster.
func (c *Config) Regions() []scaler.Region {
	regions := make([]scaler.Region, len(c.Clusters))
	for i := range c.Clusters {
		cluster := &c.Clusters[i]
		endpoint := cluster.Endpoint()
		if len(cluster.addresses()) > 1 {
			endpoint = "" // the engine's environment contains the one that responds
		}
		regions[i] = scaler.Region{
			Name:          cluster.Region,
			Endpoint:      endpoint,
			Insecure:      cluster.Insecure,
			CAFile:        cluster.CAFile,
			VMIDs:         cluster.VMIDRange,
			TemplateVMIDs: cluster.TemplateVMIDRange,
			WaitDelay:     max(state.DefaultWaitDelay, cluster.Timeouts.Clone+cluster.Timeouts.Start, cluster.Timeouts.Delete),
			Timeouts:      cluster.Timeouts.ofProvider(),
		}
	}
	return regions
}

// InstanceTypes reads the configured instance types, or returns the generated ones if no
// file is configured.
func (c *Config) InstanceTypes() ([]scheduling.InstanceType, error) {
	path := c.InstanceTypesFile
	if path == "" {
		return scheduling.DefaultInstanceTypes(), nil // once, not whenever they are used
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading instance_types_file: %w: %s", err, readFix(err, "correct its path, or remove the key"))
	}
	types, err := scheduling.ParseInstanceTypes(text)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return types, nil
}

// imageProviders is the file in which an image lists its providers. tools/image writes it.
const imageProviders = "/usr/share/numaform/providers.json"

// ScalerConfig returns the configuration of the fleet's scaler, except for the fields that
// only the caller can set, such as Drained and Notice. If engine is false, the scaler
// cannot plan. ScalerConfig makes no requests.
func (c *Config) ScalerConfig(ctx context.Context, environ []string, cluster Kubeconfig, engine bool) (*scaler.Config, error) {
	config := &scaler.Config{
		ClusterID:  c.ClusterID,
		Dir:        c.FleetDir(),
		Backend:    fleet.Backend{Type: c.Fleet.Backend.Type, Config: c.Fleet.Backend.Config},
		Encryption: c.Fleet.Backend.Encryption,
		PluginDir:  c.Engine.PluginDir,
		Engines:    c.Engine.engines,
	}
	var err error
	if c.StateDir != "" {
		if config.StateDir, err = c.StatePath(); err != nil {
			return nil, err
		}
	}
	if !c.Fleet.Git.enabled() && c.Fleet.ConfigMap == (ConfigMap{}) {
		if config.Place, err = filepath.Abs(c.FleetDir()); err != nil {
			return nil, fmt.Errorf("finding the fleet %s: %w", c.FleetDir(), err)
		}
	}
	if config.Release, err = c.release(); err != nil {
		return nil, err
	}
	if engine {
		// Providers are trusted by a record outside the fleet.
		config.Providers = &state.Providers{Image: imageProviders, Pinned: c.Engine.ProviderHashes}
		if record, err := c.StatePath("providers.json"); err == nil { // otherwise a provider that must be recorded is refused
			config.Providers.Record = record
			config.Providers.Dir = filepath.Join(filepath.Dir(record), "providers")
		}
		if config.Engine, err = state.FindEngine(ctx, state.EngineConfig{Binary: c.Engine.Binary, Version: c.Engine.Version, Helper: helper()}); err != nil {
			return nil, err
		}
		if config.Kubeconfig, err = c.backendLogin(environ, cluster); err != nil {
			return nil, err
		}
	}
	if config.Rules, err = c.Rules(); err != nil {
		return nil, err
	}
	config.Store, err = c.OpenStore(environ, cluster)
	if err != nil {
		return nil, err
	}
	return config, nil
}

// ReadSecrets reads the secrets that are configured as files.
func (c *Config) ReadSecrets() error {
	var mistakes []error
	for i := range c.Clusters {
		if err := c.Clusters[i].readSecrets(); err != nil {
			mistakes = append(mistakes, fmt.Errorf("cluster %s: %w", c.Clusters[i].Region, err))
		}
	}
	return errors.Join(mistakes...)
}

// secret is a value that may be configured as a file instead.
type secret struct {
	key   string
	value *string
	file  string
}

func (c *Cluster) secrets() []secret {
	return []secret{
		{key: "token_id", value: &c.TokenID, file: c.TokenIDFile},
		{key: "token_secret", value: &c.TokenSecret, file: c.TokenSecretFile},
		{key: "password", value: &c.Password, file: c.PasswordFile},
	}
}

// readSecrets reads the cluster's secrets that are configured as files.
func (c *Cluster) readSecrets() error {
	for _, s := range c.secrets() {
		if s.file == "" {
			continue
		}
		if *s.value != "" {
			return fmt.Errorf("%s and %s_file are both set: remove one of them", s.key, s.key)
		}
		text, err := os.ReadFile(s.file)
		if err != nil {
			return fmt.Errorf("reading %s_file: %w: %s", s.key, err, fileFix(err, s.key))
		}
		if *s.value = strings.TrimSpace(string(text)); *s.value == "" {
			lost := ""
			if s.key == "token_secret" && proxmox.IsTokenID(c.TokenID) {
				lost = fmt.Sprintf("; Proxmox shows it only once: if it is lost, create the token again on a host, and write its value into the file: %s && %s",
					proxmox.RemoveToken(c.TokenID), proxmox.AddToken(c.TokenID))
			}
			return fmt.Errorf("%s_file %s is empty: write the %s into it%s", s.key, s.file, s.key, lost)
		}
	}
	return nil
}

// fileFix returns the fix for an error of the file with a key's value.
func fileFix(err error, key string) string {
	return readFix(err, fmt.Sprintf("write the %s into it, or correct the path", key))
}

// readFix returns the fix for an error of reading a file: how to get access if this user
// lacks it, or else the text in otherwise.
func readFix(err error, otherwise string) string {
	if errors.Is(err, fs.ErrPermission) {
		return "give the user that runs numaform read access to the file and its directory"
	}
	return otherwise
}

// reread returns a function that reads the cluster's credential again, because files may
// change while numaform runs; nil if it is not in a file.
func (c *Cluster) reread() func() (proxmox.Credential, error) {
	files := *c
	inFile := false
	for _, s := range files.secrets() {
		if s.file != "" {
			inFile = true
			*s.value = ""
		}
	}
	if !inFile {
		return nil
	}
	return func() (proxmox.Credential, error) {
		now := files
		if err := now.readSecrets(); err != nil {
			return proxmox.Credential{}, err
		}
		return proxmox.Credential{TokenID: now.TokenID, TokenSecret: now.TokenSecret, Username: now.Username, Password: now.Password}, nil
	}
}

// program is the main package that can serve as the helper of internal/confine.
const program = "github.com/numaform/numaform/cmd/numaform"

// helper returns the path of the helper that confines the engine: this program, if it is
// numaform and the kernel supports Landlock; otherwise "".
func helper() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Path != program || confine.Version() == 0 {
		return ""
	}
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	return path
}
