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
	if pool := s.Params["pool"]; pool != "" && !r.ownPool(pool) && pool != r.cfg.Pool && pool != r.values["missing-pool"] {
		return false
	}
	switch parts[0] {
	case "version": // no method of Proxmox changes it
		return true
	case "pools":
		return r.mayChangePool(method, parts, s)
	case "access":
		return r.mayChangeAccess(parts, s)
	case "nodes":
		if len(parts) > 2 {
			return r.mayChangeNode(method, parts[2:], s)
		}
	}
	return false
}

func (r *run) ownPool(name string) bool { return strings.HasPrefix(name, r.cfg.Pool+"/"+own) }

func (r *run) mayChangePool(method string, parts []string, s *Step) bool {
	name := s.Params["poolid"]
	if len(parts) > 1 {
		name = strings.Join(parts[1:], "/")
	}
	for _, list := range []string{s.Params["vms"], s.Params["storage"]} {
		for _, member := range strings.FieldsFunc(list, func(c rune) bool { return c == ',' }) {
			if vmid, err := strconv.Atoi(member); err != nil || !r.inRange(vmid) {
				return false
			}
		}
	}
	// An existing pool is not created again.
	return r.ownPool(name) || name == r.values["missing-pool"] || name == "" || !poolName(name) ||
		(method == http.MethodPost && name == r.cfg.Pool)
}

// poolName reports whether Proxmox would accept the name.
func poolName(name string) bool {
	return !strings.ContainsAny(name, " !") && strings.Count(name, "/") < 3
}

func (r *run) mayChangeAccess(parts []string, s *Step) bool {
	if len(parts) < 2 {
		return false
	}
	name := ""
	if len(parts) > 2 {
		name = parts[2]
	}
	switch parts[1] {
	case "ticket":
		return true
	case "users":
		return strings.HasPrefix(name+s.Params["userid"], own)
	case "roles":
		return strings.HasPrefix(name+s.Params["roleid"], own)
	case "acl":
		return strings.HasPrefix(s.Params["users"], own) && strings.HasPrefix(s.Params["roles"], own) && s.Params["tokens"] == "" && s.Params["groups"] == ""
	}
	return false
}

// mayChangeNode checks the part of a path after /nodes/HOST.
func (r *run) mayChangeNode(method string, parts []string, s *Step) bool {
	switch parts[0] {
	case "qemu":
		return r.mayChangeVM(parts[1:], s)
	case "storage":
		return r.mayChangeStorage(method, parts[1:], s)
	case "tasks": // a missing task, or an own one that has ended
		return len(parts) > 1 && (parts[1] == r.values["missing-upid"] || parts[1] == r.values["upid"])
	case "nothing":
		return true
	case "config": // the caller has no privilege, and no value is given
		return s.Privileges != nil && len(s.Params) == 0
	}
	return false
}

func (r *run) mayChangeVM(parts []string, s *Step) bool {
	if len(parts) == 0 {
		return r.ownVMID(s.Params["vmid"])
	}
	if len(parts) == 2 && parts[1] == "clone" {
		return r.ownVMID(s.Params["newid"]) && (parts[0] == strconv.Itoa(r.cfg.Template) || r.ownVMID(parts[0]))
	}
	return r.ownVMID(parts[0])
}

// ownVMID reports whether a VMID is in the range, or is not a VMID.
func (r *run) ownVMID(text string) bool {
	const least, most = 100, 999999999
	vmid, err := strconv.Atoi(text)
	return err != nil || vmid < least || vmid > most || r.inRange(vmid)
}

func (r *run) mayChangeStorage(method string, parts []string, s *Step) bool {
	if len(parts) < 2 {
		return false
	}
	name := s.Params["filename"]
	if s.File != nil {
		name = s.File.Name
	}
	if parts[1] != "content" {
		return name == "" || strings.HasPrefix(name, own)
	}
	volume := strings.Join(parts[2:], "/")
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
