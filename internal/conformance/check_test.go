package conformance //nolint:testpackage // the checks use the unexported tables of a run

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCases checks that all cases can be run as written.
func TestCases(t *testing.T) {
	t.Parallel()
	cases, err := Cases()
	if err == nil {
		err = checkCases(cases)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestCheck checks that invalid cases are found.
func TestCheck(t *testing.T) {
	t.Parallel()
	const head = "- name: x\n  source: report x\n"
	for text, want := range map[string]string{
		head + "  request: GET /x\n  wnt: {}":                                     "field wnt not found",
		head + "  request: PATCH /x":                                              "not METHOD /path",
		head + "  request: GET /{nothing}":                                        "unknown placeholder {nothing}",
		head + "  request: GET /x\n  want: {status: 500}":                         "an error requires its text",
		head + "  request: GET /x\n  needs: [luck]":                               `unknown word "luck"`,
		head + "  request: GET /x\n  given: [luck]":                               `unknown word "luck"`,
		head + "  request: GET /x\n  as: me":                                      `unknown word "me"`,
		head + "  request: GET /x\n  version: 9":                                  "not of the form",
		head + "  request: GET /x\n  want: {data: '~('}":                          "missing closing",
		head + "  request: GET /x\n  want: {shape: {a: text}}":                    `unknown type "text"`,
		"- name: x\n  request: GET /x":                                            "name a repository",
		head + "  request: GET /x\n" + head + "  request: GET /y":                 "duplicate name",
		head + "  request: 'GET /{a}'\n  each:\n  - {a: '1'}\n  - {a: '{host2}'}": "unknown placeholder {host2}",
	} {
		cases, err := Parse("test", []byte(text))
		if err == nil {
			err = checkCases(cases)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot %v, want %q", text, err, want)
		}
	}
}

// checkCases returns all mistakes in the cases.
func checkCases(cases []Case) error {
	var mistakes []error
	seen := map[string]bool{}
	for i := range cases {
		c := &cases[i]
		name := c.Family + "/" + c.Name
		if err := checkCase(c); err != nil {
			mistakes = append(mistakes, fmt.Errorf("case %s: %w", name, err))
		}
		if seen[name] {
			mistakes = append(mistakes, fmt.Errorf("case %s: duplicate name", name))
		}
		seen[name] = true
	}
	return errors.Join(mistakes...)
}

// givenNames are the valid values of Case.Given.
var givenNames = []string{
	"vm",       // a stopped VM that cases share: it must not be changed
	"own-vm",   // a stopped VM with a disk of 1 GiB on scsi0, created for this case
	"running",  // own-vm, started
	"template", // own-vm, converted to a template
	"iso",      // an ISO file on the storage for ISO files
	"pool",     // a pool below the run's pool, empty
}

// placeholders are the placeholders that a run replaces.
var placeholders = []string{
	"host", "other-host", "asked-host", "remote-host", "storage", "iso-storage", "bridge", "pool", "own-pool", "template", "vm", "free-vmid",
	"token-id", "token-user", "token-name", "user", "missing-host", "missing-vmid", "missing-storage", "missing-pool", "iso", "upid", "upid-host", "missing-upid",
}

var (
	requestForm = regexp.MustCompile(`^(GET|POST|PUT|DELETE) /\S*$`)
	versionForm = regexp.MustCompile(`^(<|>=)(\d+)(?:\.(\d+))?(?:\.(\d+))?$`)
	sourceForm  = regexp.MustCompile(`^(pve-|qemu-|report )\S.*`)
)

// checkCase returns an error if the case cannot be run.
func checkCase(c *Case) error {
	var mistakes []error
	bad := func(format string, args ...any) { mistakes = append(mistakes, fmt.Errorf(format, args...)) }
	if c.Name == "" {
		bad("has no name")
	}
	if !sourceForm.MatchString(c.Source) {
		bad("source %q: name a repository of Proxmox with version, file and line, or a report", c.Source)
	}
	for _, need := range c.Needs {
		if needNames[need] == "" {
			bad("needs: unknown word %q", need)
		}
	}
	for _, given := range c.Given {
		if !slices.Contains(givenNames, given) {
			bad("given: unknown word %q", given)
		}
	}
	for bound := range strings.FieldsSeq(c.Version) {
		if !versionForm.MatchString(bound) {
			bad("version: %q is not of the form <9 or >=9.1", bound)
		}
	}
	for _, step := range slices.Concat(c.Before, []Step{c.Step}, c.Then) {
		if err := checkStep(&step); err != nil {
			mistakes = append(mistakes, err)
		}
	}
	return errors.Join(mistakes...)
}

// checkStep returns an error if the request cannot be sent or compared as written.
func checkStep(s *Step) error {
	if !requestForm.MatchString(s.Request) {
		return fmt.Errorf("request %q: not METHOD /path", s.Request)
	}
	if !slices.Contains([]string{"", "configured", "keeper", "root", "none"}, s.As) {
		return fmt.Errorf("as: unknown word %q", s.As)
	}
	if s.Want.Status >= 400 && s.Want.Text == "" {
		return fmt.Errorf("%s: an error requires its text", s.Request)
	}
	if s.Want.Status != 0 && s.Want.Status < 200 {
		return fmt.Errorf("%s: want.status %d is not a valid status", s.Request, s.Want.Status)
	}
	all, err := json.Marshal(s)
	if err != nil {
		return err
	}
	for _, found := range placeholder.FindAllStringSubmatch(string(all), -1) {
		if !slices.Contains(placeholders, found[1]) {
			return fmt.Errorf("%s: unknown placeholder {%s}", s.Request, found[1])
		}
	}

	w := &s.Want
	patterns := []string{w.Text, w.Data}
	for _, m := range []map[string]string{w.Errors, w.Has, w.Item, w.NoItem, w.Meta} {
		patterns = append(patterns, slices.Collect(maps.Values(m))...)
	}
	if w.Task != nil {
		patterns = append(patterns, w.Task.Exit, w.Task.Host, w.Task.Type)
	}
	for _, text := range patterns {
		if pattern, ok := strings.CutPrefix(text, "~"); ok {
			if _, err := regexp.Compile(placeholder.ReplaceAllString(pattern, "x")); err != nil {
				return fmt.Errorf("want: %w", err)
			}
		}
	}
	for key, types := range w.Shape {
		for kind := range strings.SplitSeq(types, "|") {
			if !slices.Contains([]string{"string", "integer", "number", "boolean", "array", "object", "null"}, kind) {
				return fmt.Errorf("want.shape.%s: unknown type %q", key, kind)
			}
		}
	}
	return nil
}
