package scheduling_test

import (
	"context"
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/internal/scheduling"
)

func TestKeyOf(t *testing.T) {
	t.Parallel()
	key := scheduling.KeyOf("5c9f6a3e-0b1d-4c86-9a7e-3f1b2d4c5e6f")
	marker, ok := fleet.ParseMarker(fleet.Marker{ClusterID: "test", Key: key}.String())
	if !ok || marker.Key != key {
		t.Errorf("key %q does not survive a marker", key)
	}
	if key == scheduling.KeyOf("5c9f6a3e-0b1d-4c86-9a7e-3f1b2d4c5e60") {
		t.Error("two NodeClaims have one key")
	}
}

// TestOwnClaims checks that Owns and OwnClaims find the same NodeClaims, in each order.
func TestOwnClaims(t *testing.T) {
	t.Parallel()
	vm := keptVM(2000, "workers", "shared", "xeon", fleet.PolicyShared)
	claim := func(name string, uid types.UID, key fleet.Key) karpv1.NodeClaim {
		return karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid, Annotations: map[string]string{v1alpha1.AnnotationKey: string(key)}}}
	}
	random, derived := fleet.Key("0123456789abcdef0123456789abcdef"), scheduling.KeyOf("uid")
	tests := []struct {
		name string
		key  fleet.Key
		all  []karpv1.NodeClaim
		want string
	}{
		{name: "by name", key: random, all: []karpv1.NodeClaim{claim("workers-2000", "a", random), claim("copy", "b", random)}, want: "a"},
		{name: "a copy alone", key: random, all: []karpv1.NodeClaim{claim("copy", "b", random)}},
		{name: "the name alone", key: random, all: []karpv1.NodeClaim{claim("workers-2000", "b", "")}},
		{name: "an earlier VM of that name", key: random, all: []karpv1.NodeClaim{claim("workers-2000", "b", derived)}},
		{name: "by UID", key: derived, all: []karpv1.NodeClaim{claim("workers-x", "uid", derived), claim("workers-2000", "b", derived)}, want: "uid"},
		{name: "by UID, without the annotation", key: derived, all: []karpv1.NodeClaim{claim("workers-x", "uid", ""), claim("workers-2000", "b", derived)}, want: "uid"},
		{name: "by UID, with another annotation", key: derived, all: []karpv1.NodeClaim{claim("workers-x", "uid", random)}, want: "uid"},
		{name: "re-created", key: derived, all: []karpv1.NodeClaim{claim("workers-2000", "b", derived), claim("copy", "c", derived)}, want: "b"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			vm := vm
			vm.Key = test.key
			find := func(key fleet.Key) *fleet.VM {
				if key == vm.Key {
					return &vm
				}
				return nil
			}
			backwards := make([]karpv1.NodeClaim, len(test.all))
			for i := range test.all {
				backwards[len(test.all)-1-i] = test.all[i]
			}
			for _, all := range [][]karpv1.NodeClaim{test.all, backwards} {
				var got types.UID
				if own := scheduling.OwnClaims(all, find)[vm.Key]; own != nil {
					got = own.UID
				}
				if string(got) != test.want {
					t.Errorf("OwnClaims: the claim is %q, want %q", got, test.want)
				}
				for i := range all {
					owns, err := scheduling.Owns(t.Context(), claimsOf(all), &all[i], &vm)
					if err != nil || owns != (string(all[i].UID) == test.want) {
						t.Errorf("Owns: %v for the claim %s (%v)", owns, all[i].UID, err)
					}
				}
			}
		})
	}
}

// claimsOf reads NodeClaims.
type claimsOf []karpv1.NodeClaim

func (c claimsOf) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	all := (&client.ListOptions{}).ApplyOptions(options)
	for i := range c {
		if key, exact := all.FieldSelector.RequiresExactMatch(scheduling.FieldKeyOfUID); exact && scheduling.IndexKeyOfUID(&c[i]) == key {
			list.(*karpv1.NodeClaimList).Items = append(list.(*karpv1.NodeClaimList).Items, c[i])
		}
	}
	return nil
}

func (claimsOf) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("no Get")
}
