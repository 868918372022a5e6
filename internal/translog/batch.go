package translog

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha512"

	"filippo.io/edwards25519"
)

// batchSize is the number of signatures in a batch. Larger batches are hardly faster.
const batchSize = 128

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
	for first := 0; first < len(records); first += batchSize {
		last := min(first+batchSize, len(records))
		batch := make([]signed, 0, batchSize)
		for i := first; i < last; i++ {
			seal := records[i].Seal
			if seal.Before.Valid() && validName(seal.Log) {
				trees[i] = seal.Before.Add(records[i].Leaf)
				batch = append(batch, signed{trees[i].text(k.Origin(seal.Log)), seal.Signature})
			}
		}
		if k.signedAll(batch) {
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

// signed is a text with its signature.
type signed struct {
	text      string
	signature []byte
}

// factorSize is the size in bytes of the random factor of an equation.
const factorSize = 16

// signedAll reports whether the key made all signatures of a batch. A signature consists of a
// point R and a number S, so that S·B = R + h·A, where B is the base point, A the public key, and
// h the SHA-512 of R, A and the text. signedAll computes the sum of these equations, each
// multiplied by a random factor: if one does not hold, the sum holds with a probability of 2^-128.
// All signatures have the point A in common, so the sum has one term for it.
func (k *Key) signedAll(batch []signed) bool {
	public, err := new(edwards25519.Point).SetBytes(k.public)
	if err != nil {
		return false
	}
	random := make([]byte, factorSize*len(batch))
	rand.Read(random) //nolint:errcheck // it never returns an error

	ofBase, ofPublic := edwards25519.NewScalar(), edwards25519.NewScalar()
	scalars, points := []*edwards25519.Scalar{ofBase, ofPublic}, []*edwards25519.Point{edwards25519.NewGeneratorPoint(), public}
	for i, s := range batch {
		if len(s.signature) != ed25519.SignatureSize {
			return false
		}
		encodedR, encodedS := s.signature[:32], s.signature[32:]
		pointR, err := new(edwards25519.Point).SetBytes(encodedR)
		if err != nil {
			return false
		}
		numberS, err := edwards25519.NewScalar().SetCanonicalBytes(encodedS)
		if err != nil {
			return false
		}
		hash := sha512.New()
		hash.Write(encodedR)
		hash.Write(k.public)
		hash.Write([]byte(s.text))
		h, err := edwards25519.NewScalar().SetUniformBytes(hash.Sum(nil))
		if err != nil {
			return false
		}
		var encodedFactor [32]byte
		copy(encodedFactor[:], random[factorSize*i:factorSize*(i+1)])
		factor, err := edwards25519.NewScalar().SetCanonicalBytes(encodedFactor[:])
		if err != nil {
			return false
		}
		ofBase.Subtract(ofBase, numberS.Multiply(factor, numberS))
		ofPublic.MultiplyAdd(factor, h, ofPublic)
		scalars, points = append(scalars, factor), append(points, pointR)
	}
	sum := new(edwards25519.Point).VarTimeMultiScalarMult(scalars, points)
	return sum.MultByCofactor(sum).Equal(edwards25519.NewIdentityPoint()) == 1
}
