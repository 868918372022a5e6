package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/numaform/numaform/internal/control"
	"github.com/numaform/numaform/topology"
)

// evacuation contains the options of evacuate.
type evacuation struct {
	clusterOptions

	end, wait bool
	poll      time.Duration
}

func newEvacuate(process Process) *cobra.Command {
	var e evacuation
	command := &cobra.Command{
		Use:   "evacuate HOST",
		Short: "Move the nodes of a Proxmox host to other hosts, for maintenance",
		Long: "Mark a Proxmox host for evacuation. It gets no new nodes, and numaform in the cluster replaces its nodes on\n" +
			"other hosts, within the disruption budgets of their NodePools and the PodDisruptionBudgets of their pods.",
		Args: arguments(1, 1),
		RunE: func(command *cobra.Command, args []string) error {
			return explained(e.run(command.Context(), process, args[0]), controlRole+", and the ClusterRole numaform-viewer to list NodeClaims")
		},
	}
	flags := command.Flags()
	e.register(flags)
	flags.BoolVar(&e.end, "end", false, "end the evacuation, so that the host accepts new nodes again")
	flags.BoolVar(&e.wait, "wait", false, "wait until the host has no nodes")
	flags.DurationVar(&e.poll, "poll", 5*time.Second, "interval of checks while waiting")
	return command
}

func (e *evacuation) run(ctx context.Context, process Process, name string) error {
	if e.end && e.wait {
		return usageError{errors.New("--end and --wait are mutually exclusive: remove one of them")}
	}
	if e.poll <= 0 { // NewTicker would panic after the evacuation has started
		return usageError{fmt.Errorf("--poll %s: must be positive", e.poll)}
	}
	c, k, err := e.open()
	if err != nil {
		return err
	}
	s := control.New(k, e.namespace)
	if e.end {
		// The host may have no Nodes left that identify its region.
		state, err := s.Read(ctx)
		if err != nil {
			return err
		}
		matching := slices.DeleteFunc(state.Evacuated, func(host topology.HostID) bool { return string(host.Host) != name })
		if len(matching) == 1 {
			name = matching[0].String()
		}
	}
	host, err := hostOf(ctx, c, name)
	if err != nil {
		return err
	}
	if e.end {
		if err := s.EndEvacuation(ctx, host); err != nil {
			return err
		}
		_, err = fmt.Fprintf(process.Stdout, "%s accepts new nodes again.\n", host)
		return err
	}
	who, err := whoami(ctx, k)
	if err != nil {
		return err
	}
	if err := s.Evacuate(ctx, host, who); err != nil {
		return err
	}
	left, err := nodesOn(ctx, c, host)
	if err != nil {
		return err
	}
	if !e.wait && len(left) > 0 {
		_, err = fmt.Fprintf(process.Stdout, "%s gets no new nodes. Its nodes (%d) are replaced on other hosts, within disruption budgets.\n"+
			"To wait for them, add --wait. After maintenance, run numaform evacuate %s%s --end\n", host, len(left), host, e.flags())
		return err
	}

	if err := e.waitEmpty(ctx, process, c, host, left); err != nil {
		return err
	}
	_, err = fmt.Fprintf(process.Stdout, "%s has no numaform nodes and gets no new ones. After maintenance, run numaform evacuate %s%s --end\n", host, host, e.flags())
	return err
}

// waitEmpty waits until a host has no nodes. left contains its current nodes.
func (e *evacuation) waitEmpty(ctx context.Context, process Process, c client.Client, host topology.HostID, left []string) error {
	ticker := time.NewTicker(e.poll)
	defer ticker.Stop()
	var reported []string
	for len(left) > 0 {
		if !slices.Equal(left, reported) {
			fmt.Fprintf(process.Stderr, "%s: %s left: %s\n", host, topology.Count(len(left), "node"), strings.Join(left, ", "))
		}
		reported = left
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w: the evacuation continues in the background", host, context.Cause(ctx))
		}
		found, err := nodesOn(ctx, c, host)
		switch {
		case err == nil:
			left = found
		case apierrors.IsForbidden(err):
			return err
		default:
			fmt.Fprintf(process.Stderr, "numaform: %v: trying again\n", err)
		}
	}
	return nil
}

// nodesOn returns the names of the NodeClaims on a host, sorted.
func nodesOn(ctx context.Context, c client.Client, host topology.HostID) ([]string, error) {
	var claims metav1.PartialObjectMetadataList
	claims.SetGroupVersionKind(schema.GroupVersionKind{Group: "karpenter.sh", Version: "v1", Kind: "NodeClaimList"})
	err := c.List(ctx, &claims, client.MatchingLabels{
		corev1.LabelTopologyRegion: string(host.Region), corev1.LabelTopologyZone: string(host.Host),
	})
	if err != nil {
		return nil, fmt.Errorf("listing NodeClaims on %s: %w", host, err)
	}
	names := make([]string, len(claims.Items))
	for i := range claims.Items {
		names[i] = claims.Items[i].Name
	}
	slices.Sort(names)
	return names, nil
}

// hostOf parses region/host, or finds the region of a host in the labels of its Nodes.
func hostOf(ctx context.Context, c client.Client, name string) (topology.HostID, error) {
	var host topology.HostID
	if strings.Contains(name, "/") {
		if err := host.UnmarshalText([]byte(name)); err != nil {
			return host, usageError{err}
		}
		return host, nil
	}
	var nodes corev1.NodeList
	if err := c.List(ctx, &nodes, client.MatchingLabels{corev1.LabelTopologyZone: name}); err != nil {
		return host, fmt.Errorf("listing Nodes on %s: %w", name, err)
	}
	var regions []string
	for i := range nodes.Items {
		if region := nodes.Items[i].Labels[corev1.LabelTopologyRegion]; region != "" {
			regions = append(regions, region)
		}
	}
	slices.Sort(regions)
	switch regions = slices.Compact(regions); len(regions) {
	case 1:
		return topology.HostID{Region: topology.RegionName(regions[0]), Host: topology.HostName(name)}, nil
	case 0:
		return host, usageError{fmt.Errorf("host %q: its region is unknown, because no Node runs on it: use REGION/HOST", name)}
	}
	return host, usageError{fmt.Errorf("host %q exists in several regions (%s): use REGION/HOST", name, strings.Join(regions, ", "))}
}
