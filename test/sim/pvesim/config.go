package pvesim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/clock"
)

// The credentials of a Config that sets none.
const (
	DefaultToken        = "numaform@pve!scaler"                  //nolint:gosec // guards nothing
	DefaultTokenSecret  = "5f7c1a52-0d6e-4c36-9d2f-6f5b8a1e7c40" //nolint:gosec // guards nothing
	DefaultRootPassword = "pvesim"
)

// Config describes a cluster. Only Hosts is required.
type Config struct {
	// Name is the Proxmox cluster's name; empty means the hosts' region.
	Name string
	// Version is the Proxmox VE version, such as "9.2" (the default) or "8.4". It
	// determines which privileges exist, and what they allow.
	Version string
	// Hosts are the Proxmox nodes. A host without storages gets "local" and "local-lvm".
	// Hosts are online regardless of Host.Online, unless Problem is set.
	Hosts []Host
	// Users exist in addition to root@pam.
	Users []User
	// RootPassword is the password of root@pam; empty means DefaultRootPassword.
	RootPassword string
	// Tokens, Roles and ACL define permissions. Without tokens, DefaultToken is created
	// with the least privileges that numaform needs.
	Tokens []Token
	Roles  []Role
	ACL    []ACL
	Pools  []string
	Delays Delays
	// Firewall enables the firewall of the datacenter. Without it, no guest's firewall
	// takes effect.
	Firewall bool
	// GuestAgents makes the guest agents of running VMs respond; see Server.SetGuestAgents.
	GuestAgents bool
	// Tags are the datacenter's tag options.
	Tags TagAccess
	// CPUModels are the names of custom CPU models, without "custom-".
	CPUModels []string
	// Images are the files that hosts can download, by URL; other URLs do not exist. The
	// simulator never fetches anything.
	Images map[string]Image
	// OnPower is called each time that a guest has started, has stopped or was removed,
	// before the task of the change ends. The events of a guest are in order. OnPower must
	// not block.
	OnPower func(PowerEvent) `json:"-"`
	// Hypervisor runs the processes of VMs; nil means that VMs have no processes. Its owner
	// stops the VMs that still run after Close.
	Hypervisor Hypervisor `json:"-"`
	// LockTimeout is how long a request waits for a guest's lock; 0 means 10 s.
	LockTimeout time.Duration
	// Clock is the clock of tasks and tickets; nil means the real clock.
	Clock clock.Clock `json:"-"`
}

// Image is a file on a web server.
type Image struct {
	// Data is the content, from which size and checksums are computed.
	Data []byte
	// DiskMiB is the virtual size of the disk; 0 means the size of Data.
	DiskMiB int64
}

// User is a user with a password.
type User struct {
	ID       string // user@realm
	Password string
}

// Token is an API token of a user, who is created if unknown.
type Token struct {
	ID     string // user@realm!name
	Secret string
	// FullPrivileges gives the token all privileges of its user; otherwise it also needs
	// its own ACL.
	FullPrivileges bool
	// Expire is the expiry time of the token; the zero time means never.
	Expire time.Time
}

// Role names a set of privileges.
type Role struct {
	Name       string
	Privileges []string
}

// ACL assigns a role to a user or token, on a path and below it.
type ACL struct {
	Path    string
	Subject string // user@realm or user@realm!token
	Role    string
	// NoPropagate limits the role to the path itself.
	NoPropagate bool
}

// Delays are the durations of tasks; 0 means 5 ms.
type Delays struct {
	Clone, Start, Stop, Resize, Destroy, Upload time.Duration
}

// withDefaults fills in missing values, and returns an error for invalid values.
func (c Config) withDefaults() (Config, error) {
	if len(c.Hosts) == 0 {
		return c, fmt.Errorf("reading config: no hosts: add at least one")
	}
	var err error
	if c.Hosts, err = completeHosts(c.Hosts); err != nil {
		return c, err
	}
	if c.Name == "" {
		c.Name = c.Hosts[0].Region
	}
	if c.Version == "" {
		c.Version = "9.2"
	}
	if c.major() != 8 && c.major() != 9 {
		return c, fmt.Errorf("reading config: version %q: must be 8.x or 9.x", c.Version)
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.RootPassword == "" {
		c.RootPassword = DefaultRootPassword
	}
	if c.LockTimeout == 0 {
		c.LockTimeout = 10 * time.Second
	}
	c.Delays = c.Delays.withDefaults()
	if len(c.Tokens) == 0 {
		c = c.WithToken(DefaultToken, DefaultTokenSecret)
	}
	return c, nil
}

// completeHosts fills in missing storages and NUMA nodes. It returns an error for an
// invalid or duplicate host name.
func completeHosts(given []Host) ([]Host, error) {
	hosts := slices.Clone(given)
	seen := map[string]bool{}
	for i := range hosts {
		h := &hosts[i]
		if verify := verifyNodeName(h.Name); verify != nil || seen[h.Name] {
			return nil, fmt.Errorf("reading config: host name %q: must be unique and consist of letters, digits and dashes", h.Name)
		}
		seen[h.Name] = true
		if len(h.Storages) == 0 {
			h.Storages = defaultStorages()
		}
		if len(h.NUMANodes) == 0 {
			h.NUMANodes = []NUMANode{{ID: 0, MemoryMiB: h.MemoryMiB}}
		}
	}
	return hosts, nil
}

// major returns 8 or 9, or 0 for other versions.
func (c Config) major() int {
	switch {
	case c.Version == "9" || strings.HasPrefix(c.Version, "9."):
		return 9
	case c.Version == "8" || strings.HasPrefix(c.Version, "8."):
		return 8
	}
	return 0
}

// from92 reports whether the version is 9.2 or later.
func (c Config) from92() bool {
	_, rest, _ := strings.Cut(c.Version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	return c.major() == 9 && number(minor) >= 2
}

func (d Delays) withDefaults() Delays {
	for _, p := range []*time.Duration{&d.Clone, &d.Start, &d.Stop, &d.Resize, &d.Destroy, &d.Upload} {
		if *p == 0 {
			*p = 5 * time.Millisecond
		}
	}
	return d
}

// WithToken returns the config with a token that has the least privileges that numaform
// needs: the roles of LeastPrivilege on their paths.
func (c Config) WithToken(id, secret string) Config {
	c.Tokens = append(slices.Clone(c.Tokens), Token{ID: id, Secret: secret, FullPrivileges: true})
	c.Roles = slices.Clone(c.Roles)
	for _, role := range LeastPrivilege() {
		if !slices.ContainsFunc(c.Roles, func(r Role) bool { return r.Name == role.Name }) {
			c.Roles = append(c.Roles, role)
		}
	}
	user, _, _ := strings.Cut(id, "!")
	c.ACL = append(slices.Clone(c.ACL), ACL{Path: "/", Subject: user, Role: "NumaformHost", NoPropagate: true})
	grant := func(path, role string) { c.ACL = append(c.ACL, ACL{Path: path, Subject: user, Role: role}) }
	grant("/nodes", "NumaformHost")
	grant("/vms", "NumaformVM")
	grant("/pool", "NumaformPool")
	grant("/sdn/zones", "NumaformNet")
	grant("/storage", "NumaformDisk")
	for _, name := range c.isoStorages() {
		grant("/storage/"+name, "NumaformSeed")
	}
	return c
}

// isoStorages returns the names of the storages that accept ISO files.
func (c Config) isoStorages() []string {
	names := map[string]bool{}
	for i := range c.Hosts {
		storages := c.Hosts[i].Storages
		if len(storages) == 0 {
			storages = defaultStorages()
		}
		for _, st := range storages {
			if holds(st.Content, "iso") {
				names[st.Name] = true
			}
		}
	}
	return sortedKeys(names)
}

// LeastPrivilege returns the roles of DefaultToken: the privileges that numaform needs in
// Proxmox VE. Assign NumaformSeed on the storages for seeds: removing an ISO requires
// Datastore.Allocate. Access to guest agents is omitted on purpose: with it, the provider
// waits 15 minutes for the agent of each running VM that it imports.
func LeastPrivilege() []Role {
	vm := []string{
		"VM.Allocate", "VM.Audit", "VM.Clone", "VM.Config.CDROM", "VM.Config.CPU",
		"VM.Config.Disk", "VM.Config.HWType", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Options",
		"VM.PowerMgmt",
	}
	disk := []string{"Datastore.AllocateSpace", "Datastore.Audit"}
	return []Role{
		{Name: "NumaformVM", Privileges: vm},
		{Name: "NumaformDisk", Privileges: disk},
		{Name: "NumaformSeed", Privileges: append(disk, "Datastore.AllocateTemplate", "Datastore.Allocate")},
		{Name: "NumaformNet", Privileges: []string{"SDN.Use"}},
		{Name: "NumaformPool", Privileges: []string{"Pool.Audit"}},
		{Name: "NumaformHost", Privileges: []string{"Sys.Audit"}},
	}
}

func defaultStorages() []Storage {
	return []Storage{
		{Name: "local", Type: "dir", Active: true, Content: []string{"iso", "vztmpl", "import", "backup"}, TotalMiB: 100 << 10, FreeMiB: 90 << 10},
		{Name: "local-lvm", Type: "lvmthin", Active: true, Content: []string{"images", "rootdir"}, TotalMiB: 4 << 20, FreeMiB: 4 << 20},
	}
}

func holds(list []string, want string) bool { return slices.Contains(list, want) }
