package translog

import (
	"crypto/rand"

	"github.com/oasisprotocol/curve25519-voi/primitives/ed25519"
)

// batchSize is the number of signatures in a batch. Larger batches are hardly faster.
const batchSize = 256

// Sealed is a record with its seal.
type Sealed struct {
	Leaf Leaf
	Seal *Seal
}

// CheckAll returns for each record the tree that ends with it, or an empty tree if Check reports
// false. It needs less time than Check, because it checks signatures in batches, and one by one
// only those in a batch with an invalid signature. A batch multiplies by the cofactor, as RFC 8032
// specifies, which only makes a difference for signatures that the owner of the private key made
// invalid on purpose.
func (k *Key) CheckAll(records []Sealed) []Tree {
	trees := make([]Tree, len(records))
	public, err := ed25519.NewExpandedPublicKey(ed25519.PublicKey(k.public))
	if err != nil {
		return trees
	}
	for first := 0; first < len(records); first += batchSize {
		last := min(first+batchSize, len(records))
		batch := ed25519.NewBatchVerifierWithCapacity(last - first)
		for i := first; i < last; i++ {
			seal := records[i].Seal
			if seal.Before.Valid() && validName(seal.Log) {
				trees[i] = seal.Before.Add(records[i].Leaf)
				batch.AddExpanded(public, []byte(trees[i].text(k.Origin(seal.Log))), seal.Signature)
			}
		}
		if batch.VerifyBatchOnly(rand.Reader) {
			continue
		}
		for i := first; i < last; i++ {
			if trees[i].Size > 0 && !k.Check(records[i].Leaf, records[i].Seal) {
				trees[i] = Tree{}
			}
		}
	}
	return trees
}
