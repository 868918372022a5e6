package state

import (
	"fmt"
	"regexp"
)

// noProvider matches the engine's errors about a provider that it cannot get.
var noProvider = regexp.MustCompile(`(resolve|query available|retrieve the list of available|install) (provider|versions)|required_providers`)

// needsProvider returns how to get the provider, if the engine's download failed because
// it is missing.
func (w *Workspace) needsProvider(text string) (fix string, needed bool) {
	if !noProvider.MatchString(text) {
		return "", false
	}
	if dir := w.config.PluginDir; dir != "" {
		return fmt.Sprintf("engine.plugin_dir %s does not hold the provider: fill it with `%s providers mirror %s` where the registry can be reached, or correct the key",
			dir, w.config.Engine.Name(), dir), true
	}
	return fmt.Sprintf("the provider's registry cannot be reached from here: set engine.plugin_dir in numaform.yaml to a directory that "+
		"`%s providers mirror DIR` filled where it can, or HTTPS_PROXY to a way there", w.config.Engine.Name()), true
}
