package operator

import (
	"context"
	"fmt"
	"os"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/controllers/seed"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// seeder returns the seeder of new VMs. writer may be set later: until then no VM is
// known, and no seed is deleted because its VM is missing.
func (w *workshop) seeder(writer func() *scaler.Writer) (*seed.Seeder, error) {
	join := seed.Join{
		APIServer: w.config.Join.APIServer, CloudController: w.config.Join.ExternalCloudProvider,
		ClusterDNS: w.config.Join.ClusterDNS, ClusterDomain: w.config.Join.ClusterDomain,
	}
	if path := w.config.Join.CAFile; path != "" {
		pem, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading join.ca_file: %w: correct its path, or leave the key out", err)
		}
		join.CA = pem
	}
	regions := map[topology.RegionName]seed.Region{}
	for i := range w.config.Clusters {
		cluster := &w.config.Clusters[i]
		regions[cluster.Region] = seed.Region{
			Proxmox: w.clients[cluster.Region], VMIDs: fleet.VMIDRange(cluster.VMIDRange), Stop: cluster.Timeouts.Stop, Upload: cluster.Timeouts.Upload,
		}
	}
	return seed.New(seed.Config{
		ClusterID: w.config.ClusterID, Regions: regions, Snapshot: w.inventory.Snapshot, Types: w.types, Clock: w.clock,
		Cluster: seed.Cluster{
			Client: w.manager.GetClient(), Live: w.live, REST: w.settings.Rest, Version: w.kubernetesVersion,
			Namespace: w.settings.Namespace, Account: w.settings.BootstrapAccount, BootstrapTokens: w.settings.BootstrapTokens, Join: join,
		},
		VMs: func() ([]fleet.VM, bool) { return allVMs(writer()) },
		Record: func(ctx context.Context, written []string) {
			for _, line := range written {
				log.FromContext(ctx).Info("wrote to proxmox outside a plan", logkey.Message, line)
			}
			writer().Record(written)
		},
	}), nil
}

// allVMs returns the VMs that are desired or still being removed, if the fleet has been
// read.
func allVMs(writer *scaler.Writer) (vms []fleet.VM, known bool) {
	if writer == nil || !writer.Synced() {
		return nil, false
	}
	for _, state := range writer.VMs() {
		vms = append(vms, state.VM)
	}
	return vms, true
}

// kubernetesVersion returns the API server's version.
func (w *workshop) kubernetesVersion() (string, error) {
	version, err := w.kube.Discovery().ServerVersion()
	if err != nil {
		return "", fmt.Errorf("asking for the cluster's version: %w", err)
	}
	return version.GitVersion, nil
}
