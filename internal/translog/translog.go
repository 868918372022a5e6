// Package translog makes a history tamper-evident: its records are the leaves of a Merkle
// tree (RFC 6962), and each record has a Seal with the signature of the checkpoint (C2SP
// tlog-checkpoint) of the tree that ends with it. So a record proves itself and all records
// before it, and whoever has a checkpoint can prove that a record before it was changed,
// removed, moved or added. The package does no I/O. Start at Tree.Seal and Key.Check.
package translog

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Kind is the kind of a record.
type Kind string

// The kinds of records.
const (
	KindChange  Kind = "change"
	KindOutcome Kind = "outcome"
)

// Leaf is what the log says about a record. Its JSON is a leaf of the tree.
type Leaf struct {
	Kind Kind `json:"kind"`
	// ID is the ID of the change.
	ID string `json:"id"`
	// Record is the SHA-256 of the record, in hexadecimal.
	Record string `json:"record"`
}

// NewLeaf returns the leaf of a record.
func NewLeaf(kind Kind, id string, digest [sha256.Size]byte) Leaf {
	return Leaf{kind, id, hex.EncodeToString(digest[:])}
}

// Hash returns the hash of the leaf.
func (l Leaf) Hash() tlog.Hash {
	text, err := json.Marshal(l)
	if err != nil {
		panic(err) // it contains only strings
	}
	return tlog.RecordHash(text)
}

// Tree is a Merkle tree without the hashes that no later leaf needs. The zero Tree is empty.
type Tree struct {
	// Edge are the hashes of the complete subtrees that the tree consists of, from left to
	// right: one for each bit that is set in Size.
	Edge []tlog.Hash `json:"edge,omitempty"`
	// Size is the number of leaves.
	Size int64 `json:"size"`
}

// Add returns the tree with another leaf.
func (t Tree) Add(leaf Leaf) Tree {
	hash, left := leaf.Hash(), len(t.Edge)
	for n := t.Size; n&1 == 1; n >>= 1 {
		left--
		hash = tlog.NodeHash(t.Edge[left], hash)
	}
	return Tree{Size: t.Size + 1, Edge: append(slices.Clone(t.Edge[:left]), hash)}
}

// Root returns the hash of the tree.
func (t Tree) Root() tlog.Hash {
	if len(t.Edge) == 0 {
		return tlog.Hash(sha256.Sum256(nil))
	}
	hash := t.Edge[len(t.Edge)-1]
	for _, left := range slices.Backward(t.Edge[:len(t.Edge)-1]) {
		hash = tlog.NodeHash(left, hash)
	}
	return hash
}

// Equal reports whether two trees have the same leaves.
func (t Tree) Equal(other Tree) bool { return t.Size == other.Size && slices.Equal(t.Edge, other.Edge) }

// Valid reports whether the edge has the form that the size requires.
func (t Tree) Valid() bool { return t.Size >= 0 && bits.OnesCount64(uint64(t.Size)) == len(t.Edge) }

// Seal proves a record: it has the tree before the record, and the signature of the
// checkpoint of the tree that ends with it. The fields are in the order of their names, so
// that the JSON of a Seal is unique.
type Seal struct {
	Before Tree `json:"before"`
	// Log is the ID of the log, which distinguishes the logs of a key.
	Log       string `json:"log"`
	Signature []byte `json:"signature"`
}

// Seal returns the seal of the next leaf.
func (t Tree) Seal(leaf Leaf, signer *Signer, log string) (*Seal, error) {
	if !validName(log) {
		return nil, fmt.Errorf("signing a record of the history: %q is not the ID of a log", log)
	}
	text := t.Add(leaf).text(signer.key.Origin(log))
	return &Seal{t, log, ed25519.Sign(signer.private, []byte(text))}, nil
}

func (t Tree) text(origin string) string {
	return fmt.Sprintf("%s\n%d\n%s\n", origin, t.Size, t.Root())
}

// Key verifies the logs of an installation. The origin of a log is the name of the key,
// followed by a slash and the ID of the log.
type Key struct {
	name   string
	public ed25519.PublicKey
}

// The first bytes of keys, and the sizes of a timestamp and of the hash in a signature line,
// in the formats of signed notes and of cosignatures.
const (
	algorithmEd25519     = 1
	algorithmCosignature = 4
	timestampSize        = 8
	hashSize             = 4
)

// ParseKey parses a verifier key in the form that note.NewVerifier reads.
func ParseKey(text string) (*Key, error) {
	text = strings.TrimSpace(text)
	_, err := note.NewVerifier(text)
	name, rest, _ := strings.Cut(text, "+")
	_, encoded, _ := strings.Cut(rest, "+")
	public, decodeErr := base64.StdEncoding.DecodeString(encoded)
	if err = errors.Join(err, decodeErr); err != nil {
		return nil, fmt.Errorf("reading the key %q of a history: %w: `numaform history key` prints the key", text, err)
	}
	return &Key{name, public[1:]}, nil
}

// Name returns the name of the key.
func (k *Key) Name() string { return k.name }

// String returns the key in the form that ParseKey reads.
func (k *Key) String() string { return k.verifierKey(k.name) }

// Verifier returns the verifier key of one log, for other programs.
func (k *Key) Verifier(log string) string { return k.verifierKey(k.Origin(log)) }

func (k *Key) verifierKey(name string) string {
	text, err := note.NewEd25519VerifierKey(name, k.public)
	if err != nil {
		panic(err) // the key has the right size
	}
	return text
}

// Origin returns the origin of a log.
func (k *Key) Origin(log string) string { return k.name + "/" + log }

// Equal reports whether two keys are the same.
func (k *Key) Equal(other *Key) bool { return k.name == other.name && k.public.Equal(other.public) }

// Check reports whether the key signed that a leaf follows the tree of its seal.
func (k *Key) Check(leaf Leaf, seal *Seal) bool {
	return seal.Before.Valid() && validName(seal.Log) &&
		ed25519.Verify(k.public, []byte(seal.Before.Add(leaf).text(k.Origin(seal.Log))), seal.Signature)
}

// Checkpoint returns the signed checkpoint that is in the seal of a leaf.
func (k *Key) Checkpoint(leaf Leaf, seal *Seal) []byte {
	origin := k.Origin(seal.Log)
	return []byte(seal.Before.Add(leaf).text(origin) + "\n" + signatureLine(origin, algorithmEd25519, k.public, seal.Signature))
}

// signatureLine returns a line of a signed note.
func signatureLine(name string, algorithm byte, public ed25519.PublicKey, signature []byte) string {
	line := binary.BigEndian.AppendUint32(nil, keyHash(name, algorithm, public))
	return "— " + name + " " + base64.StdEncoding.EncodeToString(append(line, signature...)) + "\n"
}

func keyHash(name string, algorithm byte, public ed25519.PublicKey) uint32 {
	sum := sha256.Sum256(slices.Concat([]byte(name+"\n"), []byte{algorithm}, public))
	return binary.BigEndian.Uint32(sum[:])
}

// validName reports whether an ID of a log can be part of an origin.
func validName(log string) bool {
	return log != "" && strings.IndexFunc(log, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
	}) < 0
}

// Checkpoint is a signed checkpoint as Key.Open reads it.
type Checkpoint struct {
	// Log is the ID of the log.
	Log  string
	Size int64
	Root tlog.Hash
	// Text is the part that is signed.
	Text string
}

// ErrOtherKey is returned by Open if the key did not sign the checkpoint.
var ErrOtherKey = errors.New("this key did not sign it")

// Open returns the content of a checkpoint that the key signed.
func (k *Key) Open(signed []byte) (*Checkpoint, error) {
	c, err := parseCheckpoint(signed)
	if err != nil {
		return nil, err
	}
	origin, _, _ := strings.Cut(c.Text, "\n")
	log, mine := strings.CutPrefix(origin, k.name+"/")
	if !mine || !validName(log) {
		return nil, fmt.Errorf("reading a checkpoint of %s: %w", origin, ErrOtherKey)
	}
	verifier, err := note.NewVerifier(k.Verifier(log))
	if err != nil {
		return nil, err
	}
	if _, err := note.Open(signed, note.VerifierList(verifier)); err != nil {
		return nil, fmt.Errorf("reading a checkpoint of %s: %w: %w", origin, ErrOtherKey, err)
	}
	c.Log = log
	return c, nil
}

// parseCheckpoint returns the content of a checkpoint without its log, and checks no
// signature.
func parseCheckpoint(signed []byte) (*Checkpoint, error) {
	text, _, found := strings.Cut(string(signed), "\n\n")
	lines := strings.Split(text, "\n")
	if !found || len(lines) < 3 {
		return nil, errors.New("reading a checkpoint: it is not a signed note with an origin, a size and a root: `numaform history checkpoint` prints one")
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	if err != nil || size < 0 || strconv.FormatInt(size, 10) != lines[1] {
		return nil, fmt.Errorf("reading a checkpoint: %q is not a size", lines[1])
	}
	root, err := tlog.ParseHash(lines[2])
	if err != nil {
		return nil, fmt.Errorf("reading a checkpoint: %w", err)
	}
	return &Checkpoint{Size: size, Root: root, Text: text + "\n"}, nil
}

// Split returns the checkpoints in a text, which may contain several.
func Split(text []byte) [][]byte {
	var list [][]byte
	var lines []string
	signed := false
	for line := range strings.Lines(string(text)) {
		if signed && !strings.HasPrefix(line, "— ") { // the first line of another checkpoint
			list = append(list, []byte(strings.Join(lines, "")))
			lines, signed = nil, false
		}
		if line == "\n" && (len(lines) == 0 || lines[len(lines)-1] == "\n") {
			continue
		}
		signed = signed || strings.HasPrefix(line, "— ")
		lines = append(lines, line)
	}
	if len(lines) > 0 {
		list = append(list, []byte(strings.Join(lines, "")))
	}
	return list
}

// Signer signs the logs of an installation.
type Signer struct {
	key     Key
	private ed25519.PrivateKey
}

// NewSigner derives the signing key of a cluster's history from the secret of an
// installation.
func NewSigner(secret []byte, cluster string) (*Signer, error) {
	name := "numaform.dev/history/" + cluster
	seed, err := hkdf.Key(sha256.New, secret, nil, name, ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	private := ed25519.NewKeyFromSeed(seed)
	return &Signer{Key{name, private.Public().(ed25519.PublicKey)}, private}, nil
}

// Key returns the key that verifies what the signer signs.
func (s *Signer) Key() *Key { return &s.key }

// Checkpoint returns the signed checkpoint of a tree.
func (s *Signer) Checkpoint(tree Tree, log string) []byte {
	origin := s.key.Origin(log)
	text := tree.text(origin)
	return []byte(text + "\n" + signatureLine(origin, algorithmEd25519, s.key.public, ed25519.Sign(s.private, []byte(text))))
}
