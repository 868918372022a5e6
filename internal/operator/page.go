package operator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/logkey"
	"github.com/numaform/numaform/internal/page"
	"github.com/numaform/numaform/internal/redact"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/internal/status"
	"github.com/numaform/numaform/internal/store"
	"github.com/numaform/numaform/topology"
)

// CheckPage returns an error if the page would be served without TLS to other machines. dir
// contains the certificate; empty means none.
func CheckPage(address, dir string) error {
	if address == "0" || address == "" || dir != "" {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("--page-bind-address %s: %w: set it to an address such as 127.0.0.1:8082, or to 0 to disable the page", address, err)
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("--page-bind-address %s: other machines may reach this address, so tokens of readers need TLS: "+
		"set --page-tls-dir to a directory with tls.crt and tls.key, or bind the page to 127.0.0.1 and use kubectl port-forward", address)
}

// pageReader reads the data of the page. It changes nothing.
type pageReader struct {
	*Controller
	store *store.Sealed
	live  client.Client
}

// newPage returns the page, or nil if it is disabled.
func (c *Controller) newPage() (*page.Page, error) {
	if address := c.settings.PageAddress; address == "" || address == "0" {
		return nil, nil
	}
	opened, err := c.config.OpenStore(c.settings.Environ, Kubeconfig{
		Path: c.settings.Kubeconfig, Context: c.settings.Context, Rest: c.settings.Rest, Namespace: c.settings.Namespace,
	})
	if err != nil {
		return nil, err
	}
	live, err := client.New(c.settings.Rest, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	secrets := redact.New(c.settings.Environ)
	for _, file := range c.config.SecretFiles() {
		secrets.LearnFile(file, file)
	}
	reader := &pageReader{Controller: c, store: opened, live: live}
	return page.New(page.Config{
		Read:    reader.read,
		Plan:    reader.plan,
		Access:  page.NewAccess(c.kube, c.clock),
		Redact:  secrets.Text,
		Version: c.settings.Version,
		Clock:   c.clock,
	}), nil
}

// plan reads a ScalePlan.
func (p *pageReader) plan(ctx context.Context, name string) (*v1alpha1.ScalePlan, error) {
	plan := &v1alpha1.ScalePlan{}
	if err := p.live.Get(ctx, client.ObjectKey{Name: name}, plan); err != nil {
		return nil, fmt.Errorf("reading ScalePlan %s: %w", name, err)
	}
	return plan, nil
}

// read reads the data as numaform status does, but Proxmox from the inventory that all
// controllers share. It shows the parts that it can read.
func (p *pageReader) read(ctx context.Context) *page.Data {
	data := &page.Data{Fleet: &fleet.Fleet{}, Snapshot: &topology.Snapshot{}}
	unread := func(what string, err error) {
		log.FromContext(ctx).V(1).Info("could not read data of the web page", logkey.Reason, err.Error())
		data.Unread = append(data.Unread, fmt.Sprintf("%s cannot be read now: %v", what, err))
	}

	reading := scaler.New(scaler.Config{ClusterID: p.config.ClusterID, Store: p.store, Dir: p.config.FleetDir(), Regions: p.config.Regions()})
	current, _, err := reading.Fleet(ctx)
	if err != nil {
		unread("The fleet", err)
	} else {
		data.Fleet = &current
	}
	since := p.clock.Now().AddDate(0, 0, -page.HistoryDays)
	if data.History, err = p.store.History(ctx, since); err != nil {
		unread("The newest part of the history", err)
		if known, err := p.store.Known(ctx, since); err == nil {
			data.History = known // of the local clone of a fleet in git
		}
	}
	if snapshot, err := p.inventory.Recent(ctx); err != nil {
		unread("Proxmox", err)
	} else {
		data.Snapshot = snapshot
		if len(p.inventory.Unread()) > 0 {
			unread("A part of Proxmox", errors.New("the hosts below are as they were last read"))
		}
	}

	data.Status = status.New(p.config.ClusterID, data.Fleet, data.Snapshot, data.History)
	var plans v1alpha1.ScalePlanList
	if err := p.live.List(ctx, &plans); err != nil {
		unread("ScalePlans", err)
	}
	data.Status.AddPending(plans.Items)
	for i := range plans.Items {
		plans.Items[i].Spec.Diff = "" // up to 512 KiB
	}
	data.Plans = plans.Items
	slices.SortFunc(data.Plans, func(a, b v1alpha1.ScalePlan) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	var pools karpv1.NodePoolList
	if err := p.live.List(ctx, &pools); err != nil {
		unread("NodePools", err)
	}
	for i := range pools.Items {
		for _, condition := range pools.Items[i].Status.Conditions {
			if condition.Type == v1alpha1.ConditionScaleUpReady && condition.Status == metav1.ConditionFalse {
				data.Waits = append(data.Waits, page.Wait{
					NodePool: pools.Items[i].Name, Reason: condition.Reason, Message: condition.Message, Since: condition.LastTransitionTime.Time,
				})
			}
		}
	}
	data.Paused, data.PausedBy = p.control.pausedBy()
	data.Evacuated = p.control.evacuated()
	return data
}
