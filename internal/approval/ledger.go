package approval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/logkey"
)

// LedgerName is the ConfigMap, in numaform's namespace, with the status of each ScalePlan
// that numaform proposed. The status in the object itself is a copy for users. No
// decision depends on it, because other clients may have permission to write it.
const LedgerName = "numaform-approvals"

// unlistedFor is the minimum age of a ScalePlan outside the ledger before it is deleted:
// a new plan is entered right after it was created.
const unlistedFor = time.Minute

// ledger maps the UIDs of numaform's plans to their status.
type ledger map[types.UID]v1alpha1.ScalePlanStatus

// readLedger reads the ledger. If there is no ledger, it creates one with the existing
// plans, but without their pull requests: other clients may have written these decisions,
// and the reviewer reads them again from the forge.
func (a *Approvals) readLedger(ctx context.Context, plans []v1alpha1.ScalePlan) (ledger, error) {
	var object corev1.ConfigMap
	err := a.config.Client.Get(ctx, client.ObjectKey{Namespace: a.config.Namespace, Name: LedgerName}, &object)
	if apierrors.IsNotFound(err) {
		object = corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: a.config.Namespace, Name: LedgerName},
			Data:       map[string]string{},
		}
		for i := range plans {
			status := plans[i].Status
			status.PullRequest = nil
			content, err := json.Marshal(status)
			if err != nil {
				return nil, fmt.Errorf("entering scaleplan %s into ConfigMap %s: %w", plans[i].Name, LedgerName, err)
			}
			object.Data[string(plans[i].UID)] = string(content)
		}
		err = a.config.Client.Create(ctx, &object)
	}
	if err != nil {
		return nil, fmt.Errorf("reading ConfigMap %s/%s: %w", a.config.Namespace, LedgerName, err)
	}
	known := ledger{}
	for uid, content := range object.Data {
		var status v1alpha1.ScalePlanStatus
		if err := json.Unmarshal([]byte(content), &status); err != nil {
			return nil, fmt.Errorf("reading ConfigMap %s/%s: key %s: %w: remove the key; the plan is then proposed again",
				a.config.Namespace, LedgerName, uid, err)
		}
		known[types.UID(uid)] = status
	}
	return known, nil
}

// enter writes a plan's status to the ledger.
func (a *Approvals) enter(ctx context.Context, plan *v1alpha1.ScalePlan) error {
	content, err := json.Marshal(plan.Status)
	if err != nil {
		return fmt.Errorf("entering scaleplan %s into ConfigMap %s: %w", plan.Name, LedgerName, err)
	}
	return a.patchLedger(ctx, map[types.UID]any{plan.UID: string(content)})
}

// update writes a plan's status, then enters it into the ledger.
func (a *Approvals) update(ctx context.Context, plan *v1alpha1.ScalePlan) error {
	a.writing.Lock()
	defer a.writing.Unlock()
	return a.write(ctx, plan)
}

// write is update for a caller that holds writing.
func (a *Approvals) write(ctx context.Context, plan *v1alpha1.ScalePlan) error {
	if err := a.config.Client.Status().Update(ctx, plan); err != nil {
		return err
	}
	return a.enter(ctx, plan)
}

// enterFirst enters a new plan into the ledger, then writes its status. After a conflict,
// restore writes the status later.
func (a *Approvals) enterFirst(ctx context.Context, plan *v1alpha1.ScalePlan) error {
	a.writing.Lock()
	defer a.writing.Unlock()
	if err := a.enter(ctx, plan); err != nil {
		return err
	}
	if err := a.config.Client.Status().Update(ctx, plan); err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("proposing scaleplan %s: %w", plan.Name, err)
	}
	return nil
}

func (a *Approvals) patchLedger(ctx context.Context, data map[types.UID]any) error {
	patch, err := json.Marshal(map[string]any{"data": data})
	if err == nil {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: a.config.Namespace, Name: LedgerName}}
		err = a.config.Client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch))
	}
	if err != nil {
		return fmt.Errorf("writing ConfigMap %s/%s: %w", a.config.Namespace, LedgerName, err)
	}
	return nil
}

// restore resets the status of ScalePlans to the ledger's, deletes plans older than
// unlistedFor that numaform did not propose, and drops deleted plans from the ledger.
// listed is the number of plans that existed before.
func (a *Approvals) restore(ctx context.Context) (listed int, err error) {
	a.writing.Lock()
	defer a.writing.Unlock()
	var list v1alpha1.ScalePlanList
	if err := a.config.Client.List(ctx, &list); err != nil {
		return 0, fmt.Errorf("reading scaleplans: %w", err)
	}
	known, err := a.readLedger(ctx, list.Items)
	if err != nil {
		return 0, err
	}
	gone := map[types.UID]any{}
	for uid := range known {
		gone[uid] = nil
	}
	var errs []error
	for i := range list.Items {
		plan := &list.Items[i]
		delete(gone, plan.UID)
		status, ours := known[plan.UID]
		switch {
		case !ours && a.config.Clock.Since(plan.CreationTimestamp.Time) > unlistedFor:
			if err := a.remove(ctx, plan); err != nil {
				errs = append(errs, err)
				continue
			}
			log.FromContext(ctx).Info("deleted a scaleplan that numaform did not propose", logkey.ScalePlan, plan.Name)
		case ours && !equality.Semantic.DeepEqual(status, plan.Status):
			was := plan.Status.Phase
			plan.Status = status
			err := a.config.Client.Status().Update(ctx, plan)
			if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
				continue // retry at the next call
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("restoring the status of scaleplan %s: %w", plan.Name, err))
				continue
			}
			log.FromContext(ctx).Info("restored the status of a scaleplan from ConfigMap "+LedgerName, logkey.ScalePlan, plan.Name, logkey.Phase, string(was))
		}
	}
	if len(gone) > 0 {
		errs = append(errs, a.patchLedger(ctx, gone))
	}
	return len(list.Items), errors.Join(errs...)
}

// remove deletes a plan, unless it has changed since it was read, which is an error. If the
// plan no longer exists, it returns nil.
func (a *Approvals) remove(ctx context.Context, plan *v1alpha1.ScalePlan) error {
	err := a.config.Client.Delete(ctx, plan, client.Preconditions{UID: &plan.UID, ResourceVersion: &plan.ResourceVersion})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting scaleplan %s: %w", plan.Name, err)
	}
	return nil
}
