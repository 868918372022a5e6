package conformance

import (
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

// prepare logs in, reads the cluster, and refuses bounds that contain objects not created
// by a run.
func (r *run) prepare(ctx context.Context) error {
	if r.cfg.Upper-r.cfg.Lower < fewestVMIDs {
		return &BoundsError{fmt.Sprintf("VMIDs %d-%d: %d are needed", r.cfg.Lower, r.cfg.Upper, fewestVMIDs+1)}
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
	for _, read := range []func(context.Context) error{r.readVersion, r.readHosts, r.readTemplate, r.readStorages, r.readBounds} {
		if err := read(ctx); err != nil {
			return err
		}
	}
	maps.Copy(r.have, map[string]bool{
		"root": r.root != nil, "token": r.cfg.Login.TokenID != "", "destructive": r.cfg.Destructive, "slow": r.cfg.Slow,
		"iso": r.values["iso-storage"] != "",
	})
	user, name, _ := strings.Cut(r.cfg.Login.TokenID, "!")
	if user == "" {
		user = r.cfg.Login.Username
	}
	maps.Copy(r.values, map[string]string{
		"pool": r.cfg.Pool, "own-pool": r.cfg.Pool + "/" + own, "bridge": r.cfg.Bridge, "template": strconv.Itoa(r.cfg.Template),
		"user": user, "token-user": user, "token-name": name, "token-id": r.cfg.Login.TokenID,
		"iso":          own + ".iso",
		"missing-host": "numaform-kit-none", "missing-storage": "numaform-kit-none", "missing-pool": "numaform-kit-none",
		"missing-vmid": strconv.Itoa(r.cfg.Upper),
	})
	r.values["missing-upid"] = "UPID:" + r.values["host"] + ":00000001:00000002:60000000:qmstart:" + r.values["missing-vmid"] + ":root@pam:"
	return nil
}

// read sends a request of the run itself and returns its result as a list of objects.
func (r *run) read(ctx context.Context, request string, params map[string]string) ([]map[string]any, error) {
	got, err := r.want(ctx, request, params)
	if err != nil {
		return nil, fmt.Errorf("reading what the cluster has: %w", err)
	}
	list, isList := got.data.([]any)
	if !isList {
		list = []any{got.data}
	}
	var objects []map[string]any
	for _, element := range list {
		if object, ok := element.(map[string]any); ok {
			objects = append(objects, object)
		}
	}
	return objects, nil
}

func (r *run) readVersion(ctx context.Context) error {
	found, err := r.read(ctx, "GET /version", nil)
	if err == nil && len(found) == 1 {
		r.version = textOf(found[0]["version"])
	}
	return err
}

// readHosts finds the online hosts, and the one that answers.
func (r *run) readHosts(ctx context.Context) error {
	found, err := r.read(ctx, "GET /cluster/status", nil)
	if err != nil {
		return err
	}
	var names []string
	for _, member := range found {
		if member["type"] == "node" && textOf(member["online"]) == "1" {
			name := textOf(member["name"])
			names = append(names, name)
			if textOf(member["local"]) == "1" {
				r.values["asked-host"] = name
			}
		}
	}
	r.values["hosts"] = strconv.Itoa(len(names))
	r.have["hosts"] = len(names) > 1
	if r.cfg.Host != "" && !slices.Contains(names, r.cfg.Host) {
		return &BoundsError{fmt.Sprintf("host %s is not online in this cluster: its hosts are %s", r.cfg.Host, strings.Join(names, ", "))}
	}
	r.values["names"] = strings.Join(names, " ")
	return nil
}

// readTemplate finds the host of the template, which all VMs use.
func (r *run) readTemplate(ctx context.Context) error {
	found, err := r.read(ctx, "GET /cluster/resources", map[string]string{"type": "vm"})
	if err != nil {
		return err
	}
	for _, guest := range found {
		if textOf(guest["vmid"]) != strconv.Itoa(r.cfg.Template) {
			continue
		}
		if textOf(guest["template"]) != "1" {
			return &BoundsError{fmt.Sprintf("VM %d is no template", r.cfg.Template)}
		}
		host := textOf(guest["node"])
		if r.cfg.Host != "" && r.cfg.Host != host {
			return &BoundsError{fmt.Sprintf("template %d is on host %s, not on %s", r.cfg.Template, host, r.cfg.Host)}
		}
		r.values["host"] = host
		for name := range strings.FieldsSeq(r.values["names"]) {
			if name != host && r.values["other-host"] == "" {
				r.values["other-host"] = name
			}
			if name != r.values["asked-host"] && r.values["remote-host"] == "" {
				r.values["remote-host"] = name
			}
		}
		return nil
	}
	return &BoundsError{fmt.Sprintf("template %d is not there, or cannot be seen by the credential", r.cfg.Template)}
}

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
		return &BoundsError{fmt.Sprintf("host %s has no storage %s for disks", r.values["host"], r.cfg.Storage)}
	}
	return nil
}

// readBounds refuses a missing pool and used VMIDs, including guests that the credential
// may not see.
func (r *run) readBounds(ctx context.Context) error {
	found, err := r.read(ctx, "GET /pools", map[string]string{"poolid": r.cfg.Pool})
	if err != nil {
		return fmt.Errorf("pool %s: %w", r.cfg.Pool, err)
	}
	leftovers, err := r.leftovers(ctx, found)
	if err != nil {
		return err
	}
	for vmid := r.cfg.Lower; vmid <= r.cfg.Upper; vmid++ {
		got, err := r.send(ctx, &Step{Request: "GET /cluster/nextid", Params: map[string]string{"vmid": strconv.Itoa(vmid)}}, r.keeper())
		if err != nil {
			return err
		}
		host, left := leftovers[vmid]
		switch {
		case got.status == http.StatusOK:
		case got.status != http.StatusBadRequest:
			return fmt.Errorf("asking whether VMID %d is free: %d %s", vmid, got.status, got.reason)
		case !left:
			return &BoundsError{fmt.Sprintf("VMID %d is taken by a guest that is not ours: nothing was changed: choose another range with --vmids", vmid)}
		case !r.cfg.RemoveLeftovers:
			return &BoundsError{fmt.Sprintf("VMID %d is left over from a run that was killed, or another run is using it: end that run, or add --remove-leftovers", vmid)}
		default:
			r.vms[vmid] = host
		}
	}
	return r.removeVMs(ctx, nil)
}

// leftovers returns the VMs of the range and pool that an earlier run created, with their
// hosts. A killed clone may lack a description, but it has the name.
func (r *run) leftovers(ctx context.Context, pools []map[string]any) (map[int]string, error) {
	left := map[int]string{}
	for _, pool := range pools {
		members, _ := pool["members"].([]any)
		for _, element := range members {
			member, ok := element.(map[string]any)
			vmid, err := strconv.Atoi(textOf(member["vmid"]))
			if !ok || err != nil || member["type"] != "qemu" || !r.inRange(vmid) {
				continue
			}
			host := textOf(member["node"])
			found, err := r.read(ctx, fmt.Sprintf("GET /nodes/%s/qemu/%d/config", host, vmid), nil)
			if err != nil {
				return nil, err
			}
			if strings.HasPrefix(textOf(found[0]["description"]), description) || strings.HasPrefix(textOf(found[0]["name"]), own) {
				left[vmid] = host
			}
		}
	}
	return left, nil
}

// given creates the state before a case.
func (r *run) given(ctx context.Context, words []string) error {
	r.values["free-vmid"] = strconv.Itoa(r.free())
	for _, word := range words {
		var err error
		switch word {
		case "vm":
			err = r.sharedVM(ctx)
		case "own-vm":
			err = r.newVM(ctx)
		case "running":
			if err = r.newVM(ctx); err == nil {
				err = r.onVM(ctx, "POST", "/status/start")
			}
		case "template":
			if err = r.newVM(ctx); err == nil {
				err = r.onVM(ctx, "POST", "/template")
			}
		case "iso":
			err = r.newISO(ctx)
		case "pool":
			_, err = r.want(ctx, "POST /pools", map[string]string{"poolid": r.values["own-pool"]})
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
		if _, taken := r.vms[vmid]; !taken {
			return vmid
		}
	}
}

func (r *run) sharedVM(ctx context.Context) error {
	if r.shared {
		r.values["vm"] = strconv.Itoa(r.cfg.Lower)
		return nil
	}
	r.shared = true
	return r.createVM(ctx, r.cfg.Lower)
}

// newVM creates a small VM.
func (r *run) newVM(ctx context.Context) error { return r.createVM(ctx, r.free()) }

func (r *run) createVM(ctx context.Context, vmid int) error {
	r.values["vm"] = strconv.Itoa(vmid)
	_, err := r.want(ctx, "POST /nodes/"+r.values["host"]+"/qemu", map[string]string{
		"vmid": r.values["vm"], "name": own + "-" + r.values["vm"], "pool": r.cfg.Pool, "description": description, "ostype": "l26",
		"cores": "1", "memory": "512", "scsihw": "virtio-scsi-pci", "scsi0": r.values["storage"] + ":1",
		"net0": "virtio,bridge=" + r.cfg.Bridge, "agent": "1",
	})
	return err
}

func (r *run) onVM(ctx context.Context, method, below string) error {
	_, err := r.want(ctx, fmt.Sprintf("%s /nodes/%s/qemu/%s%s", method, r.values["host"], r.values["vm"], below), nil)
	return err
}

// newISO uploads a file that is an ISO by name only, to the host that receives the request:
// uploads are not proxied.
func (r *run) newISO(ctx context.Context) error {
	s := &Step{
		Request: fmt.Sprintf("POST /nodes/%s/storage/%s/upload", r.values["host"], r.values["iso-storage"]),
		Params:  map[string]string{"content": "iso"}, File: &File{Name: own + ".iso", Text: "numaform"},
	}
	found, err := r.step(ctx, s)
	if err == nil && len(found) > 0 {
		err = errors.New("uploading an ISO: " + strings.Join(found, "; "))
	}
	return err
}

// credential returns the header for a step.
func (r *run) credential(ctx context.Context, s *Step) (http.Header, error) {
	switch {
	case s.Privileges != nil:
		return r.token(ctx, s.Privileges)
	case s.As == "none":
		return nil, nil
	case s.As == "root":
		return r.root, nil
	case s.As == "keeper":
		return r.keeper(), nil
	}
	return r.configured, nil
}

// token returns a token of a user with exactly these privileges, by path.
func (r *run) token(ctx context.Context, privileges map[string]string) (http.Header, error) {
	key := fmt.Sprint(privileges) // maps print sorted
	if known := r.tokens[key]; known != nil {
		return known, nil
	}
	name := fmt.Sprintf("%s-%d", own, len(r.tokens)+1)
	user := name + "@pve"
	paths := slices.Sorted(maps.Keys(privileges))
	type request struct {
		text   string
		params map[string]string
	}
	var requests []request
	for i, path := range paths { // removal is in reverse order, so roles go after the entries that name them
		role := fmt.Sprintf("%s-%d", name, i)
		requests = append(requests, request{"POST /access/roles", map[string]string{"roleid": role, "privs": privileges[path]}})
	}
	requests = append(requests, request{"POST /access/users", map[string]string{"userid": user, "comment": description}})
	for i, path := range paths {
		requests = append(requests, request{"PUT /access/acl", map[string]string{"path": path, "users": user, "roles": fmt.Sprintf("%s-%d", name, i)}})
	}
	token := "/access/users/" + user + "/token/kit"
	requests = append(requests, request{"POST " + token, map[string]string{"privsep": "0"}})
	for _, request := range requests {
		got, err := r.want(ctx, request.text, request.params)
		if err != nil {
			return nil, fmt.Errorf("making a token: %w", err)
		}
		if made, ok := got.data.(map[string]any); ok {
			r.tokens[key] = http.Header{"Authorization": {"PVEAPIToken=" + textOf(made["full-tokenid"]) + "=" + textOf(made["value"])}}
		}
	}
	return r.tokens[key], nil
}
