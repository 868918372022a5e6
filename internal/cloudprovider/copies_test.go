package cloudprovider_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpenter "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scaler"
	"github.com/numaform/numaform/modules"
)

// copyOf returns a copy of a NodeClaim, as a user creates it.
func copyOf(original *karpv1.NodeClaim, name string) *karpv1.NodeClaim {
	c := original.DeepCopy()
	c.Name, c.UID, c.ResourceVersion = name, types.UID("uid of copy "+name), ""
	c.Status = karpv1.NodeClaimStatus{}
	return c
}

// TestCopiedClaimGetsNoVM checks that a NodeClaim with the annotations of another one, which
// whoever may create NodeClaims can set, neither becomes the Node of that NodeClaim's VM nor
// removes the VM.
func TestCopiedClaimGetsNoVM(t *testing.T) {
	t.Parallel()
	adopted := vm(pve1, 2003)
	adopted.Name, adopted.Module = "worker-a", modules.Adopted
	tests := []struct {
		name string
		// claim returns the copy, after it has added the original.
		claim func(t *testing.T, w *world) *karpv1.NodeClaim
		vm    string
	}{
		{name: "of provisioning's claim", vm: "workers-2000", claim: func(t *testing.T, w *world) *karpv1.NodeClaim {
			own := vm(pve1, 2000)
			w.fleet.states = []scaler.VMState{state(own, scaler.PhaseMade)}
			return copyOf(w.add(t, claimOf(own)), "one-more")
		}},
		{name: "with the name of another VM", vm: "workers-2000", claim: func(t *testing.T, w *world) *karpv1.NodeClaim {
			own := vm(pve1, 2000)
			w.fleet.states = []scaler.VMState{state(own, scaler.PhaseMade)}
			return copyOf(w.add(t, claimOf(own)), "workers-2001")
		}},
		{name: "of Karpenter's claim", vm: "workers-2100", claim: func(t *testing.T, w *world) *karpv1.NodeClaim {
			return copyOf(w.launchStored(t, "workers-x"), "one-more")
		}},
		{name: "of Karpenter's claim, with the name of its VM", vm: "workers-2100", claim: func(t *testing.T, w *world) *karpv1.NodeClaim {
			return copyOf(w.launchStored(t, "workers-x"), "workers-2100")
		}},
		{name: "of an adopted VM's claim, with the name of the VM", vm: "worker-a", claim: func(t *testing.T, w *world) *karpv1.NodeClaim {
			w.fleet.states = []scaler.VMState{state(adopted, scaler.PhaseMade)}
			own := claimOf(adopted)
			own.Name = "workers-2003"
			return copyOf(w.add(t, own), "worker-a")
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, class, pool)
			c := test.claim(t, w)
			asked := len(w.fleet.asked)
			_, err := w.Create(t.Context(), c)
			if !karpenter.IsInsufficientCapacityError(err) || !strings.Contains(err.Error(), "VM "+test.vm+" is not its own") {
				t.Errorf("Create: %v, want InsufficientCapacity because of VM %s", err, test.vm)
			}
			if len(w.fleet.asked) != asked {
				t.Errorf("reserved %v", w.fleet.asked[asked:])
			}
			if err := w.Delete(t.Context(), c); !karpenter.IsNodeClaimNotFoundError(err) {
				t.Errorf("Delete: %v, want not found", err)
			}
			if len(w.fleet.removed) > 0 {
				t.Errorf("removed %v", w.fleet.removed)
			}
		})
	}
}

// TestOwnClaimKeepsItsVM checks that the rule against copies accepts every NodeClaim that
// numaform or Karpenter created for a VM.
func TestOwnClaimKeepsItsVM(t *testing.T) {
	t.Parallel()
	adopted := vm(pve1, 2003)
	adopted.Name, adopted.Module = "worker-a", modules.Adopted
	for name, claim := range map[string]func(t *testing.T, w *world) *karpv1.NodeClaim{
		"provisioning's": func(t *testing.T, w *world) *karpv1.NodeClaim {
			w.fleet.states = []scaler.VMState{state(vm(pve1, 2000), scaler.PhaseMade)}
			return w.add(t, claimOf(vm(pve1, 2000)))
		},
		"Karpenter's": func(t *testing.T, w *world) *karpv1.NodeClaim { return w.launchStored(t, "workers-x") },
		"restored for a VM of Karpenter's": func(t *testing.T, w *world) *karpv1.NodeClaim {
			lost := w.launchStored(t, "workers-x")
			if err := w.client.Delete(t.Context(), lost); err != nil {
				t.Fatal(err)
			}
			return w.add(t, copyOf(lost, "workers-2100"))
		},
		"an adopted VM's": func(t *testing.T, w *world) *karpv1.NodeClaim {
			w.fleet.states = []scaler.VMState{state(adopted, scaler.PhaseMade)}
			own := claimOf(adopted)
			own.Name = "workers-2003"
			return w.add(t, own)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, class, pool)
			c := claim(t, w)
			if _, err := w.Create(t.Context(), c); err != nil {
				t.Errorf("Create: %v", err)
			}
			if err := w.Delete(t.Context(), c); err != nil {
				t.Errorf("Delete: %v", err)
			}
			if diff := cmp.Diff([]fleet.Key{w.fleet.states[0].VM.Key}, w.fleet.removed); diff != "" {
				t.Errorf("removed differs:\n%s", diff)
			}
		})
	}
}

// add stores a NodeClaim in the cluster.
func (w *world) add(t *testing.T, claim *karpv1.NodeClaim) *karpv1.NodeClaim {
	t.Helper()
	if err := w.client.Create(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	return claim
}

// launchStored creates a NodeClaim as Karpenter does for a replacement, and its VM.
func (w *world) launchStored(t *testing.T, name string) *karpv1.NodeClaim {
	t.Helper()
	launched := w.add(t, claim(name))
	created, err := w.Create(t.Context(), launched)
	if err != nil {
		t.Fatal(err)
	}
	launched.Annotations = created.Annotations
	if launched.Annotations[v1alpha1.AnnotationVM] == "" {
		t.Fatal("the claim does not name its VM")
	}
	if err := w.client.Update(t.Context(), launched); err != nil {
		t.Fatal(err)
	}
	return launched
}
