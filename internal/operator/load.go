package operator

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-version"
	"go.yaml.in/yaml/v3"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/ipam"
	"github.com/numaform/numaform/topology"
)

// Load reads numaform.yaml at path and the NUMAFORM_… variables of environ (KEY=value, as
// from os.Environ), which override the file, and sets defaults. If path is DefaultFile and
// does not exist, the variables of the clusters replace it. The error contains every
// mistake in the file's YAML and in the variables or, without any, every mistake in the
// values. A variable with the prefix NUMAFORM_ that corresponds to no key is an error,
// unless others lists it, such as the variables of flags. Load reads no secrets: a dry run
// on a recorded snapshot needs none.
func Load(path string, environ []string, others ...string) (*Config, error) {
	text, err := os.ReadFile(path)
	fix := "set its path with --config, or create one with numaform init"
	if path == DefaultFile {
		fix = "change to its directory, " + fix
	}
	clusters := clustersIn(environ)
	fromEnvironment := errors.Is(err, fs.ErrNotExist) && path == DefaultFile && clusters > 0
	if err != nil && !fromEnvironment {
		return nil, fmt.Errorf("reading the configuration: %w: %s", err, readFix(err, fix))
	}
	config := Config{
		Intervals: Intervals{Update: 30 * time.Second, Full: 10 * time.Minute, Lease: 10 * time.Second},
		Engine:    Engine{Version: ">= 1.8"},
		Fleet:     Fleet{Dir: "fleet", Git: newGit(), Backend: Backend{Type: "local"}},

		Notifications: Notifications{Interval: time.Minute, Repeat: 4 * time.Hour},
	}
	var mistakes []error
	if fromEnvironment {
		for range clusters {
			config.Clusters = append(config.Clusters, newCluster())
		}
	} else if err := decode(text, &config); err != nil {
		if other := otherFile(text); other != "" {
			return nil, fmt.Errorf("reading %s: it is %s, and numaform.yaml with --config", path, other)
		}
		mistakes = append(mistakes, fmt.Errorf("reading %s: %w", path, err))
		for len(config.Clusters) < clusters { // the file may have clusters that could not be read
			config.Clusters = append(config.Clusters, newCluster())
		}
	}
	mistakes = append(mistakes, config.Notifications.checkFile()...)
	mistakes = append(mistakes, applyEnvironment(&config, environ, others))
	if err := errors.Join(mistakes...); err != nil {
		return nil, err
	}
	config.resolvePaths(filepath.Dir(path))
	config.setStateDir(environ)
	err = config.check()
	switch {
	case err == nil:
		return &config, nil
	case fromEnvironment:
		return nil, fmt.Errorf("reading the configuration: %s does not exist: %s; the NUMAFORM_ variables do not replace it: %s", path, fix, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil, fmt.Errorf("reading %s: %w", path, err)
}

// DefaultFile is the path of the configuration if none is given. It may be missing if
// variables configure the clusters.
const DefaultFile = "numaform.yaml"

// otherFile describes a manifest or a kubeconfig that was given as the configuration, with
// the flag for it, or returns "".
func otherFile(text []byte) string {
	var kind struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
	}
	switch err := yaml.Unmarshal(text, &kind); {
	case err != nil || kind.Kind == "":
		return ""
	case kind.Kind == "Config" && kind.APIVersion == "v1":
		return "a kubeconfig: pass it with --kubeconfig"
	}
	return fmt.Sprintf("a manifest (%s): pass it with -f", kind.Kind)
}

// resolvePaths resolves the configuration's file names relative to dir.
func (c *Config) resolvePaths(dir string) {
	paths := []*string{&c.TopologyFile, &c.InstanceTypesFile, &c.StateDir, &c.History.KeyFile, &c.History.CheckpointDir, &c.Fleet.Dir, &c.Fleet.Git.SSHKeyFile, &c.Fleet.Git.CAFile, &c.Engine.PluginDir, &c.Join.CAFile, &c.Approval.AllowedSignersFile}
	for i := range c.Policy.Files {
		paths = append(paths, &c.Policy.Files[i])
	}
	if strings.Contains(c.Engine.Binary, "/") {
		c.Engine.Binary = resolve(dir, c.Engine.Binary)
		if !strings.Contains(c.Engine.Binary, "/") {
			c.Engine.Binary = "./" + c.Engine.Binary // a bare name would be searched for in PATH
		}
	}
	for hash, modules := range c.Modules.Allow {
		c.Modules.Allow[hash] = resolve(dir, modules)
	}
	for i := range c.Clusters {
		cluster := &c.Clusters[i]
		paths = append(paths, &cluster.CAFile, &cluster.TokenIDFile, &cluster.TokenSecretFile, &cluster.PasswordFile)
		for host, file := range cluster.Machines {
			cluster.Machines[host] = resolve(dir, file)
		}
	}
	for i := range c.Notifications.Targets {
		target := &c.Notifications.Targets[i]
		paths = append(paths, &target.URLFile, &target.CAFile, &target.TokenFile, &target.PasswordFile)
	}
	for _, path := range paths {
		*path = resolve(dir, *path)
	}
	if backend := c.Fleet.Backend; backend.Type == "local" && backend.Config["path"] != "" {
		backend.Config["path"] = resolve(dir, backend.Config["path"])
	}
}

func resolve(dir, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// check returns all errors in the configuration.
func (c *Config) check() error {
	var mistakes []error
	if err := fleet.CheckClusterID(c.ClusterID); err != nil {
		mistakes = append(mistakes, err)
	}
	if len(c.Clusters) == 0 {
		mistakes = append(mistakes, errors.New("clusters: must contain at least one Proxmox cluster with region and url"))
	}
	if c.Engine.Concurrency < 0 {
		mistakes = append(mistakes, fmt.Errorf("engine.concurrency: %d: must be positive, or 0 for as many engines as fit in memory", c.Engine.Concurrency))
	}
	mistakes = append(mistakes, c.Engine.checkVersion(), c.Join.check())
	mistakes = append(mistakes, checkPrices(c.Prices)...)
	mistakes = append(mistakes, c.Intervals.check()...)
	mistakes = append(mistakes, c.Fleet.check()...)
	mistakes = append(mistakes, c.Policy.Limits.check()...)
	mistakes = append(mistakes, c.Notifications.check()...)
	mistakes = append(mistakes, c.Approval.check()...)
	for i := range c.Clusters {
		for _, err := range append(c.Clusters[i].check(), c.clash(i)...) {
			mistakes = append(mistakes, fmt.Errorf("clusters[%d]: %w", i, err))
		}
	}
	return errors.Join(mistakes...)
}

// shortVersion matches a version without a patch number and without an operator.
var shortVersion = regexp.MustCompile(`^\s*v?[0-9]+(\.[0-9]+)?\s*$`)

// checkVersion returns an error for a version that is not a constraint, or that matches
// only the first release of a series.
func (e *Engine) checkVersion() error {
	if e.Version == "" {
		return nil
	}
	if _, err := version.NewConstraint(e.Version); err != nil {
		return fmt.Errorf("engine.version %q: must be a constraint such as \">= 1.8\"", e.Version)
	}
	if shortVersion.MatchString(e.Version) {
		return fmt.Errorf("engine.version %q: without an operator, it matches only one release: set \">= %s\"", e.Version, strings.Trim(e.Version, " v"))
	}
	return nil
}

// check returns the errors in the addresses.
func (j *Join) check() error {
	var mistakes []error
	if server, err := url.Parse(j.APIServer); j.APIServer != "" && (err != nil || server.Scheme != "https" || server.Host == "") {
		mistakes = append(mistakes, fmt.Errorf("join.api_server %q: must be a URL such as https://10.0.0.10:6443", shown(j.APIServer)))
	}
	for i, address := range j.ClusterDNS {
		if net.ParseIP(address) == nil {
			mistakes = append(mistakes, fmt.Errorf("join.cluster_dns[%d] %q: must be an IP address such as 10.96.0.10", i, address))
		}
	}
	return errors.Join(mistakes...)
}

// clash returns an error for each value that a cluster shares with an earlier one, but
// must not share.
func (c *Config) clash(i int) []error {
	var mistakes []error
	cluster := &c.Clusters[i]
	for j := range c.Clusters[:i] {
		other := &c.Clusters[j]
		if strings.EqualFold(string(cluster.Region), string(other.Region)) {
			mistakes = append(mistakes, fmt.Errorf("duplicate region %q: give each cluster a unique region, which differs from %q not only in upper and lower case", cluster.Region, other.Region))
			continue
		}
		if a, b := cluster.VMIDRange, other.VMIDRange; a.Lower <= b.Upper && b.Lower <= a.Upper {
			mistakes = append(mistakes, fmt.Errorf("vmid_range %d to %d overlaps %d to %d of region %s: give each region its own range, because node names contain the VMID",
				a.Lower, a.Upper, b.Lower, b.Upper, other.Region))
		}
		mine, _ := cluster.addressPools()
		others, _ := other.addressPools()
		for n := range mine {
			for m := range others {
				if err := poolClash("address_pools", &mine[n], &others[m], other.Region); err != nil {
					mistakes = append(mistakes, err)
				}
			}
		}
		for _, address := range cluster.addresses() {
			same := func(a string) bool { return endpointOf(a) == endpointOf(address) }
			if endpointOf(address) != "" && slices.ContainsFunc(other.addresses(), same) {
				mistakes = append(mistakes, fmt.Errorf("url %q is also in region %s: a Proxmox cluster must be one region: remove the URL from one of the two", address, other.Region))
			}
		}
	}
	return mistakes
}

// regionName matches values of labels.
var regionName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

func (c *Cluster) check() []error {
	var mistakes []error
	switch name := string(c.Region); {
	case !regionName.MatchString(name):
		mistakes = append(mistakes, fmt.Errorf("region %q: must be 1 to 63 characters of A-Z, a-z, 0-9, -, _ and ., and begin and end with a letter or digit, because it becomes a label and a directory name", name))
	case strings.EqualFold(name, "modules") || strings.Contains(name, ".."):
		mistakes = append(mistakes, fmt.Errorf("region %q: must not be modules or contain \"..\", because it is the name of a directory: rename the region", name))
	}
	if len(c.addresses()) == 0 {
		mistakes = append(mistakes, errors.New(`url "": must be https://HOST:8006/api2/json`))
	}
	for _, address := range c.addresses() {
		switch parsed, err := url.Parse(address); {
		case err == nil && parsed.User != nil:
			mistakes = append(mistakes, fmt.Errorf("url %q: must not contain a user or password: remove them, and set token_id and token_secret_file", shown(address)))
		case endpointOf(address) == "":
			mistakes = append(mistakes, fmt.Errorf("url %q: must be https://HOST:8006/api2/json", shown(address)))
		}
	}
	if err := c.VMIDRange.Check(); err != nil {
		mistakes = append(mistakes, err)
	}
	if templates := c.TemplateVMIDRange; templates != (fleet.VMIDRange{}) {
		if err := templates.Check(); err != nil {
			mistakes = append(mistakes, fmt.Errorf("template_%w", err))
		}
		if nodes := c.VMIDRange; templates.Lower <= nodes.Upper && nodes.Lower <= templates.Upper {
			mistakes = append(mistakes, fmt.Errorf("template_vmid_range %d to %d overlaps vmid_range %d to %d: reserve different VMIDs for templates and nodes",
				templates.Lower, templates.Upper, nodes.Lower, nodes.Upper))
		}
	}
	_, poolMistakes := c.addressPools()
	mistakes = append(mistakes, poolMistakes...)
	walkKeys(reflect.ValueOf(c.Timeouts), "timeouts", func(path string, value reflect.Value) {
		if timeout := time.Duration(value.Int()); timeout <= 0 {
			mistakes = append(mistakes, fmt.Errorf("%s: %s: must be %s", path, timeout, positiveDuration))
		}
	})
	return mistakes
}

// addressPools returns the cluster's address pools, or all mistakes in them.
func (c *Cluster) addressPools() (pools []topology.AddressPool, mistakes []error) {
	for i := range c.AddressPools {
		pool, err := ipam.Parse(c.AddressPools[i])
		if err != nil {
			for mistake := range strings.SplitSeq(err.Error(), "\n") {
				mistakes = append(mistakes, fmt.Errorf("address_pools[%d]: %s", i, mistake))
			}
			continue
		}
		for j := range pools {
			if err := poolClash(fmt.Sprintf("address_pools[%d]", i), &pool, &pools[j], c.Region); err != nil {
				mistakes = append(mistakes, err)
			}
			if pools[j].Name == pool.Name {
				mistakes = append(mistakes, fmt.Errorf("address_pools[%d]: duplicate name %q: rename one of the two pools", i, pool.Name))
			}
		}
		pools = append(pools, pool)
	}
	return pools, mistakes
}

// poolClash returns an error if a pool has an address of another pool, which is in region.
func poolClash(path string, pool, other *topology.AddressPool, region topology.RegionName) error {
	ip, clash := ipam.Overlap(pool, other)
	if !clash {
		return nil
	}
	return fmt.Errorf("%s: pool %q overlaps pool %q of region %s: both contain %s: give them ranges that do not overlap, because no two nodes may have the same address",
		path, pool.Name, other.Name, region, ip)
}

// shown returns an address without its user and password, if it contains them.
func shown(address string) string {
	if before, after, ok := strings.Cut(address, "@"); ok {
		scheme, _, _ := strings.Cut(before, "//")
		return scheme + "//…@" + after
	}
	return address
}

// addresses returns the URLs of the cluster's hosts in the order in which they are tried.
func (c *Cluster) addresses() []string {
	if c.URL == "" {
		return c.URLs
	}
	return append([]string{c.URL}, c.URLs...)
}

// endpointOf returns a URL without a path, in the provider's form, or "" if it is not the
// URL of a Proxmox host.
func endpointOf(address string) string {
	endpoint, err := url.Parse(address)
	if err != nil || endpoint.Scheme != "https" || endpoint.Host == "" || endpoint.User != nil {
		return ""
	}
	if _, err := strconv.ParseUint(endpoint.Port(), 10, 16); err != nil && endpoint.Port() != "" {
		return ""
	}
	return endpoint.Scheme + "://" + endpoint.Host + "/"
}

// Endpoint returns the URL that is tried first, without a path.
func (c *Cluster) Endpoint() string {
	address := slices.Concat(c.addresses(), []string{""})[0]
	return cmp.Or(endpointOf(address), address)
}
