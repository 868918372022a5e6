package pvesim

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// schemaJSON contains the permission check of each served method, and its parameters with
// types, formats and bounds, as Proxmox VE declares them ("source" names the versions). It
// also contains the names of known methods that are not served.
//
//go:embed schema.json
var schemaJSON []byte

// api is the parsed schemaJSON.
type api struct {
	methods  map[string]*endpoint // by "GET /nodes/{node}"
	unserved map[string]bool
}

// endpoint is one method of the API.
type endpoint struct {
	name    string // "GET /nodes/{node}"
	params  map[string]*schema
	open    bool // accepts undeclared parameters
	user    string
	check   []any
	proxyTo string
	noToken bool
	handle  handler
}

// schema describes a value, as in PVE::JSONSchema.
type schema struct {
	Type       string             `json:"type"`
	Format     string             `json:"format"`
	Properties map[string]*schema `json:"properties"` // the keys of a property string
	Enum       []string           `json:"enum"`
	Pattern    string             `json:"pattern"`
	Requires   string             `json:"requires"`
	Optional   bool               `json:"optional"`
	Minimum    *float64           `json:"minimum"`
	Maximum    *float64           `json:"maximum"`
	MinLength  *int               `json:"minLength"`
	MaxLength  *int               `json:"maxLength"`
	DefaultKey bool               `json:"defaultKey"`
	Alias      string             `json:"alias"`
	KeyAlias   string             `json:"keyAlias"`
	Items      *schema            `json:"items"`

	pattern *regexp.Regexp
}

// apiSchema returns the parsed schema; it is parsed once.
var apiSchema = sync.OnceValues(func() (*api, error) { return parseSchema(schemaJSON) })

func parseSchema(data []byte) (*api, error) {
	var file struct {
		Schemas []*schema `json:"schemas"`
		Methods map[string]struct {
			Params  map[string]int `json:"params"`
			Open    bool           `json:"open"`
			User    string         `json:"user"`
			Check   []any          `json:"check"`
			ProxyTo string         `json:"proxyto"`
			NoToken bool           `json:"notoken"`
		} `json:"methods"`
		Unserved []string `json:"unserved"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("parsing api schema: %w", err)
	}
	for i, s := range file.Schemas {
		if err := s.compile(); err != nil {
			return nil, fmt.Errorf("parsing api schema %d: %w", i, err)
		}
	}
	result := &api{methods: map[string]*endpoint{}, unserved: map[string]bool{}}
	for name, m := range file.Methods {
		e := &endpoint{name: name, open: m.Open, user: m.User, check: m.Check, proxyTo: m.ProxyTo, noToken: m.NoToken}
		e.params = map[string]*schema{}
		for param, index := range m.Params {
			expandParam(e.params, param, file.Schemas[index])
		}
		result.methods[name] = e
	}
	for _, name := range file.Unserved {
		result.unserved[name] = true
	}
	return result, nil
}

// compile compiles the patterns, and checks that every format is known: an unknown format
// would accept requests that Proxmox refuses.
func (s *schema) compile() error {
	if s.Pattern != "" {
		re, err := regexp.Compile("^" + s.Pattern + "$")
		if err != nil {
			return fmt.Errorf("compiling pattern: %w", err)
		}
		s.pattern = re
	}
	if s.Format != "" && !knownFormat(s.Format) {
		return fmt.Errorf("reading format %q: not implemented", s.Format)
	}
	for _, p := range s.Properties {
		if err := p.compile(); err != nil {
			return err
		}
	}
	if s.Items != nil {
		return s.Items.compile()
	}
	return nil
}

// expandParam adds the parameter, or for "net[32]" all of net0 to net31.
func expandParam(params map[string]*schema, name string, s *schema) {
	base, rest, indexed := strings.Cut(name, "[")
	count, err := strconv.Atoi(strings.TrimSuffix(rest, "]"))
	if !indexed || err != nil {
		params[name] = s
		return
	}
	for i := range count {
		params[base+strconv.Itoa(i)] = s
	}
}
