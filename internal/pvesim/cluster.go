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

// The credentials that a Config without any gets.
const (
	DefaultToken        = "numaform@pve!scaler"                  //nolint:gosec // guards nothing
	DefaultTokenSecret  = "5f7c1a52-0d6e-4c36-9d2f-6f5b8a1e7c40" //nolint:gosec // guards nothing
	DefaultRootPassword = "pvesim"
)

// Config describes a cluster. Only Hosts is needed.
type Config struct {
	// Name is the Proxmox cluster's name; empty means the hosts' region.
	Name string
	// Version is the Proxmox VE version, such as "9.2" (the default) or "8.4". It
	// decides which privileges there are, and what they are for.
	Version string
	// Hosts are the Proxmox nodes. A host without storages gets "local" and
	// "local-lvm". Hosts are online whatever Host.Online says, unless Problem is set.
	Hosts []topology.Host `json:"-"`
	// Users are known besides root@pam.
	Users []User
	// RootPassword is root@pam's; empty means DefaultRootPassword.
	RootPassword string
	// Tokens, Roles and ACL are who may do what. Without tokens, DefaultToken is
	// made, with what numaform needs and no more.
	Tokens []Token
	Roles  []Role
	ACL    []ACL
	Pools  []string
	Delays Delays
	// Firewall is whether the firewall of the datacenter is on, without which that of
	// no guest is.
	Firewall bool
	// GuestAgents makes running VMs answer through their guest agent; see
	// Server.SetGuestAgents.
	GuestAgents bool
	// Attach starts what runs on the simulated hosts and is no part of Proxmox, as the
	// last step of New. It is closed before the server. Nil means nothing.
	Attach func(*Server) (io.Closer, error) `json:"-"`
	// Tags are the datacenter's options for tags.
	Tags TagAccess
	// CPUModels are the names of custom CPU models, without "custom-".
	CPUModels []string
	// Images are what hosts find at URLs; any other is not found there. Nothing is ever
	// fetched.
	Images map[string]Image
	// OnPower is told of each guest that started, stopped or went, after that
	// happened and before its task ends, for one guest in order. It must not block.
	OnPower func(PowerEvent) `json:"-"`
	// LockTimeout is how long a request waits for a guest's lock; 0 means 10 s.
	LockTimeout time.Duration
}

// Image is a file on a web server.
type Image struct {
	// Data is the file, of which sizes and checksums are taken.
	Data []byte
	// DiskMiB is the size of the disk in it; 0 means that of Data.
	DiskMiB int64
}

// User is a user with a password.
type User struct {
	ID       string // user@realm
	Password string
}

// Token is an API token of a user, who is made if unknown.
type Token struct {
	ID     string // user@realm!name
	Secret string
	// FullPrivileges lets the token do what its user may; otherwise it needs an
	// ACL of its own besides its user's.
	FullPrivileges bool
	// Expire is when the token ends; the zero time means never.
	Expire time.Time
}

// Role names a set of privileges.
type Role struct {
	Name       string
	Privileges []string
}

// ACL gives a role on a path, and below it, to a user or token.
type ACL struct {
	Path    string
	Subject string // user@realm or user@realm!token
	Role    string
	// NoPropagate keeps the role to the path itself.
	NoPropagate bool
}

// Delays is how long tasks take; 0 means 5 ms.
type Delays struct {
	Clone, Start, Stop, Resize, Destroy, Upload time.Duration
}

// TagAccess is what the datacenter's options say of tags. It binds who lacks Sys.Modify
// on / (pve-guest-common 6.0.2, PVE/GuestHelpers.pm:271-347; pve-cluster 9.1.6,
// PVE/DataCenterConfig.pm:321-350, 527-541).
type TagAccess struct {
	// Allow is which tags may be set and taken away: none, list, existing or free, the default.
	Allow string
	// List are the tags of list and existing.
	List []string
	// Registered are the tags that take Sys.Modify, whatever else is allowed.
	Registered []string
}

// json returns the cluster as the program reads it.
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

// host and guest are a host and a guest as the program reads them: it knows the texts in
// Proxmox, and none of what numaform reads from them.
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

// WithToken returns the config with a token that has what numaform needs and no
// more: the roles of LeastPrivilege on the paths that they belong to.
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

// isoStorages returns the names of the storages that take ISO files, which is "local" of
// hosts without any in their description.
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

// LeastPrivilege returns the roles of DefaultToken: what numaform needs of a
// Proxmox VE. NumaformSeed belongs on the storages that hold seeds: removing an
// ISO takes Datastore.Allocate. Asking guest agents is left out on purpose: with
// it, the provider waits 15 minutes for the agent of each running VM it imports.
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
