package conformance

import (
	"fmt"
	"net/http"
	"path"
	"strconv"
	"strings"
)

// own marks the names of objects that a run creates outside of VMs.
const own = "numaform-kit"

// within refuses a request that could change anything not created by the run, whatever the
// case says and Proxmox answers.
func (r *run) within(s *Step) error {
	method, where, _ := strings.Cut(s.Request, " ")
	if method == http.MethodGet || r.mayChange(method, path.Clean(where), s) {
		return nil
	}
	return fmt.Errorf("%s %v is outside of pool %s and VMIDs %d-%d: not sent", s.Request, s.Params, r.cfg.Pool, r.cfg.Lower, r.cfg.Upper)
}

func (r *run) mayChange(method, where string, s *Step) bool {
	parts := strings.Split(strings.TrimPrefix(where, "/"), "/")
	at := func(i int) string {
		if i < len(parts) {
			return parts[i]
		}
		return ""
	}
	ownPool := func(name string) bool {
		return strings.HasPrefix(name, r.cfg.Pool+"/"+own) || name == r.values["missing-pool"]
	}
	if pool := s.Params["pool"]; pool != "" && !ownPool(pool) && pool != r.cfg.Pool {
		return false
	}

	switch parts[0] {
	case "version": // no method of Proxmox changes it
		return true
	case "pools":
		for _, list := range []string{s.Params["vms"], s.Params["storage"]} {
			for _, member := range strings.FieldsFunc(list, func(c rune) bool { return c == ',' }) {
				if vmid, err := strconv.Atoi(member); err != nil || !r.inRange(vmid) {
					return false
				}
			}
		}
		name := s.Params["poolid"]
		if len(parts) > 1 {
			name = strings.Join(parts[1:], "/")
		}
		// Proxmox refuses these names, and does not create an existing pool again.
		refused := strings.ContainsAny(name, " !") || strings.Count(name, "/") > 2
		return ownPool(name) || name == "" || refused || method == http.MethodPost && name == r.cfg.Pool
	case "access":
		switch at(1) {
		case "ticket":
			return true
		case "users":
			return strings.HasPrefix(at(2)+s.Params["userid"], own)
		case "roles":
			return strings.HasPrefix(at(2)+s.Params["roleid"], own)
		case "acl":
			return strings.HasPrefix(s.Params["users"], own) && strings.HasPrefix(s.Params["roles"], own) && s.Params["tokens"] == "" && s.Params["groups"] == ""
		}
	case "nodes":
		switch at(2) {
		case "qemu":
			if len(parts) == 3 {
				return r.ownVMID(s.Params["vmid"])
			}
			if len(parts) == 5 && parts[4] == "clone" {
				return r.ownVMID(s.Params["newid"]) && (parts[3] == strconv.Itoa(r.cfg.Template) || r.ownVMID(parts[3]))
			}
			return r.ownVMID(parts[3])
		case "storage":
			return len(parts) > 4 && r.mayChangeStorage(method, parts[4:], s)
		case "tasks": // a missing task, or an own one that has ended
			return at(3) != "" && (at(3) == r.values["missing-upid"] || at(3) == r.values["upid"])
		case "nothing":
			return true
		case "config": // the caller has no privilege, and no value is given
			return s.Privileges != nil && len(s.Params) == 0
		}
	}
	return false
}

// ownVMID reports whether a VMID is in the range, or is not a VMID.
func (r *run) ownVMID(text string) bool {
	const least, most = 100, 999999999
	vmid, err := strconv.Atoi(text)
	return err != nil || vmid < least || vmid > most || r.inRange(vmid)
}

// mayChangeStorage checks the part of a path after /nodes/HOST/storage/STORAGE.
func (r *run) mayChangeStorage(method string, parts []string, s *Step) bool {
	if parts[0] != "content" {
		name := s.Params["filename"]
		if s.File != nil {
			name = s.File.Name
		}
		return name == "" || strings.HasPrefix(name, own)
	}
	volume := strings.Join(parts[1:], "/")
	if strings.Contains(volume, own) {
		return true
	}
	for vmid := r.cfg.Lower; vmid <= r.cfg.Upper; vmid++ {
		if strings.Contains(volume, fmt.Sprintf("vm-%d-", vmid)) {
			return method == http.MethodDelete
		}
	}
	return false
}
