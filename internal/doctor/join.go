package doctor

import (
	"context"
	"fmt"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/bootstrap"
)

// joins checks for each class whether its nodes get a token in the form that they join
// with. Before an upgrade from a release that only supported bootstrap tokens, it finds the
// classes whose nodes would no longer join.
func (e *examination) joins(ctx context.Context) {
	for i := range e.config.Classes {
		class := &e.config.Classes[i]
		if !class.Seeded() && !class.ByAgent() {
			continue
		}
		where := "class " + class.Name
		if class.TokenForm() == v1alpha1.TokenBootstrap {
			if ready := class.StatusConditions().Get(v1alpha1.ConditionMetadataReady); ready.IsFalse() && ready.Reason == v1alpha1.ReasonBootstrapTokensOff {
				e.add("join", Fail, where, "its nodes join with bootstrap tokens, which the controller may not make", "set rbac.bootstrapTokens: true in the chart's values")
			} else {
				e.ok("join", where, "its nodes join with bootstrap tokens: the chart needs rbac.bootstrapTokens: true")
			}
			continue
		}

		templates := bootstrap.Defaults()
		if ref := class.Spec.Metadata.TemplatesRef; ref != nil {
			data, err := e.config.Templates(ctx, *ref)
			if err == nil {
				templates, err = bootstrap.TemplatesOf(data)
			}
			if err != nil {
				e.add("join", Warn, where, fmt.Sprintf("its templates cannot be read, so whether they need a bootstrap token is unknown: %v", err),
					"name .Kubernetes.BootstrapToken in none of them, or set spec.metadata.token: Bootstrap")
				continue
			}
		}
		if uses := bootstrap.UsesBootstrapToken(templates); len(uses) > 0 {
			e.add("join", Fail, where,
				fmt.Sprintf("its nodes cannot join: %s of its templates names .Kubernetes.BootstrapToken, and the class asks for no bootstrap token", list(uses)),
				"for kubeadm join, k3s and Talos, set spec.metadata.token: Bootstrap and rbac.bootstrapTokens: true in the chart's values; for kubelet alone, write .Kubernetes.Token")
			continue
		}
		e.ok("join", where, "its nodes join with tokens of numaform's ServiceAccount for them")
	}
}
