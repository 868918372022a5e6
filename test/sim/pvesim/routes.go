package pvesim

import (
	"fmt"
	"sort"
	"strings"
)

// handler implements one method. It returns data to encode as JSON, or an *apiError.
type handler func(*request) (any, error)

// routeNode is one segment of the API's paths.
type routeNode struct {
	static  map[string]*routeNode
	param   string // name of the placeholder that child is for
	child   *routeNode
	rest    bool // child takes all remaining segments: volume IDs contain slashes
	methods map[string]*endpoint
	known   map[string]bool // methods of Proxmox that the simulator lacks
}

func newRouteNode() *routeNode {
	return &routeNode{static: map[string]*routeNode{}, methods: map[string]*endpoint{}, known: map[string]bool{}}
}

// buildRoutes combines the schema and the handlers; both must have the same methods.
func buildRoutes(a *api, handlers map[string]handler) (*routeNode, error) {
	root := newRouteNode()
	var missing []string
	for name, e := range a.methods {
		handle, ok := handlers[name]
		if !ok {
			missing = append(missing, "handler for "+name)
			continue
		}
		served := *e
		served.handle = handle
		method, path, _ := strings.Cut(name, " ")
		root.at(path).methods[method] = &served
	}
	for name := range handlers {
		if a.methods[name] == nil {
			missing = append(missing, "schema for "+name)
		}
	}
	for name := range a.unserved {
		method, path, _ := strings.Cut(name, " ")
		root.at(path).known[method] = true
	}
	if len(missing) > 0 {
		sort.Strings(missing)
		return nil, fmt.Errorf("building routes: no %s", strings.Join(missing, ", no "))
	}
	return root, nil
}

// at returns the node of a path with placeholders, and creates it if missing.
func (n *routeNode) at(path string) *routeNode {
	for _, segment := range splitPath(path) {
		if name, ok := strings.CutPrefix(segment, "{"); ok {
			if n.child == nil {
				n.child = newRouteNode()
			}
			n.param = strings.TrimSuffix(name, "}")
			n.rest = n.param == "volume"
			n = n.child
			continue
		}
		if n.static[segment] == nil {
			n.static[segment] = newRouteNode()
		}
		n = n.static[segment]
	}
	return n
}

// find returns the node of a request's path, or nil, and the values of its placeholders.
func (n *routeNode) find(path string) (*routeNode, map[string]string) {
	values := map[string]string{}
	segments := splitPath(path)
	for i, segment := range segments {
		if next := n.static[segment]; next != nil {
			n = next
			continue
		}
		if n.child == nil {
			return nil, nil
		}
		if n.rest {
			values[n.param] = strings.Join(segments[i:], "/")
			return n.child, values
		}
		values[n.param] = segment
		n = n.child
	}
	return n, values
}

// splitPath splits at slashes and drops empty segments, as Proxmox does.
func splitPath(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// lookup returns the endpoint, or a 501.
func (n *routeNode) lookup(method, path string) (*endpoint, map[string]string, *apiError) {
	at, values := n.find(path)
	if at != nil && at.methods[method] != nil {
		return at.methods[method], values, nil
	}
	e := &apiError{code: 501, message: fmt.Sprintf("Method '%s %s' not implemented", method, path)}
	if at != nil && at.known[method] {
		e.message += " by pvesim, though Proxmox VE has it"
	}
	return nil, nil, e
}
