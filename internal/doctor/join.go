package doctor

import (
	"context"
	"fmt"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/bootstrap"
)

// joins checks that the nodes of each class get the kind of token that their templates use.
// It finds classes from releases that supported only bootstrap tokens.
func (e *examination) joins(ctx context.Context) {
	for i := range e.config.Classes {
		class := &e.config.Classes[i]
		if !class.Seeded() && !class.ByAgent() {
			continue
		}
		where := "class " + class.Name
		if class.TokenForm() == v1alpha1.TokenBootstrap {
			if ready := class.StatusConditions().Get(v1alpha1.ConditionMetadataReady); ready.IsFalse() && ready.Reason == v1alpha1.ReasonBootstrapTokensOff {
				e.add("join", Fail, where, "its nodes join with bootstrap tokens, but the controller cannot create them", "set rbac.bootstrapTokens: true in the chart's values")
			} else {
				e.ok("join", where, "its nodes join with bootstrap tokens, which require rbac.bootstrapTokens: true in the chart")
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
				e.add("join", Warn, where, fmt.Sprintf("cannot check whether its templates require bootstrap tokens: %v", err),
					"if they use .Kubernetes.BootstrapToken, set spec.metadata.token: Bootstrap")
				continue
			}
		}
		if uses := bootstrap.UsesBootstrapToken(templates); len(uses) > 0 {
			e.add("join", Fail, where,
				fmt.Sprintf("its nodes cannot join: its templates use .Kubernetes.BootstrapToken (in %s), but the class does not use bootstrap tokens", list(uses)),
				"for kubeadm join, k3s and Talos, set spec.metadata.token: Bootstrap in the class, and rbac.bootstrapTokens: true in the chart's values; for kubelet, use .Kubernetes.Token")
			continue
		}
		e.ok("join", where, "its nodes join with ServiceAccount tokens")
	}
}
