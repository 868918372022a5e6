package template

import (
	"github.com/awslabs/operatorpkg/status"
	"k8s.io/utils/clock"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/topology"
)

// Request returns what a ProxmoxTemplate requests, and the name of its templates.
func Request(pt *v1alpha1.ProxmoxTemplate, snapshot *topology.Snapshot, states ...scaler.TemplateState) (scaler.TemplateRequest, string, error) {
	return request(pt, snapshot, states)
}

// SetStatus sets the status of a ProxmoxTemplate.
func SetStatus(pt *v1alpha1.ProxmoxTemplate, current string, request *scaler.TemplateRequest, states []scaler.TemplateState, snapshot *topology.Snapshot) {
	setStatus(pt, current, request, states, snapshot, status.WithClock(clock.RealClock{}))
}
