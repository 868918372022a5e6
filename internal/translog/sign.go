package translog

import (
	"crypto"
	"crypto/ed25519"
)

// Sign signs data that is not a checkpoint. It must begin with a text that no checkpoint
// begins with, such as DSSE's, because checkpoints are signed with the same key.
func (s *Signer) Sign(data []byte) []byte { return ed25519.Sign(s.private, data) }

// Public returns the public key.
func (k *Key) Public() crypto.PublicKey { return k.public }
