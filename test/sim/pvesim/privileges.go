package pvesim

import "strings"

// privilegeGroup contains the privileges of a category, grouped as in Proxmox. The
// privileges in root are in no predefined role except Administrator.
type privilegeGroup struct {
	category                 string
	root, admin, user, audit []string
}

// privilegeGroups returns the privileges of Proxmox VE 8 or 9. In version 9, VM.Monitor
// became VM.GuestAgent.*, and VM.Replicate is new.
func privilegeGroups(major int) []privilegeGroup {
	vm := privilegeGroup{
		category: "VM",
		admin: []string{
			"VM.Config.Disk", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.Network", "VM.Config.HWType",
			"VM.Config.Options", "VM.Allocate", "VM.Clone", "VM.Migrate", "VM.Snapshot", "VM.Snapshot.Rollback",
		},
		user:  []string{"VM.Config.CDROM", "VM.Config.Cloudinit", "VM.Console", "VM.Backup", "VM.PowerMgmt"},
		audit: []string{"VM.Audit"},
	}
	if major == 8 {
		vm.admin = append(vm.admin, "VM.Monitor")
	} else {
		vm.admin = append(vm.admin, "VM.Replicate", "VM.GuestAgent.FileRead", "VM.GuestAgent.FileWrite",
			"VM.GuestAgent.FileSystemMgmt", "VM.GuestAgent.Unrestricted")
		vm.audit = append(vm.audit, "VM.GuestAgent.Audit")
	}
	return []privilegeGroup{
		vm,
		{category: "Sys", root: []string{"Sys.PowerMgmt", "Sys.Modify", "Sys.Incoming", "Sys.AccessNetwork"}, admin: []string{"Sys.Console", "Sys.Syslog"}, audit: []string{"Sys.Audit"}},
		{category: "Datastore", admin: []string{"Datastore.Allocate", "Datastore.AllocateTemplate"}, user: []string{"Datastore.AllocateSpace"}, audit: []string{"Datastore.Audit"}},
		{category: "SDN", admin: []string{"SDN.Allocate"}, user: []string{"SDN.Use"}, audit: []string{"SDN.Audit"}},
		{category: "User", root: []string{"Realm.Allocate"}, admin: []string{"User.Modify", "Group.Allocate", "Realm.AllocateUser"}},
		{category: "Pool", admin: []string{"Pool.Allocate"}, user: []string{"Pool.Audit"}, audit: []string{"Pool.Audit"}},
		{category: "Mapping", admin: []string{"Mapping.Modify"}, user: []string{"Mapping.Use"}, audit: []string{"Mapping.Audit"}},
	}
}

// roleSet maps a role to its privileges.
type roleSet map[string]map[string]bool

func (r roleSet) add(role string, privileges ...string) {
	if r[role] == nil {
		r[role] = map[string]bool{}
	}
	for _, p := range privileges {
		r[role][p] = true
	}
}

// predefinedRoles builds Proxmox's own roles; Administrator has every privilege.
func predefinedRoles(major int) roleSet {
	roles := roleSet{}
	roles.add("NoAccess")
	roles.add("Administrator", "Permissions.Modify")
	for _, g := range privilegeGroups(major) {
		for _, list := range [][]string{g.root, g.admin, g.user, g.audit} {
			roles.add("Administrator", list...)
		}
		for _, list := range [][]string{g.admin, g.user, g.audit} {
			roles.add("PVE"+g.category+"Admin", list...)
			roles.add("PVEAdmin", list...)
		}
		if len(g.user) > 0 {
			roles.add("PVE"+g.category+"User", append(append([]string{}, g.user...), g.audit...)...)
		}
		roles.add("PVEAuditor", g.audit...)
	}
	delete(roles["PVEAdmin"], "Mapping.Modify")
	roles.add("PVETemplateUser", "VM.Clone", "VM.Audit")
	return roles
}

// capabilityPrefixes maps the top level of a path to the prefix of the privileges that are
// sent to the web interface.
func capabilityPrefixes() map[string]string {
	return map[string]string{
		"vms": "VM.", "access": "User.", "storage": "Datastore.", "nodes": "Sys.", "sdn": "SDN.", "dc": "Sys.", "mapping": "Mapping.",
	}
}

// capabilities returns the field "cap" in the response to a login.
func (a *access) capabilities(who identity) map[string]map[string]int {
	result := map[string]map[string]int{}
	for top, prefix := range capabilityPrefixes() {
		path := "/" + top
		if top == "dc" {
			path = "/"
		}
		result[top] = map[string]int{}
		for p := range a.permissions(who, path) {
			if strings.HasPrefix(p, prefix) || p == "Permissions.Modify" {
				result[top][p] = 1
			}
		}
	}
	return result
}
