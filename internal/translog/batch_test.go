package translog_test

import (
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/numaform/numaform/internal/translog"
)

// order is the order of the group of Ed25519, which is added to S for another signature of the
// same text: RFC 8032 forbids it.
var order, _ = new(big.Int).SetString("7237005577332262213973186563042994240857116359379907606001950938285454250989", 10)

// TestCheckAll damages random records, and requires what Check reports.
func TestCheckAll(t *testing.T) {
	t.Parallel()
	s, other := signer(t, "secret"), signer(t, "other")
	var tree translog.Tree
	var records []translog.Sealed
	var trees []translog.Tree
	for i := range 300 {
		seal, err := tree.Seal(leaf(i), s, "A1")
		if err != nil {
			t.Fatal(err)
		}
		tree = tree.Add(leaf(i))
		records, trees = append(records, translog.Sealed{Leaf: leaf(i), Seal: seal}), append(trees, tree)
	}
	damage := map[string]func(r *translog.Sealed){
		"R":                func(r *translog.Sealed) { r.Seal.Signature[3] ^= 1 },
		"S":                func(r *translog.Sealed) { r.Seal.Signature[40] ^= 1 },
		"the size":         func(r *translog.Sealed) { r.Seal.Signature = r.Seal.Signature[:63] },
		"no signature":     func(r *translog.Sealed) { r.Seal.Signature = nil },
		"the leaf":         func(r *translog.Sealed) { r.Leaf.ID = "x" },
		"the log":          func(r *translog.Sealed) { r.Seal.Log = "A2" },
		"the log's name":   func(r *translog.Sealed) { r.Seal.Log = "" },
		"the tree":         func(r *translog.Sealed) { r.Seal.Before.Size++ },
		"the tree's edges": func(r *translog.Sealed) { r.Seal.Before.Edge = nil },
		"S plus the order": func(r *translog.Sealed) {
			scalar := slices.Clone(r.Seal.Signature[32:])
			slices.Reverse(scalar)
			new(big.Int).Add(new(big.Int).SetBytes(scalar), order).FillBytes(scalar)
			slices.Reverse(scalar)
			copy(r.Seal.Signature[32:], scalar)
		},
		"nothing": func(*translog.Sealed) {},
	}
	random := rand.New(rand.NewPCG(1, 2))
	for name, edit := range damage {
		list := slices.Clone(records)
		i := 1 + random.IntN(len(list)-1)
		seal := *list[i].Seal
		seal.Signature = slices.Clone(seal.Signature)
		list[i].Seal = &seal
		edit(&list[i])
		for j, got := range s.Key().CheckAll(list) {
			valid := j != i || name == "nothing"
			if s.Key().Check(list[j].Leaf, list[j].Seal) != valid || (got.Size > 0) != valid || valid && !got.Equal(trees[j]) {
				t.Errorf("%s of record %d: tree %v of record %d", name, i, got, j)
			}
		}
	}
	for _, got := range other.Key().CheckAll(records) {
		if got.Size > 0 {
			t.Error("another key checks a record")
		}
	}
}
