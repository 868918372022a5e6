package state

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Resource is a resource in the state.
type Resource struct {
	Address string
	// Tainted is set if the next plan would replace the resource: see Forget.
	Tainted bool
	// VMID, Host and Description are zero if the resource has none.
	VMID        fleet.VMID
	Host        topology.HostName
	Description string
}

// stored is the part of a state of format 4 that Resources needs.
type stored struct {
	Resources []struct {
		Module    string `json:"module"`
		Mode      string `json:"mode"`
		Type      string `json:"type"`
		Name      string `json:"name"`
		Instances []struct {
			IndexKey   any    `json:"index_key"`
			Status     string `json:"status"`
			Deposed    string `json:"deposed"`
			Attributes struct {
				VMID        any `json:"vm_id"`
				Host        any `json:"node_name"`
				Description any `json:"description"`
			} `json:"attributes"`
		} `json:"instances"`
	} `json:"resources"`
}

// Resources returns the resources in the backend's state, sorted by address. It takes no
// lock.
func (w *Workspace) Resources(ctx context.Context) ([]Resource, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.prepare(ctx); err != nil {
		return nil, err
	}
	pulled, err := w.pull(ctx)
	if err != nil || pulled == "" {
		return nil, err
	}
	resources, err := parseState([]byte(pulled))
	if err != nil {
		return nil, fmt.Errorf("reading the state of %s: %w", w.config.Dir, err)
	}
	return resources, nil
}

// parseState lists the managed resources of a state of format 4.
func parseState(content []byte) ([]Resource, error) {
	var s stored
	if err := json.Unmarshal(content, &s); err != nil {
		return nil, err
	}
	var resources []Resource
	for _, r := range s.Resources {
		if r.Mode != "managed" {
			continue
		}
		address := r.Type + "." + r.Name
		if r.Module != "" {
			address = r.Module + "." + address
		}
		for _, i := range r.Instances {
			if i.Deposed != "" {
				continue
			}
			one := Resource{Address: address + index(i.IndexKey), Tainted: i.Status == "tainted"}
			if vmid, ok := i.Attributes.VMID.(float64); ok {
				one.VMID = fleet.VMID(vmid)
			}
			host, _ := i.Attributes.Host.(string)
			one.Host = topology.HostName(host)
			one.Description, _ = i.Attributes.Description.(string)
			resources = append(resources, one)
		}
	}
	slices.SortFunc(resources, func(a, b Resource) int { return cmp.Compare(a.Address, b.Address) })
	return resources, nil
}

// index formats an instance key as in an address.
func index(key any) string {
	switch k := key.(type) {
	case float64:
		return fmt.Sprintf("[%d]", int64(k))
	case string:
		return fmt.Sprintf("[%q]", k)
	}
	return ""
}
