package state

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
)

// manifest is the engine's list of the modules that a directory calls, including calls
// within modules.
type manifest struct {
	Modules []moduleCall
}

// moduleCall is one call. Key is its path of labels, such as a.b.
type moduleCall struct {
	Key     string
	Source  string
	Version string `json:",omitempty"`
	Dir     string
}

// manifestFile returns the path where the engine expects it.
func (w *Workspace) manifestFile() string {
	return filepath.Join(w.config.Dir, ".terraform", "modules", "modules.json")
}

// addCalls writes the files' module calls to the engine's list, and reports whether it
// could: each must call a directory that is already in the list, so that its own calls
// and providers are known. Init would do no more.
func (w *Workspace) addCalls(files map[string][]byte) bool {
	calls, plain := localCalls(files)
	content, err := os.ReadFile(w.manifestFile())
	if err != nil || !plain {
		return false
	}
	var old manifest
	if err := json.Unmarshal(content, &old); err != nil {
		return false
	}
	listed, ok := old.with(calls)
	if !ok {
		return false
	}
	if content, err = json.Marshal(listed); err != nil {
		return false
	}
	return renameio.WriteFile(w.manifestFile(), content, 0o644) == nil
}

// localCalls returns the source of each module call, and false if a source is not a
// directory.
func localCalls(files map[string][]byte) (calls map[string]string, plain bool) {
	calls = map[string]string{}
	for name, content := range files {
		if !strings.HasSuffix(name, ".tf") {
			continue
		}
		for _, block := range blocks(name, content, "module") {
			source := constant(block.Body.Attributes["source"])["source"]
			local := strings.HasPrefix(source, "./") || strings.HasPrefix(source, "../")
			if _, twice := calls[strings.Join(block.Labels, "")]; twice || !local || len(block.Labels) != 1 || block.Body.Attributes["version"] != nil {
				return nil, false
			}
			calls[block.Labels[0]] = source
		}
	}
	return calls, true
}

// with returns the list with exactly these calls, and false if one calls a module that is
// not in the list.
func (m manifest) with(calls map[string]string) (manifest, bool) {
	var listed manifest
	models := map[string][]moduleCall{}
	for _, call := range m.Modules {
		if call.Key == "" {
			listed.Modules = append(listed.Modules, call)
		} else if models[call.Source] == nil && !strings.Contains(call.Key, ".") {
			models[call.Source] = m.below(call.Key)
		}
	}
	for label, source := range calls {
		model := models[source]
		if model == nil {
			return manifest{}, false
		}
		for _, call := range model {
			call.Key = label + strings.TrimPrefix(call.Key, model[0].Key)
			listed.Modules = append(listed.Modules, call)
		}
	}
	slices.SortFunc(listed.Modules, func(a, b moduleCall) int { return strings.Compare(a.Key, b.Key) })
	return listed, true
}

// below returns a call, followed by the calls of the module that it calls.
func (m manifest) below(key string) []moduleCall {
	var itself, inner []moduleCall
	for _, call := range m.Modules {
		switch {
		case call.Key == key:
			itself = append(itself, call)
		case strings.HasPrefix(call.Key, key+"."):
			inner = append(inner, call)
		}
	}
	return append(itself, inner...)
}
