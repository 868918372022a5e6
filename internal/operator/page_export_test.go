package operator

import (
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/numaform/numaform/internal/control"
	"github.com/numaform/numaform/internal/page"
)

// NewPage returns the web page of a controller in the cluster of a connection, without Proxmox.
func NewPage(config *Config, settings ControllerSettings, connection *rest.Config) (*page.Page, error) {
	kube, err := kubernetes.NewForConfig(connection)
	if err != nil {
		return nil, err
	}
	settings.Rest = connection
	c := &Controller{config: config, settings: settings, kube: kube, clock: clock.RealClock{}}
	c.inventory = NewInventory(config, nil, c.clock)
	c.control = &switchboard{source: control.New(kube, settings.Namespace), now: c.clock.Now}
	return c.newPage()
}
