package generator

import (
	"bytes"
	"encoding/json"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// index is the content of fleet.json: what the files of single roots and VMs do not
// contain.
type index struct {
	FormatVersion int           `json:"format_version"`
	ClusterID     string        `json:"cluster_id"`
	Backend       fleet.Backend `json:"backend"`
	Regions       []indexRegion `json:"regions"`
}

type indexRegion struct {
	Name     topology.RegionName `json:"name"`
	Endpoint string              `json:"endpoint"`
	Insecure bool                `json:"insecure,omitempty"`
}

func renderFleet(files Files, f *fleet.Fleet) error {
	content := index{FormatVersion: FormatVersion, ClusterID: f.ClusterID, Backend: f.Backend}
	for _, region := range f.Regions {
		content.Regions = append(content.Regions,
			indexRegion{Name: region.Name, Endpoint: region.Endpoint, Insecure: region.Insecure})
	}
	text, err := renderJSON(content)
	files[fleetFile] = text
	return err
}

func renderJSON(value any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(value)
	return text.Bytes(), err
}
