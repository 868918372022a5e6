// Package conformance lists numaform's assumptions about the Proxmox VE API as cases in
// plain YAML, and checks a Proxmox VE cluster against them. A case has a request, the
// state before it, the expected response, and its source in the code of Proxmox. The
// package depends neither on the simulator nor on another Proxmox client of numaform.
// Start at Cases and Run.
package conformance

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

//go:embed cases/*.yaml
var caseFiles embed.FS

// Case is one assumption: in a given state, a request gets the expected response.
type Case struct {
	// Family is the name of the case's file.
	Family string `yaml:"-"`
	Name   string `yaml:"name"`
	// Source is the repository, version, file and line in Proxmox, or a recorded report.
	Source string `yaml:"source"`
	// Needs lists the prerequisites of the case: see needNames.
	Needs []string `yaml:"needs"`
	// Version limits the Proxmox VE version: ">=9.1", "<9" or both, separated by a space.
	Version string `yaml:"version"`
	// Given is the state before the case:
	//   - vm: a stopped VM that cases share and do not change
	//   - own-vm: a stopped VM with a disk of 1 GiB on scsi0, created for this case
	//   - running: own-vm, started
	//   - template: own-vm, converted to a template
	//   - iso: an ISO file on the storage for ISO files
	//   - pool: a pool below the run's pool, empty
	Given []string `yaml:"given"`
	// Before are requests that must succeed before the case.
	Before []Step `yaml:"before"`
	Step   `yaml:",inline"`
	// Then are requests that verify the side effect.
	Then []Step `yaml:"then"`
	// Each repeats the case with different values of its own placeholders.
	Each []map[string]string `yaml:"each"`
}

// Step is a request and its expected response.
type Step struct {
	// As is the credential: "configured" (the default), "keeper" (root if available, else
	// the configured one), "root" (root@pam by ticket) or "none".
	As string `yaml:"as"`
	// Privileges creates a user with exactly these privileges, as lists by path, and sends
	// the request with a token of that user.
	Privileges map[string]string `yaml:"privileges"`
	// Request is "METHOD /path" below /api2/json.
	Request string            `yaml:"request"`
	Params  map[string]string `yaml:"params"`
	Header  map[string]string `yaml:"header"`
	File    *File             `yaml:"file"`
	Want    Want              `yaml:"want"`
}

// File is uploaded as the part "filename".
type File struct {
	Name string `yaml:"name"`
	Text string `yaml:"text"`
}

// Want is an expected response. Texts are compared exactly; a text that starts with "~" is
// a regular expression for the whole text.
type Want struct {
	Status int `yaml:"status"`
	// Text is the reason in the status line.
	Text string `yaml:"text"`
	// Errors are all errors by parameter, without the trailing newline.
	Errors map[string]string `yaml:"errors"`
	// Data is the text of the whole result: a string, a number or JSON.
	Data string `yaml:"data"`
	// Shape, Has and Lacks describe an object or, in an array, every element or the ones
	// that Item selects.
	Shape map[string]string `yaml:"shape"`
	Has   map[string]string `yaml:"has"`
	Lacks []string          `yaml:"lacks"`
	// Item selects the elements of an array with these values; at least one must exist.
	Item map[string]string `yaml:"item"`
	// NoItem is an element that must not exist.
	NoItem map[string]string `yaml:"no-item"`
	// Meta are members of the response other than data, as text.
	Meta map[string]string `yaml:"meta"`
	Task *Task             `yaml:"task"`
}

// Task is the expected result of the task whose UPID is in the response.
type Task struct {
	Exit string `yaml:"exit"`
	// Host is the UPID's host, Type the type of its task.
	Host string `yaml:"host"`
	Type string `yaml:"type"`
}

// needNames are the valid values of Case.Needs with their meanings.
var needNames = map[string]string{ //nolint:gosec // words, no credentials
	"hosts":       "two hosts or more",
	"root":        "the password of root@pam (--root-password-file)",
	"token":       "an API token in numaform.yaml, not root@pam",
	"iso":         "a storage for ISO files and a credential that may upload to it",
	"lvmthin":     "a storage of type lvmthin",
	"local-disk":  "a storage for disks that is not shared",
	"ha":          "an HA manager",
	"destructive": "--destructive",
	"slow":        "--slow",
}

var placeholder = regexp.MustCompile(`\{([a-z][a-z0-9-]*)\}`)

// Cases returns all cases, with tables expanded.
func Cases() ([]Case, error) {
	names, err := fs.Glob(caseFiles, "cases/*.yaml")
	if err != nil {
		return nil, fmt.Errorf("listing the cases: %w", err)
	}
	var cases []Case
	for _, name := range names {
		text, err := caseFiles.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("reading cases: %w", err)
		}
		family, err := Parse(strings.TrimSuffix(path.Base(name), ".yaml"), text)
		if err != nil {
			return nil, err
		}
		cases = append(cases, family...)
	}
	return cases, nil
}

// Parse reads the cases of one family. Unknown keys are errors.
func Parse(family string, text []byte) ([]Case, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	var written []Case
	if err := decoder.Decode(&written); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("reading cases of %s: %w", family, err)
	}
	var cases []Case
	for _, table := range written {
		rows := table.Each
		if len(rows) == 0 {
			rows = []map[string]string{nil}
		}
		for _, values := range rows {
			c := table.filled(values)
			c.Each = nil
			c.Family = family
			if len(values) > 0 && c.Name == table.Name {
				var parts []string
				for _, key := range slices.Sorted(maps.Keys(values)) {
					parts = append(parts, values[key])
				}
				c.Name += ": " + strings.Join(parts, " ")
			}
			cases = append(cases, c)
		}
	}
	return cases, nil
}

// filler contains the values of placeholders by name.
type filler map[string]string

// filled replaces placeholders, except those without a value.
func (c Case) filled(with filler) Case {
	c.Name = with.replace(c.Name)
	c.Source = with.replace(c.Source)
	c.Step = c.Step.filled(with)
	c.Before = slices.Clone(c.Before)
	c.Then = slices.Clone(c.Then)
	for _, steps := range [][]Step{c.Before, c.Then} {
		for i := range steps {
			steps[i] = steps[i].filled(with)
		}
	}
	return c
}

func (s Step) filled(with filler) Step {
	w := &s.Want
	texts := []*string{&s.As, &s.Request, &w.Text, &w.Data}
	if s.File != nil {
		file := *s.File
		s.File = &file
		texts = append(texts, &file.Name, &file.Text)
	}
	if w.Task != nil {
		task := *w.Task
		w.Task = &task
		texts = append(texts, &task.Exit, &task.Host, &task.Type)
	}
	for _, text := range texts {
		*text = with.replace(*text)
	}

	for _, texts := range []*map[string]string{&s.Params, &s.Header, &s.Privileges, &w.Errors, &w.Shape, &w.Has, &w.Item, &w.NoItem, &w.Meta} {
		if *texts == nil {
			continue
		}
		filled := make(map[string]string, len(*texts))
		for key, text := range *texts {
			if replaced := with.replace(key); replaced != key {
				filled[replaced] = with.replace(text) // wins over a literal key
			} else if _, known := filled[key]; !known {
				filled[key] = with.replace(text)
			}
		}
		*texts = filled
	}
	return s
}

// replace replaces the placeholders in a text. In a regular expression, it quotes their
// values.
func (f filler) replace(text string) string {
	return placeholder.ReplaceAllStringFunc(text, func(found string) string {
		value, ok := f[found[1:len(found)-1]]
		switch {
		case !ok:
			return found
		case strings.HasPrefix(text, "~") && text != found:
			return regexp.QuoteMeta(value)
		}
		return value
	})
}

var digits = regexp.MustCompile(`\d+`)

// versionNumbers returns the first three numbers of a version; missing ones are 0.
func versionNumbers(text string) []int {
	numbers := make([]int, 3)
	for i, number := range digits.FindAllString(text, len(numbers)) {
		numbers[i], _ = strconv.Atoi(number)
	}
	return numbers
}
