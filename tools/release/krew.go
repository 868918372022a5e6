package main

import (
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// downloads is the URL below which the workflow publishes the files of a release.
const downloads = "https://github.com/numaform/numaform/releases/download/"

// plugin is a krew manifest: krew.googlecontainertools.github.com/v1alpha2.
type plugin struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   pluginMetadata `json:"metadata"`
	Spec       pluginSpec     `json:"spec"`
}

type pluginMetadata struct {
	Name string `json:"name"`
}

type pluginSpec struct {
	Version          string           `json:"version"`
	Homepage         string           `json:"homepage"`
	ShortDescription string           `json:"shortDescription"`
	Description      string           `json:"description"`
	Platforms        []pluginPlatform `json:"platforms"`
}

type pluginPlatform struct {
	Selector pluginSelector `json:"selector"`
	URI      string         `json:"uri"`
	SHA256   string         `json:"sha256"`
	Bin      string         `json:"bin"`
}

type pluginSelector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

// krew writes the manifest of `kubectl numaform`. The plugin is numaform itself, which krew
// links as kubectl-numaform.
func (c *config) krew() error {
	manifest := plugin{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2",
		Kind:       "Plugin",
		Metadata:   pluginMetadata{Name: "numaform"},
		Spec: pluginSpec{
			Version:          "v" + c.version,
			Homepage:         "https://github.com/numaform/numaform",
			ShortDescription: "Plan and apply nodes on Proxmox VE",
			Description: "Plans, approves and applies the nodes of numaform, a node autoscaler for Proxmox VE\n" +
				"in which every change of the fleet is an infrastructure diff.\n",
		},
	}
	for _, platform := range platforms {
		name := c.archiveName("numaform", platform)
		sum, err := sha256Of(filepath.Join(c.out, name))
		if err != nil {
			return err
		}
		system, arch, _ := strings.Cut(platform, "_")
		manifest.Spec.Platforms = append(manifest.Spec.Platforms, pluginPlatform{
			Selector: pluginSelector{MatchLabels: map[string]string{"os": system, "arch": arch}},
			URI:      downloads + "v" + c.version + "/" + name,
			SHA256:   sum,
			Bin:      "numaform",
		})
	}
	text, err := yaml.Marshal(manifest)
	if err != nil {
		return err
	}
	return c.write("krew/numaform.yaml", text)
}
