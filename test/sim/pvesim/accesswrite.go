package pvesim

import "strings"

// writeAccess makes the requested change with the equivalent pveum command, if the cluster
// is writable. The command's errors get the prefix, as in
// PVE::AccessControl::lock_user_config.
func (r *request) writeAccess(prefix string, command shellCommand) (string, error) {
	if e := r.s.state.writableNow(); e != nil {
		return "", e
	}
	out, err := r.s.access.administer(command)
	if err != nil {
		return "", dief("%s: %s", prefix, err)
	}
	return out, nil
}

// createUser handles POST /access/users. The new user has no password and cannot log in.
func createUser(r *request) (any, error) {
	id := r.p["userid"]
	if a := r.s.access; a.hasUser(id) {
		return nil, dief("create user failed: user '%s' already exists", id)
	}
	_, err := r.writeAccess("create user failed", shellCommand{name: "pveum user add", args: []string{id}})
	return nil, err
}

func (a *access) hasUser(id string) bool {
	a.table.RLock()
	defer a.table.RUnlock()
	_, known := a.users[id]
	return known
}

// deleteUser handles DELETE /access/users/{userid}. It also removes the user's tokens and
// entries in the access control list.
func deleteUser(r *request) (any, error) {
	id := r.p["userid"]
	if !r.s.access.hasUser(id) {
		return nil, dief("no such user ('%s')", id)
	}
	return r.dropAccess(func(a *access) {
		delete(a.users, id)
		for token := range a.tokens {
			if identity(token).user() == id {
				delete(a.tokens, token)
			}
		}
		for _, subjects := range a.acl {
			for subject := range subjects {
				if identity(subject).user() == id {
					delete(subjects, subject)
				}
			}
		}
	})
}

// dropAccess removes entries from the access tables, if the cluster is writable.
func (r *request) dropAccess(drop func(*access)) (any, error) {
	if e := r.s.state.writableNow(); e != nil {
		return nil, e
	}
	a := r.s.access
	a.table.Lock()
	defer a.table.Unlock()
	drop(a)
	a.forget()
	return nil, nil
}

// createToken handles POST /access/users/{userid}/token/{tokenid}.
func createToken(r *request) (any, error) {
	user, name := r.p["userid"], r.p["tokenid"]
	id := user + "!" + name
	a := r.s.access
	a.table.RLock()
	_, taken := a.tokens[id]
	a.table.RUnlock()
	switch {
	case !a.hasUser(user):
		return nil, dief("no such user ('%s')", user)
	case taken:
		return nil, oneParamError("tokenid", "Token already exists.")
	}
	options := map[string]string{}
	info := map[string]any{"privsep": 1}
	for _, option := range []string{"privsep", "expire"} {
		if r.p.has(option) {
			options[option] = r.p[option]
			info[option] = r.p.number(option)
		}
	}
	secret, err := r.writeAccess("generating token failed", shellCommand{name: "pveum user token add", args: []string{user, name}, options: options})
	if err != nil {
		return nil, err
	}
	return map[string]any{"full-tokenid": id, "value": secret, "info": info}, nil
}

// deleteToken handles DELETE /access/users/{userid}/token/{tokenid}.
func deleteToken(r *request) (any, error) {
	user, name := r.p["userid"], r.p["tokenid"]
	a := r.s.access
	a.table.RLock()
	_, known := a.tokens[user+"!"+name]
	a.table.RUnlock()
	if !known {
		return nil, dief("no such token '%s' for user '%s'", name, user)
	}
	return r.dropAccess(func(a *access) { delete(a.tokens, user+"!"+name) })
}

// createRole handles POST /access/roles.
func createRole(r *request) (any, error) {
	id := r.p["roleid"]
	a := r.s.access
	a.table.RLock()
	_, known := a.roles[id]
	a.table.RUnlock()
	switch {
	case strings.HasPrefix(strings.ToUpper(id), "PVE"):
		return nil, oneParamError("roleid", "cannot use role ID starting with the (case-insensitive) 'PVE' namespace")
	case known:
		return nil, dief("create role failed: role '%s' already exists", id)
	}
	_, err := r.writeAccess("create role failed", shellCommand{
		name: "pveum role add", args: []string{id}, options: map[string]string{"privs": r.p["privs"]},
	})
	return nil, err
}

// deleteRole handles DELETE /access/roles/{roleid}.
func deleteRole(r *request) (any, error) {
	id := r.p["roleid"]
	a := r.s.access
	a.table.RLock()
	_, known := a.roles[id]
	a.table.RUnlock()
	switch {
	case predefinedRoles(a.major)[id] != nil:
		return nil, dief("auto-generated role '%s' cannot be deleted", id)
	case !known:
		return nil, dief("delete role failed: role '%s' does not exist", id)
	}
	return r.dropAccess(func(a *access) {
		delete(a.roles, id)
		for _, subjects := range a.acl {
			for _, roles := range subjects {
				delete(roles, id)
			}
		}
	})
}

// putACL handles PUT /access/acl, which adds entries or, with delete, removes them.
func putACL(r *request) (any, error) {
	a := r.s.access
	a.table.RLock()
	for _, role := range splitList(r.p["roles"]) {
		if a.roles[role] == nil {
			a.table.RUnlock()
			return nil, dief("ACL update failed: role '%s' does not exist", role)
		}
	}
	a.table.RUnlock()
	if r.p.flag("delete") {
		path := normalizePath(r.p["path"])
		return r.dropAccess(func(a *access) {
			for _, subject := range append(splitList(r.p["users"]), splitList(r.p["tokens"])...) {
				for _, role := range splitList(r.p["roles"]) {
					delete(a.acl[path][subject], role)
				}
			}
		})
	}
	options := r.without("delete path")
	_, err := r.writeAccess("ACL update failed", shellCommand{name: "pveum acl modify", args: []string{r.p["path"]}, options: options})
	return nil, err
}
