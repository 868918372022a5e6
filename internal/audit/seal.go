package audit

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
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
	if change.Digest, err = digestOf(change); err != nil {
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
	if outcome.Digest, err = digestOf(outcome); err != nil {
		return outcome, fmt.Errorf("sealing the outcome of change %s: %w", outcome.ID, err)
	}
	outcome.MAC = hex.EncodeToString(k.mac(forOutcome, cluster, outcome.ID, change[:], outcome.Digest[:]))
	return outcome, nil
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
		change.MAC == "" && adopted[k.changeTag(cluster, change)]
	if e.Outcome == nil || !e.Verified || e.Outcome.ID != change.ID {
		return
	}
	e.OutcomeVerified = same(e.Outcome.MAC, k.mac(forOutcome, cluster, change.ID, change.Digest[:], e.Outcome.Digest[:])) ||
		e.Outcome.MAC == "" && adopted[k.outcomeTag(cluster, e)]
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

// UnmarshalJSON decodes a change and computes its Digest. For a newer format, it decodes
// only the fields that Verify needs.
func (c *Change) UnmarshalJSON(content []byte) error {
	type plain Change
	var read plain
	h, digest, err := decode(content, &read)
	if err != nil {
		return err
	}
	*c = Change(read)
	c.Format, c.ID, c.ClusterID, c.MAC, c.Digest = h.Format, h.ID, h.ClusterID, h.mac, digest
	return nil
}

// UnmarshalJSON decodes an outcome and computes its Digest. For a newer format, it
// decodes only the fields that Verify needs.
func (o *Outcome) UnmarshalJSON(content []byte) error {
	type plain Outcome
	var read plain
	h, digest, err := decode(content, &read)
	if err != nil {
		return err
	}
	*o = Outcome(read)
	o.Format, o.ID, o.MAC, o.Digest = h.Format, h.ID, h.mac, digest
	return nil
}

// decode decodes a record. If its format is newer, it decodes only the fields that every
// format has.
func decode(content []byte, record any) (head, Digest, error) {
	text, h, err := canonical(content)
	if err == nil && h.Format <= FormatVersion {
		err = json.Unmarshal(text, record)
	}
	return h, sha256.Sum256(text), err
}

func digestOf(record any) (Digest, error) {
	content, err := json.Marshal(record)
	if err != nil {
		return Digest{}, err
	}
	text, _, err := canonical(content)
	return sha256.Sum256(text), err
}

// head contains the fields of a record that every format has.
type head struct {
	Format    int    `json:"format"`
	ID        string `json:"id"`
	ClusterID string `json:"cluster_id"`
	mac       string
}

// canonical returns a record without its MAC in a form that is unique for its content:
// sorted fields, and the last occurrence of duplicates. Records are decoded from this
// form, so that the digest covers everything that is read.
func canonical(content []byte) (text []byte, h head, err error) {
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber() // an int64 would lose digits as a float64
	var fields map[string]any
	if err := decoder.Decode(&fields); err != nil {
		return nil, h, err
	}
	if fields == nil {
		return nil, h, errors.New("it is null")
	}
	h.mac, _ = fields["mac"].(string)
	delete(fields, "mac")
	if text, err = json.Marshal(fields); err != nil {
		return nil, h, err
	}
	err = json.Unmarshal(text, &h)
	return text, h, err
}
