package pvesim

import (
	"fmt"
	"strings"
)

// permit returns an error unless the caller passes an endpoint's permission check.
func (a *access) permit(e *endpoint, who identity, given map[string]value) *apiError {
	switch {
	case e.user == "world", who.isRoot():
		return nil
	case who.isToken() && e.noToken:
		_, path, _ := strings.Cut(e.name, " ")
		return permissionError(fmt.Sprintf("URI '%s' not available with API token, need proper ticket.", path))
	case e.user == "all":
		return nil
	case len(e.check) == 0:
		return permissionError("user != root@pam")
	}
	return a.evaluate(e.check, who, given)
}

// evaluate evaluates one expression of Proxmox's permission language, such as and, or and
// perm.
func (a *access) evaluate(check []any, who identity, given map[string]value) *apiError {
	operator, _ := check[0].(string)
	switch operator {
	case "and":
		for _, sub := range check[1:] {
			if e := a.evaluate(sub.([]any), who, given); e != nil {
				return e
			}
		}
		return nil
	case "or":
		for _, sub := range check[1:] {
			if a.evaluate(sub.([]any), who, given) == nil {
				return nil
			}
		}
		return permissionError("")
	case "perm":
		return a.evaluatePerm(check, who, given)
	case "perm-modify":
		return a.checkModify(who, normalizePath(given["path"].text))
	case "userid-param":
		user, privilege := given["userid"].text, check[1].(string)
		if privilege == "self" {
			if string(who) == user {
				return nil
			}
			return permissionError("")
		}
		return a.check(who, "/access/realm/"+user[strings.LastIndex(user, "@")+1:], privilege)
	case "userid-group": // simulated users have no groups
		privileges := a.ofVersion(check[1].([]any))
		if a.checkAny(who, "/access/groups", privileges...) == nil {
			return nil
		}
		if len(check) > 2 {
			return permissionError("/access/groups, " + strings.Join(privileges, "|"))
		}
		return permissionError("")
	}
	return permissionError("")
}

// checkModify returns an error unless who may grant permissions on the path, as Proxmox's
// check_perm_modify does.
func (a *access) checkModify(who identity, path string) *apiError {
	privileges := []string{"Permissions.Modify"}
	for prefix, privilege := range map[string]string{"/storage/": "Datastore.Allocate", "/vms/": "VM.Allocate", "/pool/": "Pool.Allocate"} {
		if strings.HasPrefix(path, prefix) {
			privileges = append(privileges, privilege)
		}
	}
	return a.checkAny(who, path, privileges...)
}

// evaluatePerm evaluates ["perm", path, privileges, option, value, …].
func (a *access) evaluatePerm(check []any, who identity, given map[string]value) *apiError {
	options := map[string]any{}
	for i := 3; i+1 < len(check); i += 2 {
		options[check[i].(string)] = check[i+1]
	}
	if need, ok := options["require_param"].(string); ok {
		if _, has := given[need]; !has {
			return permissionError("")
		}
	}
	path := check[1].(string)
	for name, v := range given {
		path = strings.ReplaceAll(path, "{"+name+"}", v.text)
	}
	privileges := a.ofVersion(check[2].([]any))
	if options["any"] != nil {
		return a.checkAny(who, normalizePath(path), privileges...)
	}
	return a.check(who, normalizePath(path), privileges...)
}

// ofVersion returns the privileges by their names in the cluster's version: VM.GuestAgent.*
// of version 9 is VM.Monitor in 8.
func (a *access) ofVersion(list []any) []string {
	var names []string
	for _, item := range list {
		name := item.(string)
		if a.major == 8 && strings.HasPrefix(name, "VM.GuestAgent.") {
			name = "VM.Monitor"
		}
		if !holds(names, name) {
			names = append(names, name)
		}
	}
	return names
}
