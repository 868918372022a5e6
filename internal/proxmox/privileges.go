package proxmox

import (
	"context"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/numaform/numaform/internal/shell"
)

// Role is a set of privileges that numaform's user requires on some paths.
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

// Roles returns the roles that numaform needs on Proxmox VE 8 or 9, with the minimum
// privileges. The roles omit the privileges for querying guest agents: with these
// privileges, the provider waits up to 15 minutes for the agent of each running VM that it
// imports.
func Roles() []Role {
	disk := []string{"Datastore.AllocateSpace", "Datastore.Audit"}
	return []Role{
		{Name: RoleVM, Privileges: []string{
			"VM.Allocate", "VM.Audit", "VM.Clone", "VM.Config.CDROM", "VM.Config.CPU",
			"VM.Config.Disk", "VM.Config.HWType", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Options",
			"VM.PowerMgmt",
		}},
		{Name: RoleDisk, Privileges: disk},
		// Deleting an ISO image requires Datastore.Allocate. An ACL entry on a storage
		// replaces the one on /storage, so the privileges of that entry are repeated.
		{Name: RoleSeed, Privileges: append(slices.Clone(disk), "Datastore.AllocateTemplate", "Datastore.Allocate")},
		{Name: RoleNet, Privileges: []string{"SDN.Use"}},
		{Name: RolePool, Privileges: []string{"Pool.Audit"}},
		{Name: RoleHost, Privileges: []string{"Sys.Audit"}},
		{Name: RoleAudit, Privileges: []string{"VM.Audit"}},
		{Name: RoleCPU, Privileges: []string{"Mapping.Use"}},
	}
}

// DeviceRole returns the role that numaform's user requires on each resource mapping in a
// class, to see it and to assign its devices to VMs.
func DeviceRole() Role { return Role{Name: "NumaformDevice", Privileges: []string{"Mapping.Use"}} }

// TemplateRole returns the role that numaform's user requires on /nodes to make hosts download
// the images of ProxmoxTemplates (pve-storage, PVE/API2/Storage/Status.pm: download_url).
func TemplateRole() Role {
	return Role{Name: "NumaformTemplateHost", Privileges: []string{"Sys.AccessNetwork"}}
}

// AgentPrivileges returns the privileges that make the provider wait for guest agents:
// VM.Monitor is for Proxmox VE 8, the other privileges are for 9.
func AgentPrivileges() []string {
	return []string{"VM.Monitor", "VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted"}
}

func role(name string) Role {
	roles := Roles()
	return roles[slices.IndexFunc(roles, func(r Role) bool { return r.Name == name })]
}

// Reach defines which objects of a Proxmox cluster numaform may use. The zero value
// allows all VMs and all storages, without seeds.
type Reach struct {
	// Pool is the resource pool of VMs and templates; empty means none. PoolExists is set
	// if it does not need to be created.
	Pool       string
	PoolExists bool
	// Disks are the storages for VMs' disks; empty means all.
	Disks []string
	// Seeds are the storages for seeds.
	Seeds []string
	// CPUModels are the custom CPU models of VMs, without "custom-".
	CPUModels []string
}

// Grant is a role that numaform's user requires on a path.
type Grant struct {
	Role Role
	Path string
	// Here limits the grant to the path itself; otherwise the grant also applies below it.
	Here bool
	// For is the purpose of the grant.
	For string
}

// Grants returns the minimum grants that numaform's user requires.
func (r Reach) Grants() []Grant {
	var grants []Grant
	add := func(name, path, purpose string) {
		grants = append(grants, Grant{Role: role(name), Path: path, Here: path == "/", For: purpose})
	}
	add(RoleHost, "/", "reading the state of the cluster")
	add(RoleHost, "/nodes", "reading the hosts' hardware")
	if r.Pool == "" {
		add(RoleVM, "/vms", "creating and removing VMs")
	} else {
		add(RoleAudit, "/vms", "reading the CPUs and VMIDs of other guests")
		add(RoleVM, "/pool/"+r.Pool, "creating and removing VMs")
		add(RolePool, "/pool/"+r.Pool, "reading the pool")
	}

	var seeds []string
	if len(r.Seeds) > 0 {
		seeds = storagePaths(r.Seeds)
	}
	for _, path := range storagePaths(r.Disks) {
		if !slices.Contains(seeds, path) {
			add(RoleDisk, path, "disks")
		}
	}
	for _, path := range seeds {
		add(RoleSeed, path, "seeds")
	}
	for _, model := range r.CPUModels {
		add(RoleCPU, "/mapping/cpu/"+model, "setting the CPU model custom-"+model)
	}
	add(RoleNet, "/sdn/zones", "using bridges")
	return grants
}

// storagePaths returns the paths of storages, sorted; no names mean all storages.
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

// Pveum returns the commands that create the pool and the roles, the user of a token with
// its grants, and the token. They must be run on a host, as root, and print only the secret
// of the token.
func (r Reach) Pveum(tokenID string) []string {
	user, _, _ := strings.Cut(tokenID, "!")
	grants := r.Grants()
	var lines []string
	if r.Pool != "" && !r.PoolExists {
		lines = append(lines, shell.Line("pveum", "pool", "add", r.Pool))
	}
	for _, role := range Roles() {
		if slices.ContainsFunc(grants, func(g Grant) bool { return g.Role.Name == role.Name }) {
			lines = append(lines, addRole(role))
		}
	}
	if user != rootUser {
		lines = append(lines, shell.Line("pveum", "user", "add", user))
	}
	for _, grant := range grants {
		lines = append(lines, grant.pveum(user))
	}
	return append(lines, AddToken(tokenID)+` --output-format json | sed -n 's/.*"value" *: *"\([^"]*\)".*/\1/p'`)
}

// PveumDelete returns the command that deletes the token, and the commands that delete the
// rest of what the commands of Pveum create: the user, the roles, and a pool that did not
// exist before. They must be run on a host, as root; the pool must be empty.
func (r Reach) PveumDelete(tokenID string) (token string, rest []string) {
	user, _, _ := strings.Cut(tokenID, "!")
	var lines []string
	if user != rootUser {
		lines = append(lines, shell.Line("pveum", "user", "delete", user)) // with its grants
	}
	grants := r.Grants()
	for _, role := range Roles() {
		if slices.ContainsFunc(grants, func(g Grant) bool { return g.Role.Name == role.Name }) {
			lines = append(lines, "pveum role delete "+role.Name)
		}
	}
	if r.Pool != "" && !r.PoolExists {
		lines = append(lines, shell.Line("pveum", "pool", "delete", r.Pool))
	}
	return RemoveToken(tokenID), lines
}

// AddToken returns the command that creates an API token with the privileges of its user.
func AddToken(id string) string {
	user, name, _ := strings.Cut(id, "!")
	return shell.Line("pveum", "user", "token", "add", user, name, "--privsep", "0")
}

// RemoveToken returns the command that deletes an API token.
func RemoveToken(id string) string {
	user, name, _ := strings.Cut(id, "!")
	return shell.Line("pveum", "user", "token", "remove", user, name)
}

func addRole(r Role) string {
	return fmt.Sprintf("pveum role add %s --privs %q", r.Name, strings.Join(r.Privileges, " "))
}

// pveum returns the command that grants a user the role on the path.
func (g Grant) pveum(user string) string {
	line := shell.Line("pveum", "acl", "modify", g.Path, "--users", user, "--roles", g.Role.Name)
	if g.Here {
		line += " --propagate 0"
	}
	return line
}

// Commands returns the commands that grant a user missing privileges of the grant. known are
// the existing roles with their privileges; nil if unknown.
func (g Grant) Commands(user string, missing []string, known map[string][]string) []string {
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

// Permissions maps each privilege of a credential on a path to whether it also applies
// below the path.
type Permissions map[string]bool

// Has reports whether the privilege is granted and, if deep is set, also applies below
// the path.
func (p Permissions) Has(privilege string, deep bool) bool {
	below, ok := p[privilege]
	return ok && (below || !deep)
}

// permissionsOf converts a response from Proxmox.
func permissionsOf(privileges map[string]number) Permissions {
	permissions := Permissions{}
	for privilege, below := range privileges {
		permissions[privilege] = below != 0
	}
	return permissions
}

// Permissions returns the privileges of the client's credential on the paths.
func (c *Client) Permissions(ctx context.Context, paths []string) (map[string]Permissions, error) {
	answers := make([]map[string]map[string]number, len(paths))
	group, ctx := errgroup.WithContext(ctx)
	for i, path := range paths {
		group.Go(func() error {
			if err := c.get(ctx, "/access/permissions?path="+url.QueryEscape(path), &answers[i]); err != nil {
				return fmt.Errorf("checking the permissions on %s: %w", path, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	found := map[string]Permissions{}
	for i, path := range paths {
		found[path] = permissionsOf(answers[i][path])
	}
	return found, nil
}

// AllPermissions returns the privileges of the client's credential on all paths with
// their own entry and on the top-level paths.
func (c *Client) AllPermissions(ctx context.Context) (map[string]Permissions, error) {
	var answer map[string]map[string]number
	if err := c.get(ctx, "/access/permissions", &answer); err != nil {
		return nil, fmt.Errorf("checking the permissions: %w", err)
	}
	found := make(map[string]Permissions, len(answer))
	for path, privileges := range answer {
		found[path] = permissionsOf(privileges)
	}
	return found, nil
}

// RolesThere returns the existing roles, with their privileges.
func (c *Client) RolesThere(ctx context.Context) (map[string][]string, error) {
	var list []struct {
		Name       string `json:"roleid"`
		Privileges string `json:"privs"`
	}
	if err := c.get(ctx, "/access/roles", &list); err != nil {
		return nil, fmt.Errorf("listing the roles: %w", err)
	}
	roles := make(map[string][]string, len(list))
	for _, role := range list {
		roles[role.Name] = strings.FieldsFunc(role.Privileges, func(r rune) bool { return r == ',' || r == ' ' })
	}
	return roles, nil
}
