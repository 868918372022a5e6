package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/bootstrap"
)

// joins checks for each class whether its nodes get a token in the form that they join
// with. Before an upgrade from a release that only supported bootstrap tokens, it finds the
// classes whose nodes would no longer join.
func (e *examination) joins(ctx context.Context) {
	for i := range e.config.Classes {
		class := &e.config.Classes[i]
		if class.Seeded() || class.ByAgent() {
			finding := e.join(ctx, class)
			finding.Check, finding.Where = "join", "class "+class.Name
			e.add(finding)
		}
	}
}

func (e *examination) join(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) Finding {
	if class.TokenForm() == v1alpha1.TokenBootstrap {
		if ready := class.StatusConditions().Get(v1alpha1.ConditionMetadataReady); ready.IsFalse() && ready.Reason == v1alpha1.ReasonBootstrapTokensOff {
			return Finding{
				Status: Fail, What: "its nodes join with bootstrap tokens, which the controller may not make",
				Mend: "set rbac.bootstrapTokens: true in the chart's values",
			}
		}
		return Finding{Status: OK, What: "its nodes join with bootstrap tokens: the chart needs rbac.bootstrapTokens: true"}
	}
	templates, err := e.templatesOf(ctx, class)
	if err != nil {
		return Finding{
			Status: Warn, What: fmt.Sprintf("its templates cannot be read, so whether they need a bootstrap token is unknown: %v", err),
			Mend: "name .Kubernetes.BootstrapToken in none of them, or set spec.metadata.token: Bootstrap",
		}
	}
	if uses := bootstrap.UsesBootstrapToken(templates); len(uses) > 0 {
		return Finding{
			Status: Fail, What: fmt.Sprintf("its nodes cannot join: %s of its templates names .Kubernetes.BootstrapToken, and the class asks for no bootstrap token", strings.Join(uses, ", ")),
			Mend: "for kubeadm join, k3s and Talos, set spec.metadata.token: Bootstrap and rbac.bootstrapTokens: true in the chart's values; for kubelet alone, write .Kubernetes.Token",
		}
	}
	return Finding{Status: OK, What: "its nodes join with tokens of numaform's ServiceAccount for them"}
}

// templatesOf reads the templates of a class.
func (e *examination) templatesOf(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) (bootstrap.Templates, error) {
	ref := class.Spec.Metadata.TemplatesRef
	if ref == nil {
		return bootstrap.Defaults(), nil
	}
	data, err := e.config.Templates(ctx, *ref)
	if err != nil {
		return bootstrap.Templates{}, err
	}
	return bootstrap.TemplatesOf(data)
}
