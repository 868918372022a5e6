package audit

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
	json "github.com/go-json-experiment/json/v1"

	"github.com/numaform/numaform/internal/translog"
)

// KeySize is the length of a Key in bytes.
const KeySize = 32

// Key is the key that authenticates an installation's records. Anyone who has it can
// forge the installation's records.
type Key [KeySize]byte

// Digest is the SHA-256 of a record's content without its MAC. It covers every field,
// known or unknown, and is independent of white space and field order.
type Digest [sha256.Size]byte

// Tag identifies a record that the key's installation trusts without a MAC.
type Tag [16]byte

// The purposes of a MAC: one for each kind of record, so that the MAC of one kind is not
// valid for another.
const (
	forChange         = "numaform history 1 change"
	forOutcome        = "numaform history 1 outcome"
	forAdopted        = "numaform history 1 adopted change"
	forAdoptedOutcome = "numaform history 1 adopted outcome"
)

// SealChange returns the change of a cluster with its Format, Digest and MAC set.
func (k *Key) SealChange(cluster string, change Change) (Change, error) {
	change.Format, change.MAC = FormatVersion, ""
	var err error
	if change.Digest, change.LogDigest, err = digestsOf(change); err != nil {
		return change, fmt.Errorf("sealing change %s: %w", change.ID, err)
	}
	change.MAC = hex.EncodeToString(k.mac(forChange, cluster, change.ID, change.Digest[:]))
	return change, nil
}

// SealOutcome returns the outcome with its Format, Digest and MAC set. change is the
// digest of the record of the outcome's change.
func (k *Key) SealOutcome(cluster string, change Digest, outcome Outcome) (Outcome, error) {
	outcome.Format, outcome.MAC = FormatVersion, ""
	var err error
	if outcome.Digest, outcome.LogDigest, err = digestsOf(outcome); err != nil {
		return outcome, fmt.Errorf("sealing the outcome of change %s: %w", outcome.ID, err)
	}
	outcome.MAC = hex.EncodeToString(k.mac(forOutcome, cluster, outcome.ID, change[:], outcome.Digest[:]))
	return outcome, nil
}

// Signer returns the key that signs the logs of a cluster's history.
func (k *Key) Signer(cluster string) (*translog.Signer, error) {
	return translog.NewSigner(k[:], cluster)
}

// Verify sets an entry's Verified and OutcomeVerified: whether the key's installation
// wrote the records for this cluster, or adopted them, and they have not changed since.
func (k *Key) Verify(cluster string, adopted map[Tag]bool, e *Entry) {
	e.Verified, e.OutcomeVerified = false, false
	change := &e.Change
	if change.ClusterID != cluster {
		return
	}
	e.Verified = same(change.MAC, k.mac(forChange, cluster, change.ID, change.Digest[:])) ||
		change.MAC == "" && adopted[k.changeTag(cluster, change)] ||
		k.signed(cluster, change.leaf(), change.Seal)
	if e.Outcome == nil || !e.Verified || e.Outcome.ID != change.ID {
		return
	}
	e.OutcomeVerified = same(e.Outcome.MAC, k.mac(forOutcome, cluster, change.ID, change.Digest[:], e.Outcome.Digest[:])) ||
		e.Outcome.MAC == "" && adopted[k.outcomeTag(cluster, e)] ||
		k.signed(cluster, e.Outcome.leaf(), e.Outcome.Seal)
}

// signed reports whether a record has a valid seal, although its MAC, which the seal does not
// cover, is not valid.
func (k *Key) signed(cluster string, leaf translog.Leaf, seal *translog.Seal) bool {
	if seal == nil {
		return false
	}
	signer, err := k.Signer(cluster)
	return err == nil && signer.Key().Check(leaf, seal)
}

// Tags returns the Tags by which Verify recognizes an entry's records once they are
// adopted.
func (k *Key) Tags(cluster string, e *Entry) []Tag {
	tags := []Tag{k.changeTag(cluster, &e.Change)}
	if e.Outcome != nil {
		tags = append(tags, k.outcomeTag(cluster, e))
	}
	return tags
}

func (k *Key) changeTag(cluster string, change *Change) Tag {
	return Tag(k.mac(forAdopted, cluster, change.ID, change.Digest[:])[:len(Tag{})])
}

func (k *Key) outcomeTag(cluster string, e *Entry) Tag {
	return Tag(k.mac(forAdoptedOutcome, cluster, e.Change.ID, e.Change.Digest[:], e.Outcome.Digest[:])[:len(Tag{})])
}

func (k *Key) mac(purpose, cluster, id string, digests ...[]byte) []byte {
	h := hmac.New(sha256.New, k[:])
	fmt.Fprintf(h, "%q %q %q %x", purpose, cluster, id, digests)
	return h.Sum(nil)
}

func same(text string, mac []byte) bool {
	given, err := hex.DecodeString(text)
	return err == nil && hmac.Equal(given, mac)
}

// leaf returns the leaf of a change that was read or sealed.
func (c *Change) leaf() translog.Leaf {
	return translog.NewLeaf(translog.KindChange, c.ID, c.LogDigest)
}

// leaf returns the leaf of an outcome that was read or sealed.
func (o *Outcome) leaf() translog.Leaf {
	return translog.NewLeaf(translog.KindOutcome, o.ID, o.LogDigest)
}

// Leaf returns the leaf of a change in the log: it covers the change without its MAC and its
// seal.
func (c *Change) Leaf() (translog.Leaf, error) {
	change := *c
	change.Format, change.MAC, change.Seal = FormatVersion, "", nil
	digest, _, err := digestsOf(change)
	return translog.NewLeaf(translog.KindChange, c.ID, digest), err
}

// Leaf returns the leaf of an outcome in the log.
func (o *Outcome) Leaf() (translog.Leaf, error) {
	outcome := *o
	outcome.Format, outcome.MAC, outcome.Seal = FormatVersion, "", nil
	digest, _, err := digestsOf(outcome)
	return translog.NewLeaf(translog.KindOutcome, o.ID, digest), err
}

// UnmarshalJSON decodes a change and computes its Digest. For a newer format, it decodes
// only the fields that Verify needs.
func (c *Change) UnmarshalJSON(content []byte) error {
	type plain Change
	var read plain
	h, err := decode(content, &read)
	if err != nil {
		return err
	}
	*c = Change(read)
	c.Format, c.ID, c.ClusterID, c.MAC, c.Seal, c.Digest, c.LogDigest = h.Format, h.ID, h.ClusterID, h.MAC, h.Seal, h.digest, h.logDigest
	return nil
}

// UnmarshalJSON decodes an outcome and computes its Digest. For a newer format, it
// decodes only the fields that Verify needs.
func (o *Outcome) UnmarshalJSON(content []byte) error {
	type plain Outcome
	var read plain
	h, err := decode(content, &read)
	if err != nil {
		return err
	}
	*o = Outcome(read)
	o.Format, o.ID, o.MAC, o.Seal, o.Digest, o.LogDigest = h.Format, h.ID, h.MAC, h.Seal, h.digest, h.logDigest
	return nil
}

// decode decodes a record. If its format is newer, it decodes only the fields that every
// format has. Records are decoded from the canonical form, so that the digest covers everything
// that is read.
func decode(content []byte, record any) (head, error) {
	text, h, err := canonical(content)
	if err == nil && h.Format <= FormatVersion {
		err = json.Unmarshal(text, record)
	}
	return h, err
}

func digestsOf(record any) (digest, logDigest Digest, err error) {
	content, err := json.Marshal(record)
	if err != nil {
		return digest, logDigest, err
	}
	_, h, err := canonical(content)
	return h.digest, h.logDigest, err
}

// head contains the fields of a record that every format has, and its digests.
type head struct {
	Format    int
	ID        string
	ClusterID string
	Seal      *translog.Seal
	MAC       string
	// digest covers all fields but the MAC, logDigest all but the MAC and the seal.
	digest, logDigest Digest
}

// canonical returns a record without its MAC and its seal in a form that is unique for its
// content: sorted fields without white space. An object must not have two fields of one name.
func canonical(content []byte) (text []byte, h head, err error) {
	sorted, err := jsontext.AppendFormat(make([]byte, 0, len(content)), content,
		jsontext.ReorderRawObjects(true), jsontext.EscapeForHTML(true), jsontext.EscapeForJS(true))
	if err != nil {
		return nil, h, err
	}
	fields := jsontext.NewDecoder(bytes.NewBuffer(sorted), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) // checked above
	if token, err := fields.ReadToken(); err != nil || token.Kind() != '{' {
		return nil, h, errors.Join(errors.New("it is not an object"), err)
	}
	all, unsealed := make([]byte, 0, len(sorted)), make([]byte, 0, len(sorted))
	for fields.PeekKind() != '}' {
		start := fields.InputOffset()
		name, err := fields.ReadToken()
		if err != nil {
			return nil, h, err
		}
		field := name.String()
		value, err := fields.ReadValue()
		if err != nil {
			return nil, h, err
		}
		switch field {
		case "format":
			err = json.Unmarshal(value, &h.Format)
		case "id":
			err = json.Unmarshal(value, &h.ID)
		case "cluster_id":
			err = json.Unmarshal(value, &h.ClusterID)
		case "seal":
			h.Seal, err = readSeal(value)
		case "mac":
			if value.Kind() == '"' {
				err = json.Unmarshal(value, &h.MAC)
			}
		}
		if err != nil {
			return nil, h, err
		}
		text := bytes.TrimPrefix(sorted[start:fields.InputOffset()], []byte{','})
		if field != "mac" {
			all = append(append(all, ','), text...)
		}
		if field != "mac" && field != "seal" {
			unsealed = append(append(unsealed, ','), text...)
		}
	}
	text = object(unsealed)
	h.digest, h.logDigest = sha256.Sum256(object(all)), sha256.Sum256(text)
	return text, h, nil
}

// object returns a JSON object, given its fields, each after a comma.
func object(fields []byte) []byte {
	return slices.Concat([]byte{'{'}, bytes.TrimPrefix(fields, []byte{','}), []byte{'}'})
}

// readSeal decodes a seal in its canonical form. If something was added that no signature
// covers, the seal has no signature.
func readSeal(text []byte) (seal *translog.Seal, err error) {
	if err = json.Unmarshal(text, &seal); err != nil || seal == nil {
		return nil, err
	}
	if read, err := json.Marshal(seal); err != nil || !bytes.Equal(read, text) {
		seal.Signature = nil
	}
	return seal, nil
}
