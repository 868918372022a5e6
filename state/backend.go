package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// backend is the backend configured by the files of a directory.
type backend struct {
	// kind is local if there is no backend block.
	kind string
	// settings are the arguments of the block; the value is "" if it is not a constant
	// string.
	settings map[string]string
}

// backendOf reads the backend block of a directory. If the files cannot be read it
// returns no backend, because the engine reports the error.
func backendOf(dir string) backend {
	files, err := configFiles(dir)
	if err != nil {
		return backend{}
	}
	return backendIn(files)
}

// backendIn reads the backend block of files.
func backendIn(files map[string][]byte) backend {
	found := backend{kind: "local"}
	for name, content := range files {
		if !strings.HasSuffix(name, ".tf") {
			continue
		}
		file, _ := hclsyntax.ParseConfig(content, name, hcl.InitialPos)
		body, ok := file.Body.(*hclsyntax.Body)
		if !ok {
			continue
		}
		for _, block := range body.Blocks {
			if block.Type == "terraform" {
				found.read(block.Body)
			}
		}
	}
	return found
}

func (b *backend) read(terraform *hclsyntax.Body) {
	for _, block := range terraform.Blocks {
		if block.Type != "backend" || len(block.Labels) != 1 {
			continue
		}
		b.kind, b.settings = block.Labels[0], map[string]string{}
		for name, attribute := range block.Body.Attributes {
			b.settings[name] = constant(attribute)[name]
		}
	}
}

// troubled matches the engine's errors about a server that does not respond, or responds
// incorrectly.
var troubled = regexp.MustCompile(`connection refused|connection reset|no such host|no route to host|network is unreachable|` +
	`i/o timeout|TLS handshake timeout|deadline exceeded|Client\.Timeout|giving up after|bad connection|broken pipe|: EOF\b|` +
	`response code:? [45]\d\d|StatusCode: [45]\d\d|is (starting up|shutting down)|failed to verify certificate|` +
	`authentication failed|Unauthorized|[Ff]orbidden|AccessDenied|ServiceUnavailable`)

// aboutResource matches what the engine adds to an error that is not the backend's: the
// place in the configuration, or the resource.
var aboutResource = regexp.MustCompile(`(?m)^[\s│]*(with (module|provider|proxmox|data)[.\[_]|on \S+ line \d+)|^(module\.|[a-z_]+\.)\S+: |provider packages?`)

// aboutState matches the start of the engine's error about a state that it could not
// save, lock or release.
var aboutState = regexp.MustCompile(`Failed to save state|Error acquiring the state lock|Error releasing the state lock`)

// advice matches the start of the engine's advice for interactive use.
var advice = regexp.MustCompile(`\s*(Failed to persist state to backend:|(OpenTofu|Terraform) (acquires a (state )?lock|is trying to read))`)

// unreachable returns the kind of backend that, by the engine's text, does not respond,
// or "".
func (w *Workspace) unreachable(text string) string {
	said, _, _ := strings.Cut(text, "\n\nError:")
	if at := aboutState.FindStringIndex(text); at != nil {
		said = text[at[0]:]
	} else if aboutResource.MatchString(said) {
		return ""
	}
	if !troubled.MatchString(strings.Join(strings.Fields(said), " ")) {
		return ""
	}
	if kind := backendOf(w.config.Dir).kind; kind != "local" {
		return kind
	}
	return ""
}

// brief returns the engine's text about a backend as one line, without its advice.
func brief(text string) string {
	if at := advice.FindStringIndex(text); at != nil {
		text = text[:at[0]]
	}
	return strings.TrimPrefix(strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune("│╷╵", r) }), " "), "Error: ")
}

// withoutDefault returns a backend's configuration without a path that equals the
// engine's default for a local state. If the engine is given that path in a new
// directory, it treats the file as a state to migrate, and empties it.
func withoutDefault(c *Config) map[string]string {
	if path := c.BackendConfig["path"]; path == "" || filepath.Clean(path) != filepath.Join(c.Dir, "terraform.tfstate") {
		return c.BackendConfig
	}
	config := maps.Clone(c.BackendConfig)
	delete(config, "path")
	return config
}

// engineData returns the file in which the engine records the backend of a directory.
func engineData(dir string) string { return filepath.Join(dir, ".terraform", "terraform.tfstate") }

// MovedStateError reports that the configured path of a local state has changed while the
// old file still exists.
type MovedStateError struct{ Dir, Was, Wanted string }

// Error returns both paths and how to fix it.
func (e *MovedStateError) Error() string {
	return fmt.Sprintf("state of %s: it was at %s and is expected at %s, and the old file is still there: if the fleet was copied, "+
		"work with one of the copies only and remove the other; if the state was meant to move, move the file", e.Dir, e.Was, e.Wanted)
}

// follow drops the engine's record of a local state's path if the configured path
// differs, because the fleet and its states were moved: the engine would refuse, as it
// does for any changed backend. If another file remains at the old path, follow returns a
// *MovedStateError.
func (w *Workspace) follow() error {
	wanted := w.config.BackendConfig["path"]
	was, err := w.localPath()
	if err != nil {
		return fmt.Errorf("initializing %s: %w", w.config.Dir, err)
	}
	if was == "" || wanted == "" || was == wanted || backendOf(w.config.Dir).kind != "local" {
		return nil
	}
	if old, err := os.Stat(was); err == nil {
		if current, err := os.Stat(wanted); err != nil || !os.SameFile(old, current) {
			return &MovedStateError{Dir: w.config.Dir, Was: was, Wanted: wanted}
		}
	}
	if err := removeFile(engineData(w.config.Dir)); err != nil {
		return fmt.Errorf("initializing %s: %w", w.config.Dir, err)
	}
	return nil
}

// localPath returns the path at which the engine found a local state at its last init, or
// "". It ignores unreadable data, which the engine reports.
func (w *Workspace) localPath() (string, error) {
	content, err := os.ReadFile(engineData(w.config.Dir))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	var data struct {
		Backend struct {
			Type   string `json:"type"`
			Config struct {
				Path string `json:"path"`
			} `json:"config"`
		} `json:"backend"`
	}
	if err != nil || json.Unmarshal(content, &data) != nil {
		return "", err
	}
	path := data.Backend.Config.Path
	switch {
	case data.Backend.Type != "local" || path == "":
		return "", nil
	case filepath.IsAbs(path):
		return path, nil
	}
	return filepath.Join(w.config.Dir, path), nil
}
