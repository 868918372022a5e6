package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/scheduling"
	"github.com/numaform/numaform/topology"
)

// want is a grant resolved to the paths that Proxmox checks.
type want struct {
	grant proxmox.Grant
	paths []string
	// privileges are some or all privileges of the grant's role.
	privileges []string
	// deep also requires them below the paths.
	deep bool
	// pool is set if the object of the path must be added to that pool instead.
	pool string
}

// privileges compares the credential's permissions with the required ones.
func (e *examination) privileges(ctx context.Context, r *Region, snapshot *topology.Snapshot) {
	where := string(r.Name)
	wants := e.wants(r, snapshot)
	var paths []string
	for _, w := range wants {
		paths = append(paths, w.paths...)
	}
	slices.Sort(paths)
	have, err := r.Client.Permissions(ctx, slices.Compact(paths))
	if err != nil {
		e.failed("privilege", where, err)
		return
	}
	roles, err := r.Client.RolesThere(ctx)
	if err != nil {
		e.failed("privilege", where, err)
		return
	}
	all, err := r.Client.AllPermissions(ctx)
	if err != nil {
		e.failed("privilege", where, err)
		return
	}
	if e.nothingAtAll(r, have, all) {
		return
	}
	for _, w := range wants {
		e.compare(r, w, have, roles)
	}
	e.pools(r, snapshot, have)
	e.bridges(ctx, r, all, roles)
	e.devices(ctx, r, roles)
	e.tags(ctx, r, e.uses(r, snapshot))
	if !e.joinsByAgent(r, have, roles) {
		e.agents(r, have["/vms"])
	}
}

// pools checks the classes' resource pools. Proxmox lists only pools that the user may
// audit.
func (e *examination) pools(r *Region, snapshot *topology.Snapshot, have map[string]proxmox.Permissions) {
	for _, region := range snapshot.Regions {
		for _, pool := range slices.Sorted(maps.Keys(e.uses(r, snapshot).pools)) {
			if pool == "" || slices.Contains(region.Pools, pool) || !have["/pool/"+pool].Has("Pool.Audit", false) {
				continue
			}
			e.add(Finding{
				Check: "pool", Status: Fail, Where: string(r.Name), What: fmt.Sprintf("there is no resource pool %q", pool),
				Mend: fmt.Sprintf("`pveum pool add %s`, or correct spec.pool", pool),
			})
		}
	}
}

// nothingAtAll distinguishes a token that was created with separate privileges, but given
// none, from one that lacks some.
func (e *examination) nothingAtAll(r *Region, known ...map[string]proxmox.Permissions) bool {
	id := r.Client.TokenID()
	for _, have := range known {
		for _, permissions := range have {
			if len(permissions) > 0 {
				return false
			}
		}
	}
	if id == "" {
		return false
	}
	user, name, _ := strings.Cut(id, "!")
	e.add(Finding{
		Check: "privilege", Status: Fail, Where: string(r.Name),
		What: fmt.Sprintf("API token %s has no privilege at all: it was added without --privsep 0, or its user has none", id),
		Mend: fmt.Sprintf("pveum user token modify %s %s --privsep 0; and if that is not all, the lines that numaform init prints", user, name),
	})
	return true
}

// compare adds a finding for each path with missing privileges, or one finding for all
// paths.
func (e *examination) compare(r *Region, w want, have map[string]proxmox.Permissions, roles map[string][]string) {
	if w.pool != "" && !have["/pool/"+w.pool].Has("VM.Clone", false) {
		return // the pool's privileges are missing, which is reported already
	}
	complete := true
	for _, path := range w.paths {
		missing := slices.DeleteFunc(slices.Clone(w.privileges), func(p string) bool { return have[path].Has(p, w.deep) })
		if len(missing) == 0 {
			continue
		}
		complete = false
		e.add(Finding{
			Check: "privilege", Status: Fail, Where: string(r.Name) + " " + path,
			What: fmt.Sprintf("missing for %s: %s", w.grant.For, strings.Join(missing, ", ")),
			Mend: w.mend(r.Client.User(), path, missing, roles),
		})
	}
	if complete && len(w.paths) > 0 {
		e.ok("privilege", string(r.Name)+" "+strings.Join(w.paths, ", "), strings.Join(w.privileges, ", "))
	}
}

// mend returns the commands that grant the missing privileges.
func (w *want) mend(user, path string, missing []string, roles map[string][]string) string {
	if w.pool != "" {
		return fmt.Sprintf("pveum pool modify %s --vms %s", w.pool, strings.TrimPrefix(path, "/vms/"))
	}
	return strings.Join(w.grant.Mend(user, missing, roles), " && ")
}

// wants returns the required privileges on the paths that exist now.
func (e *examination) wants(r *Region, snapshot *topology.Snapshot) []want {
	use := e.uses(r, snapshot)
	var wants []want
	for _, reach := range use.reaches() {
		for _, grant := range reach.Grants() {
			wants = append(wants, use.want(grant)...)
		}
	}
	var distinct []want
	for _, w := range wants {
		if !slices.ContainsFunc(distinct, func(d want) bool { return slices.Equal(d.paths, w.paths) && slices.Equal(d.privileges, w.privileges) }) {
			distinct = append(distinct, w)
		}
	}
	return distinct
}

// use is what numaform uses in a region, according to its classes.
type use struct {
	hosts        []string
	pools        map[string]bool // "" means no pool
	disks, seeds map[string]bool
	// models are custom CPU models that require a privilege, without "custom-".
	models map[string]bool
	// cloudInit is set if a seed replaces a template's cloud-init drive.
	cloudInit bool
	// tags are the tags that VMs get, or lose as clones.
	tags map[string]bool
	// templates are VMIDs, by the pool whose class clones them.
	templates map[string][]string
}

// uses collects what the classes use; without classes, all templates' storages.
func (e *examination) uses(r *Region, snapshot *topology.Snapshot) *use {
	u := &use{pools: map[string]bool{}, disks: map[string]bool{}, seeds: map[string]bool{}, models: map[string]bool{}, tags: map[string]bool{}, templates: map[string][]string{}}
	for i := range snapshot.Hosts {
		host := &snapshot.Hosts[i]
		if host.Region != r.Name {
			continue
		}
		if host.Online {
			u.hosts = append(u.hosts, "/nodes/"+string(host.Name))
		}
		for _, template := range host.Templates {
			if len(e.config.Classes) == 0 && template.Storage != "" {
				u.disks[template.Storage] = true
			}
		}
		e.useOf(u, host, snapshot)
	}
	if len(u.pools) == 0 {
		u.pools[""] = true
	}
	if len(u.tags) == 0 {
		u.tag(e.ownTags(nil), nil)
	}
	return u
}

// useOf adds what the classes use of a host.
func (e *examination) useOf(u *use, host *topology.Host, snapshot *topology.Snapshot) {
	for i := range e.config.Classes {
		class := &e.config.Classes[i]
		if !scheduling.Allows(class, host.ID()) {
			continue
		}
		u.pools[class.Spec.Pool] = true
		u.model(class.Spec.CPUType, snapshot)
		needs, ok := scheduling.NeedsOf(class, snapshot, host.ID())
		if !ok {
			continue
		}
		for _, storage := range needs.Disks {
			u.disks[storage] = true
		}
		if storage, found := scaler.SeedStorage(host, needs.Seed); found {
			u.seeds[storage] = true
		}
		// Cloning a VM requires the privilege for setting its CPU model.
		template := &host.Templates[slices.IndexFunc(host.Templates, func(t topology.Template) bool { return t.VMID == needs.Template })]
		u.model(strings.TrimPrefix(template.Options["cpu"], "cputype="), snapshot)
		u.cloudInit = u.cloudInit || template.CloudInit && class.Spec.Metadata.Type == v1alpha1.MetadataCDROM
		u.tag(e.ownTags(class.Spec.Tags), template.Tags)
		u.templates[class.Spec.Pool] = append(u.templates[class.Spec.Pool], "/vms/"+strconv.Itoa(needs.Template))
	}
}

// model adds the CPU model of an option such as custom-a or custom-a,flags=+aes, if
// assigning it to a VM requires a privilege.
func (u *use) model(option string, snapshot *topology.Snapshot) {
	model, _, _ := strings.Cut(option, ",")
	name, custom := strings.CutPrefix(model, "custom-")
	if custom && slices.ContainsFunc(snapshot.Regions, func(r topology.Region) bool { return proxmox.MapsCPUModels(r.Version) }) {
		u.models[name] = true
	}
}

// ownTags returns the tags that numaform sets, including those of a class.
func (e *examination) ownTags(tags []string) []string {
	return append([]string{"numaform", "numaform-" + e.config.ClusterID}, tags...)
}

// tag adds the tags that a clone gets, and the template's tags that it loses.
func (u *use) tag(own, template []string) {
	for _, tag := range slices.Concat(own, template) {
		if slices.Contains(own, tag) != slices.Contains(template, tag) {
			u.tags[tag] = true
		}
	}
}

// reaches returns the reach for each pool.
func (u *use) reaches() []proxmox.Reach {
	var reaches []proxmox.Reach
	for _, pool := range slices.Sorted(maps.Keys(u.pools)) {
		reaches = append(reaches, proxmox.Reach{
			Pool: pool, Disks: slices.Sorted(maps.Keys(u.disks)), Seeds: slices.Sorted(maps.Keys(u.seeds)),
			CPUModels: slices.Sorted(maps.Keys(u.models)),
		})
	}
	return reaches
}

// want resolves a grant to paths.
func (u *use) want(grant proxmox.Grant) []want {
	if grant.Role.Name == proxmox.RoleVM && u.cloudInit {
		grant.Role.Privileges = append(slices.Clone(grant.Role.Privileges), "VM.Config.Cloudinit")
	}
	privileges := grant.Role.Privileges
	switch {
	case grant.Path == "/nodes":
		return []want{{grant: grant, paths: u.hosts, privileges: privileges}}
	case grant.Path == "/storage", grant.Role.Name == proxmox.RoleNet:
		return nil // checked by name, or with the bridges
	case grant.Role.Name == proxmox.RoleVM && grant.Path != "/vms":
		pool := strings.TrimPrefix(grant.Path, "/pool/")
		clone := want{grant: grant, paths: distinct(u.templates[pool]), privileges: []string{"VM.Clone"}, pool: pool}
		clone.grant.For = "cloning the template, which is not in the pool"
		return []want{{grant: grant, paths: []string{grant.Path}, privileges: privileges}, clone}
	}
	return []want{{grant: grant, paths: []string{grant.Path}, privileges: privileges, deep: grant.Path == "/vms"}}
}

func distinct(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

// bridges checks SDN.Use. Only Proxmox knows the zone of a bridge.
func (e *examination) bridges(ctx context.Context, r *Region, all map[string]proxmox.Permissions, roles map[string][]string) {
	const zones, local, privilege = "/sdn/zones", "/sdn/zones/localnetwork", "SDN.Use"
	where := string(r.Name) + " " + zones
	have, err := r.Client.Permissions(ctx, []string{zones, local})
	if err != nil {
		e.failed("privilege", where, err)
		return
	}
	grants := (proxmox.Reach{}).Grants()
	grant := grants[len(grants)-1]
	finding := Finding{Check: "privilege", Status: OK, Where: where, What: privilege}
	switch {
	case have[zones].Has(privilege, true):
	case have[local].Has(privilege, true):
		finding.Where, finding.What = string(r.Name)+" "+local, privilege+" on the hosts' own bridges only"
	default:
		finding.What = "missing for " + grant.For + ": " + privilege
		finding.Status = Fail
		for path, permissions := range all {
			if strings.HasPrefix(path, zones+"/") && permissions.Has(privilege, false) {
				finding.Status, finding.What = Warn, fmt.Sprintf("%s is granted on single zones or bridges only: others cannot be used", privilege)
			}
		}
		finding.Mend = strings.Join(grant.Mend(r.Client.User(), []string{privilege}, roles), " && ")
	}
	e.add(finding)
}

// joinsByAgent checks the requirements of classes whose nodes join by a command of the
// guest agent, and reports whether there are such classes.
func (e *examination) joinsByAgent(r *Region, have map[string]proxmox.Permissions, roles map[string][]string) bool {
	role := proxmox.Role{Name: "NumaformAgent", Privileges: []string{"VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted"}}
	if slices.Contains(roles["Administrator"], "VM.Monitor") { // Proxmox VE 8
		role.Privileges = []string{"VM.Monitor"}
	}
	paths := map[string]bool{}
	for i := range e.config.Classes {
		class := &e.config.Classes[i]
		if !class.ByAgent() || (class.Spec.Region != "" && class.Spec.Region != string(r.Name)) {
			continue
		}
		path := "/vms"
		if class.Spec.Pool != "" {
			path = "/pool/" + class.Spec.Pool
		}
		paths[path] = true
	}
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		grant := proxmox.Grant{Role: role, Path: path, For: "joining by a command of the guest agent"}
		e.compare(r, want{grant: grant, paths: []string{path}, privileges: role.Privileges, deep: path == "/vms"}, have, roles)
	}
	return len(paths) > 0
}

// agents warns about privileges that make the provider wait.
func (e *examination) agents(r *Region, have proxmox.Permissions) {
	if ok, _ := r.Client.CanSetAffinity(); ok { // root has all of them
		return
	}
	for _, privilege := range proxmox.AgentPrivileges() {
		if !have.Has(privilege, false) {
			continue
		}
		e.add(Finding{
			Check: "privilege", Status: Warn, Where: string(r.Name) + " /vms",
			What: privilege + " is granted: with it, the provider waits up to 15 minutes for the guest agent of each running VM that it imports",
			Mend: "take it out of the role, as numaform init prints it",
		})
		return
	}
}
