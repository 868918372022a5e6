package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// description marks the VMs of a run.
const description = "made by numaform conformance: can be removed"

// prepare logs in, reads the cluster, and refuses unusable bounds: too few VMIDs, a VMID
// in use, a missing pool or storage, or an unsuitable host or template. With
// RemoveLeftovers, it removes the VMs of an earlier run.
func (r *run) prepare(ctx context.Context) error {
	if r.cfg.Upper-r.cfg.Lower < fewestVMIDs {
		return &BoundsError{fmt.Sprintf("VMIDs %d-%d: the range must contain at least %d VMIDs: set --vmids", r.cfg.Lower, r.cfg.Upper, fewestVMIDs+1)}
	}
	var err error
	if r.configured, err = r.header(ctx, &r.cfg.Login); err != nil {
		return err
	}
	if r.cfg.Root != nil {
		if r.root, err = r.header(ctx, r.cfg.Root); err != nil {
			return err
		}
	}
	version, err := r.read(ctx, "GET /version", nil)
	if err != nil {
		return err
	}
	if len(version) == 1 {
		r.version = textOf(version[0]["version"])
	}
	if err := r.readHosts(ctx); err != nil {
		return err
	}
	if err := r.readStorages(ctx); err != nil {
		return err
	}
	if err := r.readBounds(ctx); err != nil {
		return err
	}

	maps.Copy(r.have, map[string]bool{
		"root":        r.root != nil,
		"token":       r.cfg.Login.TokenID != "",
		"destructive": r.cfg.Destructive,
		"slow":        r.cfg.Slow,
		"iso":         r.values["iso-storage"] != "",
	})
	user, name, _ := strings.Cut(r.cfg.Login.TokenID, "!")
	user = cmp.Or(user, r.cfg.Login.Username)
	missing := strconv.Itoa(r.cfg.Upper)
	maps.Copy(r.values, map[string]string{
		"pool":            r.cfg.Pool,
		"own-pool":        r.cfg.Pool + "/" + own,
		"bridge":          r.cfg.Bridge,
		"template":        strconv.Itoa(r.cfg.Template),
		"user":            user,
		"token-user":      user,
		"token-name":      name,
		"token-id":        r.cfg.Login.TokenID,
		"iso":             own + ".iso",
		"missing-host":    own + "-none",
		"missing-storage": own + "-none",
		"missing-pool":    own + "-none",
		"missing-vmid":    missing,
		"missing-upid":    "UPID:" + r.values["host"] + ":00000001:00000002:60000000:qmstart:" + missing + ":root@pam:",
	})
	return nil
}

// read sends a request of the run itself and returns its result as a list of objects.
func (r *run) read(ctx context.Context, request string, params map[string]string) ([]map[string]any, error) {
	got, err := r.must(ctx, request, params)
	if err != nil {
		return nil, fmt.Errorf("reading the cluster: %w", err)
	}
	var objects []map[string]any
	for _, element := range listOf(got.data) {
		if object, ok := element.(map[string]any); ok {
			objects = append(objects, object)
		}
	}
	return objects, nil
}

// readHosts finds the online hosts, the host that responds, and the template's host, on
// which all VMs are created. It returns a BoundsError if Config.Host is not online, or if
// Config.Template is not a template on that host.
func (r *run) readHosts(ctx context.Context) error {
	members, err := r.read(ctx, "GET /cluster/status", nil)
	if err != nil {
		return err
	}
	for _, member := range members {
		if member["type"] == "node" && textOf(member["online"]) == "1" {
			name := textOf(member["name"])
			r.hosts = append(r.hosts, name)
			if textOf(member["local"]) == "1" {
				r.values["asked-host"] = name
			}
		}
	}
	r.have["hosts"] = len(r.hosts) > 1
	if r.cfg.Host != "" && !slices.Contains(r.hosts, r.cfg.Host) {
		return &BoundsError{fmt.Sprintf("host %s is not online in this cluster: choose one of %s", r.cfg.Host, strings.Join(r.hosts, ", "))}
	}

	guests, err := r.read(ctx, "GET /cluster/resources", map[string]string{"type": "vm"})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(guests, func(guest map[string]any) bool { return textOf(guest["vmid"]) == strconv.Itoa(r.cfg.Template) })
	if i < 0 {
		return &BoundsError{fmt.Sprintf("template %d does not exist, or the credential cannot see it: set --template to the VMID of a template, or grant the credential VM.Audit on it", r.cfg.Template)}
	}
	if textOf(guests[i]["template"]) != "1" {
		return &BoundsError{fmt.Sprintf("VM %d is not a template: set --template to the VMID of a template", r.cfg.Template)}
	}
	host := textOf(guests[i]["node"])
	if r.cfg.Host != "" && r.cfg.Host != host {
		return &BoundsError{fmt.Sprintf("template %d is on host %s, not on %s: set --template to a template on that host", r.cfg.Template, host, r.cfg.Host)}
	}
	r.values["host"] = host
	for _, name := range slices.Backward(r.hosts) { // the first matching host remains
		if name != host {
			r.values["other-host"] = name
		}
		if name != r.values["asked-host"] {
			r.values["remote-host"] = name
		}
	}
	return nil
}

// readStorages finds the storages for disks and for ISO files. It returns a BoundsError if
// there is none for disks.
func (r *run) readStorages(ctx context.Context) error {
	found, err := r.read(ctx, "GET /nodes/"+r.values["host"]+"/storage", map[string]string{"enabled": "1"})
	if err != nil {
		return err
	}
	for _, storage := range found {
		name := textOf(storage["storage"])
		content := strings.Split(textOf(storage["content"]), ",")
		if slices.Contains(content, "images") && (r.cfg.Storage == name || r.cfg.Storage == "" && r.values["storage"] == "") {
			r.values["storage"] = name
			r.have["lvmthin"] = textOf(storage["type"]) == "lvmthin"
			r.have["local-disk"] = textOf(storage["shared"]) != "1"
		}
		if slices.Contains(content, "iso") && (r.cfg.ISOStorage == name || r.cfg.ISOStorage == "" && r.values["iso-storage"] == "") {
			r.values["iso-storage"] = name
		}
	}
	if r.values["storage"] == "" {
		if r.cfg.Storage != "" {
			return &BoundsError{fmt.Sprintf("host %s has no storage %s for disk images: set --storage to one that allows disk images", r.values["host"], r.cfg.Storage)}
		}
		return &BoundsError{fmt.Sprintf("host %s has no storage for disk images: allow them on a storage (Datacenter > Storage in Proxmox)", r.values["host"])}
	}
	return nil
}

// readBounds refuses a missing pool, and VMIDs in use, including VMIDs of guests that the
// credential cannot see. With RemoveLeftovers, it removes the VMs that an earlier run left
// in the pool instead of refusing them.
func (r *run) readBounds(ctx context.Context) error {
	found, err := r.read(ctx, "GET /pools", map[string]string{"poolid": r.cfg.Pool})
	if err != nil {
		return fmt.Errorf("pool %s: %w", r.cfg.Pool, err)
	}

	// leftovers contains the hosts of the pool's VMs that an earlier run created, by VMID.
	// An interrupted clone may lack a description, but it has the name.
	leftovers := map[int]string{}
	for _, pool := range found {
		members, _ := pool["members"].([]any)
		for _, element := range members {
			member, ok := element.(map[string]any)
			vmid, err := strconv.Atoi(textOf(member["vmid"]))
			if !ok || err != nil || member["type"] != "qemu" || !r.inRange(vmid) {
				continue
			}
			host := textOf(member["node"])
			config, err := r.read(ctx, fmt.Sprintf("GET /nodes/%s/qemu/%d/config", host, vmid), nil)
			if err != nil {
				return err
			}
			if strings.HasPrefix(textOf(config[0]["description"]), description) || strings.HasPrefix(textOf(config[0]["name"]), own) {
				leftovers[vmid] = host
			}
		}
	}

	// A refused run removes r.vms, so add the leftovers only after all VMIDs are checked.
	for vmid := r.cfg.Lower; vmid <= r.cfg.Upper; vmid++ {
		got, err := r.send(ctx, &Step{Request: "GET /cluster/nextid", Params: map[string]string{"vmid": strconv.Itoa(vmid)}}, r.keeper())
		if err != nil {
			return err
		}
		_, left := leftovers[vmid]
		switch {
		case got.status == http.StatusOK:
		case got.status != http.StatusBadRequest:
			return fmt.Errorf("checking whether VMID %d is free: %d %s", vmid, got.status, got.reason)
		case !left:
			return &BoundsError{fmt.Sprintf("VMID %d is used by a guest that no run created; nothing was changed: set another range with --vmids", vmid)}
		case !r.cfg.RemoveLeftovers:
			return &BoundsError{fmt.Sprintf("VMID %d is used by a VM of another run: wait until that run ends, or, if it was killed, add --remove-leftovers to destroy its VMs", vmid)}
		}
	}
	if r.cfg.RemoveLeftovers {
		maps.Copy(r.vms, leftovers)
	}
	return r.removeVMs(ctx, nil)
}

// given creates the state before a case.
func (r *run) given(ctx context.Context, words []string) error {
	r.values["free-vmid"] = strconv.Itoa(r.free())
	for _, word := range words {
		var err error
		switch word {
		case "vm":
			r.values["vm"] = strconv.Itoa(r.cfg.Lower)
			if !r.shared {
				r.shared = true
				err = r.createVM(ctx, r.cfg.Lower)
			}
		case "own-vm", "running", "template":
			err = r.createVM(ctx, r.free())
			after := map[string]string{"running": "/status/start", "template": "/template"}[word]
			if err == nil && after != "" {
				_, err = r.must(ctx, fmt.Sprintf("POST /nodes/%s/qemu/%s%s", r.values["host"], r.values["vm"], after), nil)
			}
		case "iso":
			// A file that is an ISO by name only, for the host that receives the request: uploads
			// are not proxied.
			var found []string
			found, err = r.step(ctx, &Step{
				Request: fmt.Sprintf("POST /nodes/%s/storage/%s/upload", r.values["host"], r.values["iso-storage"]),
				Params:  map[string]string{"content": "iso"},
				File:    &File{Name: own + ".iso", Text: "numaform"},
			})
			if err == nil && len(found) > 0 {
				err = errors.New("uploading an ISO: " + strings.Join(found, "; "))
			}
		case "pool":
			_, err = r.must(ctx, "POST /pools", map[string]string{"poolid": r.values["own-pool"]})
		}
		if err != nil {
			return err
		}
	}
	r.values["free-vmid"] = strconv.Itoa(r.free())
	return nil
}

// free returns an unused VMID of the range. The first is reserved for the shared VM, and
// the last is never used.
func (r *run) free() int {
	for vmid := r.cfg.Lower + 1; ; vmid++ {
		if _, used := r.vms[vmid]; !used {
			return vmid
		}
	}
}

// createVM creates a small VM.
func (r *run) createVM(ctx context.Context, vmid int) error {
	r.values["vm"] = strconv.Itoa(vmid)
	_, err := r.must(ctx, "POST /nodes/"+r.values["host"]+"/qemu", map[string]string{
		"vmid":        r.values["vm"],
		"name":        own + "-" + r.values["vm"],
		"pool":        r.cfg.Pool,
		"description": description,
		"ostype":      "l26",
		"cores":       "1",
		"memory":      "512",
		"scsihw":      "virtio-scsi-pci",
		"scsi0":       r.values["storage"] + ":1",
		"net0":        "virtio,bridge=" + r.cfg.Bridge,
		"agent":       "1",
	})
	return err
}

// token returns a token of a user with exactly these privileges, by path.
func (r *run) token(ctx context.Context, privileges map[string]string) (http.Header, error) {
	key := fmt.Sprint(privileges) // maps print sorted
	if known := r.tokens[key]; known != nil {
		return known, nil
	}
	name := fmt.Sprintf("%s-%d", own, len(r.tokens)+1)
	user := name + "@pve"
	role := func(i int) string { return fmt.Sprintf("%s-%d", name, i) }
	paths := slices.Sorted(maps.Keys(privileges))
	var requests []Step
	for i, path := range paths { // removal is in reverse order: the user with its ACL entries before the roles
		requests = append(requests, Step{Request: "POST /access/roles", Params: map[string]string{"roleid": role(i), "privs": privileges[path]}})
	}
	requests = append(requests, Step{Request: "POST /access/users", Params: map[string]string{"userid": user, "comment": description}})
	for i, path := range paths {
		requests = append(requests, Step{Request: "PUT /access/acl", Params: map[string]string{"path": path, "users": user, "roles": role(i)}})
	}
	requests = append(requests, Step{Request: "POST /access/users/" + user + "/token/kit", Params: map[string]string{"privsep": "0"}})
	for _, request := range requests {
		got, err := r.must(ctx, request.Request, request.Params)
		if err != nil {
			return nil, fmt.Errorf("creating a token: %w", err)
		}
		if made, ok := got.data.(map[string]any); ok {
			r.tokens[key] = http.Header{"Authorization": {"PVEAPIToken=" + textOf(made["full-tokenid"]) + "=" + textOf(made["value"])}}
		}
	}
	return r.tokens[key], nil
}
