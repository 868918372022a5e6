package generator

import (
	"fmt"

	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// The provider and the engines that the roots require. The provider's address is fully
// qualified, so that OpenTofu and Terraform share states and lock files.
const (
	providerName    = "proxmox"
	ProviderSource  = "registry.opentofu.org/bpg/proxmox"
	ProviderVersion = "0.111.1"
	engineVersions  = ">= 1.8"
)

// renderShard renders a root's main.tf, which requires a version of the provider.
func renderShard(f *fleet.Fleet, host topology.HostID, provider string) ([]byte, error) {
	region, ok := findRegion(f, host.Region)
	if !ok {
		return nil, fmt.Errorf("region %q is not among the fleet's: add it to clusters in numaform.yaml", host.Region)
	}
	file := hclwrite.NewEmptyFile()
	body := file.Body()
	comment(body, fmt.Sprintf("%s%s. DO NOT EDIT.", shardHeader, host))
	body.AppendNewline()
	terraform := body.AppendNewBlock("terraform", nil).Body()
	setText(terraform, "required_version", engineVersions)
	terraform.AppendNewline()
	required := terraform.AppendNewBlock("required_providers", nil).Body()
	required.SetAttributeValue(providerName, cty.ObjectVal(map[string]cty.Value{
		"source": cty.StringVal(ProviderSource), "version": cty.StringVal(provider),
	}))
	if f.Backend.Type != "" {
		terraform.AppendNewline()
		backend := terraform.AppendNewBlock("backend", []string{f.Backend.Type}).Body()
		for _, setting := range backendSettings(f.Backend, StateName(f.ClusterID, host)) {
			setText(backend, setting.name, setting.value)
		}
	}
	body.AppendNewline()
	settings := body.AppendNewBlock("provider", []string{providerName}).Body()
	// With several endpoints, the environment names one that responds.
	if region.Endpoint != "" {
		setText(settings, "endpoint", region.Endpoint)
	}
	settings.SetAttributeValue("insecure", cty.BoolVal(region.Insecure))
	return hclwrite.Format(file.Bytes()), nil
}

func findRegion(f *fleet.Fleet, name topology.RegionName) (fleet.Region, bool) {
	for _, region := range f.Regions {
		if region.Name == name {
			return region, true
		}
	}
	return fleet.Region{}, false
}
