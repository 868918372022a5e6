package pvesim

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/simprogram"
	"github.com/numaform/numaform/topology"
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
	Hosts []topology.Host `json:"-"`
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
	// Attach starts programs that run on the simulated hosts but are not part of Proxmox.
	// New calls it last, and Close closes its result before the server. It may be nil.
	Attach func(*Server) (io.Closer, error) `json:"-"`
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
	// LockTimeout is how long a request waits for a guest's lock; 0 means 10 s.
	LockTimeout time.Duration
	// QEMU runs each started VM as a process of QEMU; nil means that VMs have no processes.
	QEMU *QEMU
}

// QEMU configures the processes of VMs.
type QEMU struct {
	// Image is the disk image of all templates, in qcow2.
	Image string
	// Dir is the directory for disks, sockets and serial logs, with a subdirectory for each
	// VM. Its path must be short, because socket paths are limited in length.
	Dir string
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

// TagAccess contains the datacenter's options for tags. They apply to users without
// Sys.Modify on / (pve-guest-common 6.0.2, PVE/GuestHelpers.pm:271-347; pve-cluster 9.1.6,
// PVE/DataCenterConfig.pm:321-350, 527-541).
type TagAccess struct {
	// Allow selects the tags that may be added and removed: none, list, existing or free,
	// the default.
	Allow string
	// List contains the tags that Allow permits if it is list or existing.
	List []string
	// Registered are the tags that require Sys.Modify regardless of Allow.
	Registered []string
}

// json returns the cluster in the program's format.
func (c Config) json(hook func(simprogram.Hook) string) (any, error) {
	if len(c.Tokens) == 0 {
		c = c.WithToken(DefaultToken, DefaultTokenSecret)
	}
	program := struct {
		Config
		Hosts    []host
		PowerURL string
	}{Config: c}
	for i := range c.Hosts {
		h := host{Host: c.Hosts[i]}
		for _, g := range c.Hosts[i].Guests {
			h.Guests = append(h.Guests, guest{Guest: g, Description: marker(g)})
		}
		program.Hosts = append(program.Hosts, h)
	}
	if c.OnPower != nil {
		program.PowerURL = hook(simprogram.Ask(func(_ context.Context, event PowerEvent) any {
			c.OnPower(event)
			return nil
		}))
	}
	return program, nil
}

// host and guest are a host and a guest in the program's format. They contain Proxmox's raw
// strings, not the values that numaform parses from them.
type host struct {
	topology.Host
	Guests []guest `json:"guests,omitempty"`
}

type guest struct {
	topology.Guest
	Description string `json:"description,omitempty"`
}

func marker(g topology.Guest) string {
	if g.ClusterID == "" {
		return ""
	}
	return fleet.Marker{ClusterID: g.ClusterID, Key: fleet.Key(g.Key)}.String()
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

// isoStorages returns the names of the storages for ISO files. A host that lists no
// storages has "local".
func (c Config) isoStorages() []string {
	var names []string
	for i := range c.Hosts {
		if len(c.Hosts[i].Storages) == 0 {
			names = append(names, "local")
		}
		for _, st := range c.Hosts[i].Storages {
			if slices.Contains(st.Content, "iso") {
				names = append(names, st.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
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
