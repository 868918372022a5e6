package translog

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Witness cosigns checkpoints (C2SP tlog-cosignature, the type with Ed25519): it states
// that a checkpoint is consistent with all that it has seen before.
type Witness struct {
	name    string
	private ed25519.PrivateKey
}

// NewWitness returns a witness with a new key. The name should be a URL without schema.
func NewWitness(name string) (*Witness, error) {
	if name == "" || strings.ContainsAny(name, "+ \t\r\n") {
		return nil, fmt.Errorf("the name of a witness is %q: it must not be empty, and contain no spaces and no plus", name)
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	return &Witness{name, private}, err
}

// witnessPrefix begins the private key of a witness, in the form of the keys of signed notes.
const witnessPrefix = "PRIVATE+KEY+"

// Private returns the private key, in the form that ParseWitness reads.
func (w *Witness) Private() string {
	return witnessPrefix + w.encode(w.private.Seed())
}

// String returns the public key, as a verifier key of the type of cosignatures.
func (w *Witness) String() string { return w.encode(w.public()) }

func (w *Witness) public() ed25519.PublicKey { return w.private.Public().(ed25519.PublicKey) }

func (w *Witness) encode(key []byte) string {
	return fmt.Sprintf("%s+%08x+%s", w.name, keyHash(w.name, algorithmCosignature, w.public()),
		base64.StdEncoding.EncodeToString(append([]byte{algorithmCosignature}, key...)))
}

// ParseWitness parses a private key.
func ParseWitness(text string) (*Witness, error) {
	rest, private := strings.CutPrefix(strings.TrimSpace(text), witnessPrefix)
	name, hash, seed, err := parseWitnessKey(rest)
	if !private || err != nil {
		return nil, errors.New("not the private key of a witness: create one with numaform history witness --new-key")
	}
	w := &Witness{name, ed25519.NewKeyFromSeed(seed)}
	if keyHash(name, algorithmCosignature, w.public()) != hash {
		return nil, errors.New("not the private key of a witness: its hash differs")
	}
	return w, nil
}

func parseWitnessKey(text string) (name string, hash uint32, key []byte, err error) {
	parts := strings.Split(text, "+")
	if len(parts) < 3 {
		return "", 0, nil, errors.New("it needs a name, a hash and a key, with a plus between them")
	}
	number, err := strconv.ParseUint(parts[1], 16, 32)
	if err != nil {
		return "", 0, nil, err
	}
	key, err = base64.StdEncoding.DecodeString(strings.Join(parts[2:], "+"))
	if err == nil && (len(key) != 1+ed25519.PublicKeySize || key[0] != algorithmCosignature) {
		err = errors.New("it is not a key for cosignatures with Ed25519")
	}
	if err != nil {
		return "", 0, nil, err
	}
	return parts[0], uint32(number), key[1:], nil
}

// Cosign adds the witness's signature to a signed checkpoint. The caller has checked that
// the checkpoint is consistent.
func (w *Witness) Cosign(signed []byte, at time.Time) ([]byte, error) {
	c, err := parseCheckpoint(signed)
	if err != nil {
		return nil, err
	}
	seconds := max(0, at.Unix())
	signature := binary.BigEndian.AppendUint64(nil, uint64(seconds))
	signature = append(signature, ed25519.Sign(w.private, cosigned(c, seconds))...)
	return append(signed[:len(signed):len(signed)], signatureLine(w.name, algorithmCosignature, w.public(), signature)...), nil
}

func cosigned(c *Checkpoint, seconds int64) []byte {
	return fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", seconds, c.Text)
}

// WitnessKey verifies cosignatures.
type WitnessKey struct {
	name   string
	public ed25519.PublicKey
}

// ParseWitnessKey parses the public key of a witness.
func ParseWitnessKey(text string) (*WitnessKey, error) {
	name, hash, public, err := parseWitnessKey(strings.TrimSpace(text))
	if err == nil && keyHash(name, algorithmCosignature, public) != hash {
		err = errors.New("its hash differs")
	}
	if err != nil {
		return nil, fmt.Errorf("reading the key %q of a witness: %w: numaform history witness prints the key", text, err)
	}
	return &WitnessKey{name, public}, nil
}

// Name returns the name of the witness.
func (k *WitnessKey) Name() string { return k.name }

// Cosigned returns when the witness signed a checkpoint, or an error if it did not.
func (k *WitnessKey) Cosigned(signed []byte) (time.Time, error) {
	c, err := parseCheckpoint(signed)
	if err != nil {
		return time.Time{}, err
	}
	_, lines, _ := strings.Cut(string(signed), "\n\n")
	for line := range strings.Lines(lines) {
		encoded, mine := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "— "+k.name+" ")
		content, err := base64.StdEncoding.DecodeString(encoded)
		if !mine || err != nil || len(content) != hashSize+timestampSize+ed25519.SignatureSize ||
			binary.BigEndian.Uint32(content) != keyHash(k.name, algorithmCosignature, k.public) {
			continue
		}
		seconds := int64(binary.BigEndian.Uint64(content[hashSize:])) //nolint:gosec // a negative one is refused below
		if seconds >= 0 && ed25519.Verify(k.public, cosigned(c, seconds), content[hashSize+timestampSize:]) {
			return time.Unix(seconds, 0).UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("witness %s did not sign the checkpoint", k.name)
}
