package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/internal/shell"
	"github.com/numaform/numaform/topology"
)

// requirement contains the privileges of a grant on the paths that Proxmox checks.
type requirement struct {
	grant proxmox.Grant
	paths []string
	// privileges are some or all privileges of the grant's role.
	privileges []string
	// deep requires that the privileges propagate to paths below.
	deep bool
	// pool, if set, grants the privileges to its members: the fix adds the path's VM to the
	// pool.
	pool string
}

// privileges compares the permissions of the credential with the required ones.
func (e *examination) privileges(ctx context.Context, r *Region, snapshot *topology.Snapshot) {
	where := string(r.Name)
	roles, err := r.Client.RolesThere(ctx)
	if err != nil {
		e.failed("privilege", where, err)
		return
	}
	use := e.uses(r, snapshot)
	required := use.requirements(roles)
	if r.TemplateVMIDs != (fleet.VMIDRange{}) {
		grant := proxmox.Grant{Role: proxmox.TemplateRole(), Path: "/nodes", For: "downloading the images of ProxmoxTemplates"}
		required = append(required, requirement{grant: grant, paths: []string{grant.Path}, privileges: grant.Role.Privileges, deep: true})
	}
	var paths []string
	for _, q := range required {
		paths = append(paths, q.paths...)
	}
	have, err := r.Client.Permissions(ctx, distinct(paths))
	if err != nil {
		e.failed("privilege", where, err)
		return
	}
	all, err := r.Client.AllPermissions(ctx)
	if err != nil {
		e.failed("privilege", where, err)
		return
	}
	if e.withoutPrivileges(r, have, all) {
		return
	}

	for _, q := range required {
		e.compare(r, q, have, roles)
	}
	// Proxmox lists only pools that the user may audit.
	for _, region := range snapshot.Regions {
		for _, pool := range use.pools.sorted() {
			if !slices.Contains(region.Pools, pool) && have["/pool/"+pool].Has("Pool.Audit", false) {
				commands := onHost(shell.Line("pveum", "pool", "add", pool))
				e.add("pool", Fail, where, fmt.Sprintf("resource pool %q does not exist", pool), fmt.Sprintf("run `%s`, or correct spec.pool", joined(commands)), commands...)
			}
		}
	}
	e.bridges(ctx, r, all, roles)
	e.tags(ctx, r, use.tags.sorted())

	// These privileges make the provider wait for guest agents. Root has all of them.
	if root, _ := r.Client.CanSetAffinity(); root || len(use.agents) > 0 {
		return
	}
	for _, privilege := range proxmox.AgentPrivileges() {
		if have["/vms"].Has(privilege, false) {
			e.add("privilege", Warn, where+" /vms",
				privilege+" is granted, so the provider waits up to 15 minutes for the guest agent of each running VM that it imports",
				"remove it from the role; numaform init prints the recommended role")
			return
		}
	}
}

// withoutPrivileges adds one finding for a token without any privilege, instead of one for
// each missing privilege, and returns true. It returns false for any other credential.
func (e *examination) withoutPrivileges(r *Region, known ...map[string]proxmox.Permissions) bool {
	for _, have := range known {
		for _, permissions := range have {
			if len(permissions) > 0 {
				return false
			}
		}
	}
	id := r.Client.TokenID()
	if id == "" {
		return false
	}
	user, name, _ := strings.Cut(id, "!")
	commands := onHost(shell.Line("pveum", "user", "token", "modify", user, name, "--privsep", "0"))
	e.add("privilege", Fail, string(r.Name),
		fmt.Sprintf("API token %s has no privileges: it was created without --privsep 0, or its user has none", id),
		joined(commands)+"; if this does not help, run the commands that numaform init prints", commands...)
	return true
}

// compare adds a finding for each path with missing privileges, or one ok finding for all
// paths.
func (e *examination) compare(r *Region, q requirement, have map[string]proxmox.Permissions, roles map[string][]string) {
	if q.pool != "" && !have["/pool/"+q.pool].Has("VM.Clone", false) {
		return // another finding reports the missing privileges of the pool
	}
	complete := true
	for _, path := range q.paths {
		missing := slices.DeleteFunc(slices.Clone(q.privileges), func(p string) bool { return have[path].Has(p, q.deep) })
		if len(missing) == 0 {
			continue
		}
		complete = false
		commands := onHost(q.grant.Commands(r.Client.User(), missing, roles)...)
		if q.pool != "" {
			commands = onHost(shell.Line("pveum", "pool", "modify", q.pool, "--vms", strings.TrimPrefix(path, "/vms/")))
		}
		e.add("privilege", Fail, string(r.Name)+" "+path, fmt.Sprintf("missing for %s: %s", q.grant.For, list(missing)), joined(commands), commands...)
	}
	if complete && len(q.paths) > 0 {
		e.ok("privilege", string(r.Name)+" "+list(q.paths), list(q.privileges))
	}
}

// use lists the objects that classes use in a region.
type use struct {
	hosts        []string
	pools        set // "" means no pool
	disks, seeds set
	// models are custom CPU models that require a privilege, without "custom-".
	models set
	// cloudInit is set if a seed replaces a template's cloud-init drive.
	cloudInit bool
	// devices are the paths of PCI mappings, and agents are /vms or the paths of the pools
	// with the VMs that join with a command of the guest agent.
	devices, agents set
	// tags are the tags that numaform adds to a clone or removes from it.
	tags set
	// templates are paths of templates, by the pool of the class that clones them.
	templates map[string][]string
}

// uses collects the objects that classes use. Without classes, these are the storages of all
// templates.
func (e *examination) uses(r *Region, snapshot *topology.Snapshot) *use {
	u := &use{
		pools: set{}, disks: set{}, seeds: set{}, models: set{}, devices: set{}, agents: set{}, tags: set{},
		templates: map[string][]string{},
	}
	for _, class := range e.usedIn(r) {
		for _, device := range class.Spec.PCIDevices {
			u.devices["/mapping/pci/"+device.Mapping] = true
		}
		if class.ByAgent() && class.Spec.Pool != "" {
			u.agents["/pool/"+class.Spec.Pool] = true
		} else if class.ByAgent() {
			u.agents["/vms"] = true
		}
	}
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		if host.Region != r.Name {
			continue
		}
		if host.Online {
			u.hosts = append(u.hosts, "/nodes/"+string(host.Name))
		}
		for _, template := range host.Templates {
			if len(e.config.Classes) == 0 {
				u.disks[template.Storage] = true
			}
		}
		for i := range e.config.Classes {
			if class := &e.config.Classes[i]; scheduling.Allows(class, host.ID()) {
				e.usesOn(u, class, host, snapshot)
			}
		}
	}
	if len(u.pools) == 0 {
		u.pools[""] = true
	}
	if len(u.tags) == 0 {
		u.tag(e.ownTags(nil), nil)
	}
	return u
}

// usesOn adds the objects that a class uses on a host.
func (e *examination) usesOn(u *use, class *v1alpha1.ProxmoxNodeClass, host *topology.Host, snapshot *topology.Snapshot) {
	u.pools[class.Spec.Pool] = true
	u.model(string(class.Spec.CPUType), snapshot)
	needs, ok := scheduling.NeedsOf(class, snapshot, host.ID())
	if !ok {
		return
	}
	for _, storage := range needs.Disks {
		u.disks[storage] = true
	}
	if storage, found := scaler.SeedStorage(host, needs.Seed); found {
		u.seeds[storage] = true
	}

	// Cloning a VM requires the privilege to set its CPU model.
	template := &needs.Template
	u.model(strings.TrimPrefix(template.Options["cpu"], "cputype="), snapshot)
	u.cloudInit = u.cloudInit || template.CloudInit && class.Spec.Metadata.Type == v1alpha1.MetadataCDROM
	u.tag(e.ownTags(class.Spec.Tags), template.Tags)
	u.templates[class.Spec.Pool] = append(u.templates[class.Spec.Pool], "/vms/"+strconv.Itoa(template.VMID))
}

// model adds the CPU model of an option such as custom-a or custom-a,flags=+aes, if Proxmox
// requires a privilege for it.
func (u *use) model(option string, snapshot *topology.Snapshot) {
	model, _, _ := strings.Cut(option, ",")
	name, custom := strings.CutPrefix(model, "custom-")
	if custom && slices.ContainsFunc(snapshot.Regions, func(r topology.Region) bool { return proxmox.MapsCPUModels(r.Version) }) {
		u.models[name] = true
	}
}

// ownTags returns the tags that numaform sets on VMs of a class.
func (e *examination) ownTags(tags []string) []string {
	return append([]string{"numaform", "numaform-" + e.config.ClusterID}, tags...)
}

// tag adds the tags that numaform adds to a clone or removes from it.
func (u *use) tag(own, template []string) {
	for _, tag := range slices.Concat(own, template) {
		if slices.Contains(own, tag) != slices.Contains(template, tag) {
			u.tags[tag] = true
		}
	}
}

// requirements returns the required privileges on existing paths.
func (u *use) requirements(roles map[string][]string) []requirement {
	var all []requirement
	for _, pool := range slices.Sorted(maps.Keys(u.pools)) {
		reach := proxmox.Reach{Pool: pool, Disks: u.disks.sorted(), Seeds: u.seeds.sorted(), CPUModels: u.models.sorted()}
		for _, grant := range reach.Grants() {
			all = append(all, u.resolve(grant)...)
		}
	}
	for _, path := range u.devices.sorted() {
		grant := proxmox.Grant{Role: proxmox.DeviceRole(), Path: path, For: "passing PCI devices through"}
		all = append(all, requirement{grant: grant, paths: []string{path}, privileges: grant.Role.Privileges})
	}
	agent := proxmox.Role{Name: "NumaformAgent", Privileges: []string{"VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted"}}
	if slices.Contains(roles["Administrator"], "VM.Monitor") { // Proxmox VE 8
		agent.Privileges = []string{"VM.Monitor"}
	}
	for _, path := range u.agents.sorted() {
		grant := proxmox.Grant{Role: agent, Path: path, For: "joining with a command of the guest agent"}
		all = append(all, requirement{grant: grant, paths: []string{path}, privileges: agent.Privileges, deep: path == "/vms"})
	}

	var required []requirement
	for _, q := range all {
		if !slices.ContainsFunc(required, func(r requirement) bool {
			return slices.Equal(r.paths, q.paths) && slices.Equal(r.privileges, q.privileges)
		}) {
			required = append(required, q)
		}
	}
	return required
}

// resolve returns the requirements of a grant on existing paths.
func (u *use) resolve(grant proxmox.Grant) []requirement {
	if grant.Role.Name == proxmox.RoleVM && u.cloudInit {
		grant.Role.Privileges = append(slices.Clone(grant.Role.Privileges), "VM.Config.Cloudinit")
	}
	privileges := grant.Role.Privileges
	switch {
	case grant.Path == "/nodes":
		return []requirement{{grant: grant, paths: u.hosts, privileges: privileges}}
	case grant.Path == "/storage", grant.Role.Name == proxmox.RoleNet:
		return nil // other checks cover storages and bridges
	case grant.Role.Name == proxmox.RoleVM && grant.Path != "/vms":
		pool := strings.TrimPrefix(grant.Path, "/pool/")
		clone := requirement{grant: grant, paths: distinct(u.templates[pool]), privileges: []string{"VM.Clone"}, pool: pool}
		clone.grant.For = "cloning a template outside the pool"
		return []requirement{{grant: grant, paths: []string{grant.Path}, privileges: privileges}, clone}
	}
	return []requirement{{grant: grant, paths: []string{grant.Path}, privileges: privileges, deep: grant.Path == "/vms"}}
}

// bridges checks the privilege SDN.Use on zones, because the API does not report the zone of
// a bridge.
func (e *examination) bridges(ctx context.Context, r *Region, all map[string]proxmox.Permissions, roles map[string][]string) {
	const zones, local, privilege = "/sdn/zones", "/sdn/zones/localnetwork", "SDN.Use"
	where := string(r.Name) + " " + zones
	have, err := r.Client.Permissions(ctx, []string{zones, local})
	if err != nil {
		e.failed("privilege", where, err)
		return
	}
	switch {
	case have[zones].Has(privilege, true):
		e.ok("privilege", where, privilege)
		return
	case have[local].Has(privilege, true):
		e.ok("privilege", string(r.Name)+" "+local, privilege+" on the hosts' own bridges only")
		return
	}
	grants := (proxmox.Reach{}).Grants()
	grant := grants[len(grants)-1]
	status, what := Fail, "missing for "+grant.For+": "+privilege
	for path, permissions := range all {
		if strings.HasPrefix(path, zones+"/") && permissions.Has(privilege, false) {
			status, what = Warn, privilege+" is granted only on some zones or bridges: VMs cannot use other bridges"
		}
	}
	commands := onHost(grant.Commands(r.Client.User(), []string{privilege}, roles)...)
	e.add("privilege", status, where, what, joined(commands), commands...)
}

// tags checks that the datacenter allows numaform's user to add and remove the tags. Users
// with Sys.Modify on / are not restricted.
func (e *examination) tags(ctx context.Context, r *Region, tags []string) {
	where := string(r.Name)
	have, err := r.Client.Permissions(ctx, []string{"/"})
	if err != nil {
		e.failed("tags", where, err)
		return
	}
	access, err := r.Client.TagAccess(ctx)
	if err != nil {
		e.failed("tags", where, err)
		return
	}
	refused := slices.DeleteFunc(tags, access.Allows)
	if have["/"].Has("Sys.Modify", false) || len(refused) == 0 {
		e.ok("tags", where, "numaform's user can set the tags of VMs")
		return
	}

	var lines []string
	isRefused := func(tag string) bool { return slices.Contains(refused, tag) }
	if rest := slices.DeleteFunc(slices.Clone(access.Registered), isRefused); len(rest) < len(access.Registered) {
		option := "--registered-tags " + shell.Quote(strings.Join(rest, ";"))
		if len(rest) == 0 {
			option = "--delete registered-tags"
		}
		lines = append(lines, "pvesh set /cluster/options "+option)
	}
	if !access.Free() {
		mode := access.Mode
		if mode == "none" {
			mode = "list"
		}
		allowed := append(slices.DeleteFunc(slices.Clone(access.List), isRefused), refused...)
		option := fmt.Sprintf("user-allow=%s,user-allow-list=%s", mode, strings.Join(allowed, ";"))
		lines = append(lines, shell.Line("pvesh", "set", "/cluster/options", "--user-tag-access", option))
	}
	commands := onHost(lines...)
	e.add("tags", Fail, where,
		fmt.Sprintf("numaform's user cannot add or remove the tags %s, so Proxmox clones VMs and then refuses their configuration", list(refused)),
		joined(commands), commands...)
}
