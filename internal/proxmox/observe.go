package proxmox

import (
	"errors"
	"net/http"
	"strings"
	"time"
)

// Observe is called for every request to Proxmox with its method, the template of its
// path, such as /nodes/{node}/qemu/{vmid}/config, the HTTP status, or 0 without a
// response, and its duration without the time in the queue.
type Observe func(method, path string, code int, took time.Duration)

// observed sends a request and calls the observer.
func (t *transport) observed(req *http.Request) (*http.Response, error) {
	if t.observe == nil {
		return t.inTurn(req)
	}
	began := time.Now()
	res, err := t.inTurn(req)
	code := 0
	var refused *statusError
	switch {
	case err == nil:
		code = res.StatusCode
	case errors.As(err, &refused):
		code = refused.code
	}
	t.observe(req.Method, pathTemplate(req.URL.Path), code, time.Since(began))
	return res, err
}

// placeholders maps a path element to the placeholder for the name or number that follows
// it, which metrics must not distinguish.
func placeholders() map[string]string {
	return map[string]string{
		"nodes": "{node}", "qemu": "{vmid}", "lxc": "{vmid}", "storage": "{storage}", "tasks": "{upid}",
		"content": "{volume}", "pools": "{poolid}", "users": "{userid}", "roles": "{roleid}", "pid": "{pid}",
	}
}

// pathTemplate returns the path of a request with placeholders for names and numbers, and
// without the API's prefix.
func pathTemplate(path string) string {
	if _, api, ok := strings.Cut(path, "/api2/json"); ok {
		path = api
	}
	known := placeholders()
	elements := strings.Split(strings.Trim(path, "/"), "/")
	for i := 1; i < len(elements); i++ {
		name, ok := known[elements[i-1]]
		if !ok || isPlaceholder(elements[i-1]) {
			continue
		}
		elements[i] = name
		if name == "{volume}" {
			elements = elements[:i+1] // a volume's name may contain slashes
		}
	}
	return "/" + strings.Join(elements, "/")
}

func isPlaceholder(element string) bool { return strings.HasPrefix(element, "{") }
