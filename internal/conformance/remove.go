package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// removeSince removes what a case created: VMs that did not exist before, volumes, and
// pools. Users and tokens are kept for other cases.
func (r *run) removeSince(ctx context.Context, before []int, made int) error {
	keep := slices.Clone(before)
	if r.shared {
		keep = append(keep, r.cfg.Lower)
	}
	err := r.removeVMs(ctx, keep)
	for _, volume := range r.volumes {
		err = errors.Join(err, r.remove(ctx, "DELETE "+volume, nil))
	}
	r.volumes = nil
	kept := r.cleanup[:made:made]
	for _, step := range slices.Backward(r.cleanup[made:]) {
		if strings.HasPrefix(step.Request, "DELETE /access/") {
			kept = slices.Insert(kept, made, step)
			continue
		}
		err = errors.Join(err, r.remove(ctx, step.Request, step.Params))
	}
	r.cleanup = kept
	return err
}

// removeAll removes everything that the run created.
func (r *run) removeAll(ctx context.Context) error {
	err := r.removeVMs(ctx, nil)
	for _, volume := range r.volumes {
		err = errors.Join(err, r.remove(ctx, "DELETE "+volume, nil))
	}
	for _, step := range slices.Backward(r.cleanup) {
		err = errors.Join(err, r.remove(ctx, step.Request, step.Params))
	}
	return err
}

// removeVMs stops and destroys the run's VMs, except keep.
func (r *run) removeVMs(ctx context.Context, keep []int) error {
	var errs []error
	// Clones are removed before the templates that they are linked to, which were created
	// first.
	for _, vmid := range slices.Backward(slices.Sorted(maps.Keys(r.vms))) {
		if slices.Contains(keep, vmid) {
			continue
		}
		if err := r.removeVM(ctx, vmid); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(r.vms, vmid)
	}
	return errors.Join(errs...)
}

func (r *run) removeVM(ctx context.Context, vmid int) error {
	path := fmt.Sprintf("/nodes/%s/qemu/%d", r.vms[vmid], vmid)
	got, err := r.send(ctx, &Step{Request: "GET " + path + "/status/current"}, r.keeper())
	switch {
	case err != nil:
		return err
	case got.status == http.StatusInternalServerError && strings.Contains(got.reason, "does not exist"):
		return nil
	case got.status != http.StatusOK:
		return fmt.Errorf("removing VM %d: %d %s", vmid, got.status, got.reason)
	}
	status, _ := got.data.(map[string]any)
	params := map[string]string{}
	if textOf(status["lock"]) != "null" && r.root != nil {
		params["skiplock"] = "1"
	}
	if textOf(status["status"]) == "running" {
		if err := r.remove(ctx, "POST "+path+"/status/stop", params); err != nil {
			return err
		}
	}
	config, err := r.send(ctx, &Step{Request: "GET " + path + "/config"}, r.keeper())
	if err != nil {
		return err
	}
	if members, _ := config.data.(map[string]any); textOf(members["protection"]) == "1" {
		if err := r.remove(ctx, "PUT "+path+"/config", map[string]string{"protection": "0"}); err != nil {
			return err
		}
	}
	return r.remove(ctx, "DELETE "+path, params)
}

// remove sends a request that removes an object of the run.
func (r *run) remove(ctx context.Context, request string, params map[string]string) error {
	if _, err := r.want(ctx, request, params); err != nil {
		return fmt.Errorf("removing what the run made: %w", err)
	}
	return nil
}
