package proxmox

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Role is a set of privileges that numaform's user needs together on some paths.
type Role struct {
	Name       string
	Privileges []string
}

// The names of the roles.
const (
	RoleVM    = "NumaformVM"
	RoleDisk  = "NumaformDisk"
	RoleSeed  = "NumaformSeed"
	RoleNet   = "NumaformNet"
	RolePool  = "NumaformPool"
	RoleHost  = "NumaformHost"
	RoleAudit = "NumaformAudit"
	RoleCPU   = "NumaformCPU"
)

// Roles returns the minimum that numaform needs on Proxmox VE 8 or 9. It deliberately
// omits the privileges for querying guest agents, whose names differ: with them, the
// provider waits 15 minutes for the agent of each running VM that it imports.
func Roles() []Role {
	disk := []string{"Datastore.AllocateSpace", "Datastore.Audit"}
	return []Role{
		{RoleVM, []string{
			"VM.Allocate", "VM.Audit", "VM.Clone", "VM.Config.CDROM", "VM.Config.CPU",
			"VM.Config.Disk", "VM.Config.HWType", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Options",
			"VM.PowerMgmt",
		}},
		{RoleDisk, disk},
		// Deleting an ISO image requires Datastore.Allocate. An entry on a storage
		// replaces the one on /storage, so its privileges are repeated.
		{RoleSeed, append(slices.Clone(disk), "Datastore.AllocateTemplate", "Datastore.Allocate")},
		{RoleNet, []string{"SDN.Use"}},
		{RolePool, []string{"Pool.Audit"}},
		{RoleHost, []string{"Sys.Audit"}},
		{RoleAudit, []string{"VM.Audit"}},
		{RoleCPU, []string{"Mapping.Use"}},
	}
}

// AgentPrivileges returns the privileges that make the provider wait for guest agents:
// VM.Monitor is Proxmox VE 8's, the others are 9's.
func AgentPrivileges() []string {
	return []string{"VM.Monitor", "VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted"}
}

func role(name string) Role {
	roles := Roles()
	return roles[slices.IndexFunc(roles, func(r Role) bool { return r.Name == name })]
}

// Reach defines where on a Proxmox cluster numaform may work. The zero value is all VMs
// and all storages, without seeds.
type Reach struct {
	// Pool is the resource pool of VMs and templates; empty means none.
	Pool string
	// Disks are the storages for VMs' disks; empty means all.
	Disks []string
	// Seeds are the storages for seeds.
	Seeds []string
	// CPUModels are the custom CPU models of VMs, without "custom-".
	CPUModels []string
}

// Grant is a role that numaform's user needs on a path.
type Grant struct {
	Role Role
	Path string
	// Here limits it to the path itself; otherwise it also applies below.
	Here bool
	// For says what it is needed for.
	For string
}

// Grants returns what numaform's user needs, the minimum for each path.
func (r Reach) Grants() []Grant {
	grants := []Grant{
		{Role: role(RoleHost), Path: "/", Here: true, For: "reading the state of the cluster"},
		{Role: role(RoleHost), Path: "/nodes", For: "reading the hosts' hardware"},
	}
	if r.Pool == "" {
		grants = append(grants, Grant{Role: role(RoleVM), Path: "/vms", For: "making and removing VMs"})
	} else {
		grants = append(
			grants,
			Grant{Role: role(RoleAudit), Path: "/vms", For: "seeing which CPUs and VMIDs others use"},
			Grant{Role: role(RoleVM), Path: "/pool/" + r.Pool, For: "making and removing VMs"},
			Grant{Role: role(RolePool), Path: "/pool/" + r.Pool, For: "reading the pool"},
		)
	}
	for _, path := range storagePaths(r.Disks) {
		if !slices.Contains(storagePaths(r.Seeds), path) || len(r.Seeds) == 0 {
			grants = append(grants, Grant{Role: role(RoleDisk), Path: path, For: "disks"})
		}
	}
	if len(r.Seeds) > 0 {
		for _, path := range storagePaths(r.Seeds) {
			grants = append(grants, Grant{Role: role(RoleSeed), Path: path, For: "seeds"})
		}
	}
	for _, model := range r.CPUModels {
		grants = append(grants, Grant{Role: role(RoleCPU), Path: "/mapping/cpu/" + model, For: "giving VMs the CPU model custom-" + model})
	}
	return append(grants, Grant{Role: role(RoleNet), Path: "/sdn/zones", For: "bridges"})
}

func storagePaths(names []string) []string {
	if len(names) == 0 {
		return []string{"/storage"}
	}
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = "/storage/" + name
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// Pveum returns the commands that create the user of a token, the token, and the user's
// grants. They must be run on a host, as root.
func (r Reach) Pveum(tokenID string) []string {
	user, name, _ := strings.Cut(tokenID, "!")
	grants := r.Grants()
	var lines []string
	if r.Pool != "" {
		lines = append(lines, "pveum pool add "+r.Pool)
	}
	for _, role := range Roles() {
		if slices.ContainsFunc(grants, func(g Grant) bool { return g.Role.Name == role.Name }) {
			lines = append(lines, addRole(role))
		}
	}
	if user != rootUser {
		lines = append(lines, "pveum user add "+user)
	}
	for _, grant := range grants {
		lines = append(lines, grant.pveum(user))
	}
	return append(lines, fmt.Sprintf("pveum user token add %s %s --privsep 0", user, name))
}

func addRole(r Role) string {
	return fmt.Sprintf("pveum role add %s --privs %q", r.Name, strings.Join(r.Privileges, " "))
}

// pveum returns the command that grants a user the role on the path.
func (g Grant) pveum(user string) string {
	line := fmt.Sprintf("pveum acl modify %s --users %s --roles %s", g.Path, user, g.Role.Name)
	if g.Here {
		line += " --propagate 0"
	}
	return line
}

// Mend returns the commands that grant a user missing privileges of the grant. known are
// the existing roles with their privileges; nil if unknown.
func (g Grant) Mend(user string, missing []string, known map[string][]string) []string {
	var lines []string
	have, exists := known[g.Role.Name]
	lacking := slices.DeleteFunc(slices.Clone(missing), func(p string) bool { return slices.Contains(have, p) })
	switch {
	case !exists:
		lines = append(lines, addRole(g.Role))
	case len(lacking) > 0:
		lines = append(lines, fmt.Sprintf("pveum role modify %s --privs %q --append 1", g.Role.Name, strings.Join(lacking, " ")))
	}
	return append(lines, g.pveum(user))
}

var (
	poolPattern    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_./-]*$`)
	modelPattern   = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
	storagePattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]$`)
)

// IsPool reports whether the text is a valid name of a resource pool.
func IsPool(text string) bool { return poolPattern.MatchString(text) }

// IsStorage reports whether the text is a valid name of a storage.
func IsStorage(text string) bool { return storagePattern.MatchString(text) }

// IsCPUModel reports whether the text is a valid name of a custom CPU model.
func IsCPUModel(text string) bool { return modelPattern.MatchString(text) }

// IsTokenID reports whether the text is a valid ID of an API token that needs no quoting
// in a shell.
func IsTokenID(text string) bool {
	return tokenIDPattern.MatchString(text) && !strings.ContainsAny(text, "'\"`$&|;<>()\\*?[]{}#~")
}
