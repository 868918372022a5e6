// Package backup defines the file of a backup: a fleet, its history with its key, and its
// states, as a compressed tar archive that age encrypts. It verifies an archive completely
// before it returns any of it. It reads and writes neither stores nor states: see
// scaler.ProposeRestore. Start at Write and Read.
package backup

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"filippo.io/age"

	"github.com/numaform/numaform/internal/store"
)

// FormatVersion is the format version of backups.
const FormatVersion = 1

// The limits of a backup, which are checked before its content is read.
const (
	maxManifest = 128 << 20
	maxEntry    = 256 << 20
	maxTotal    = 1 << 30
	maxEntries  = 800_000
)

// The names in the archive. Other entries are below the directories.
const (
	manifestName = "manifest.json"
	keyName      = "key"
	fleetDir     = "fleet"
	historyDir   = "history"
	statesDir    = "states"
	clusterDir   = "cluster"

	changeSuffix  = ".json"
	outcomeSuffix = ".outcome.json"
	stateSuffix   = ".tfstate"
)

// Backup is the content of a backup.
type Backup struct {
	// ClusterID is the fleet's cluster ID, and Version the version of numaform that made the
	// backup.
	ClusterID, Version string
	Created            time.Time
	Content            *store.Content
	// Key is the key of the history as its vault contains it; nil if there is none.
	Key []byte
	// KeyInCluster is set if the key is the controller's, in a Secret in numaform's namespace.
	KeyInCluster bool
	// States are the states by the directories of their roots, such as region-1/pve-1.
	States map[string][]byte
	// ConfigMaps are the data of ConfigMaps in numaform's namespace, by name.
	ConfigMaps map[string]map[string]string
}

// manifest is the first entry of an archive. It lists all other entries in their order.
type manifest struct {
	Format       int       `json:"format"`
	ClusterID    string    `json:"cluster_id"`
	Created      time.Time `json:"created"`
	Version      string    `json:"version"`
	KeyInCluster bool      `json:"key_in_cluster,omitempty"`
	Entries      []entry   `json:"entries"`
}

type entry struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Write writes a backup for the recipients; for none, it writes it in clear text.
func Write(w io.Writer, b *Backup, recipients ...age.Recipient) error {
	m := manifest{Format: FormatVersion, ClusterID: b.ClusterID, Created: b.Created.UTC(), Version: b.Version, KeyInCluster: b.KeyInCluster}
	var contents [][]byte
	add := func(name string, content []byte) {
		sum := sha256.Sum256(content)
		m.Entries = append(m.Entries, entry{Name: name, Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:])})
		contents = append(contents, content)
	}
	if b.Key != nil {
		add(keyName, b.Key)
	}
	for _, name := range slices.Sorted(maps.Keys(b.Content.Files)) {
		add(fleetDir+"/"+name, b.Content.Files[name])
	}
	for _, record := range b.Content.Records {
		add(historyDir+"/"+record.ID+changeSuffix, record.Change)
		if record.Outcome != nil {
			add(historyDir+"/"+record.ID+outcomeSuffix, record.Outcome)
		}
	}
	for _, root := range slices.Sorted(maps.Keys(b.States)) {
		add(statesDir+"/"+root+stateSuffix, b.States[root])
	}
	for _, name := range slices.Sorted(maps.Keys(b.ConfigMaps)) {
		content, err := json.Marshal(b.ConfigMaps[name])
		if err != nil {
			return fmt.Errorf("writing the backup: %w", err)
		}
		add(clusterDir+"/"+name+changeSuffix, content)
	}
	head, err := json.MarshalIndent(m, "", " ")
	if err == nil {
		err = m.check()
	}
	if err != nil {
		return fmt.Errorf("writing the backup: %w", err)
	}

	var outer io.WriteCloser = nopCloser{w}
	if len(recipients) > 0 {
		if outer, err = age.Encrypt(w, recipients...); err != nil {
			return fmt.Errorf("encrypting the backup: %w", err)
		}
	}
	zipped := gzip.NewWriter(outer)
	archive := tar.NewWriter(zipped)
	put := func(name string, content []byte) error {
		err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(content)), ModTime: m.Created, Format: tar.FormatPAX})
		if err == nil {
			_, err = archive.Write(content)
		}
		return err
	}
	err = put(manifestName, head)
	for i := range contents {
		if err == nil {
			err = put(m.Entries[i].Name, contents[i])
		}
	}
	if err := errors.Join(err, archive.Close(), zipped.Close(), outer.Close()); err != nil {
		return fmt.Errorf("writing the backup: %w", err)
	}
	return nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// encryptedBy is how each file that age encrypted begins.
const encryptedBy = "age-encryption.org/v1\n"

// ErrEncrypted is returned by Read for an encrypted backup if there is no identity.
var ErrEncrypted = errors.New("the backup is encrypted: pass --identity FILE with a private key of age, or --passphrase-file FILE")

// Read reads a backup, decrypts it with one of the identities if it is encrypted, and verifies
// that it is complete and unchanged since it was written. It does not prove who wrote it.
func Read(r io.Reader, identities ...age.Identity) (*Backup, error) {
	failed := func(err error) (*Backup, error) { return nil, fmt.Errorf("reading the backup: %w", err) }
	buffered := bufio.NewReader(r)
	start, err := buffered.Peek(len(encryptedBy))
	if err != nil && !errors.Is(err, io.EOF) {
		return failed(err)
	}
	var plain io.Reader = buffered
	switch {
	case string(start) == encryptedBy && len(identities) == 0:
		return nil, ErrEncrypted
	case string(start) == encryptedBy:
		if plain, err = age.Decrypt(buffered, identities...); err != nil {
			return failed(fmt.Errorf("%w: use the private key or the passphrase for which it was encrypted", err))
		}
	case !bytes.HasPrefix(start, []byte{0x1f, 0x8b}):
		return failed(errors.New("it is not a backup: it must be a file that numaform backup wrote"))
	}
	zipped, err := gzip.NewReader(plain)
	if err != nil {
		return failed(err)
	}
	b, err := read(tar.NewReader(io.LimitReader(zipped, maxTotal+maxManifest)))
	if err != nil {
		return failed(err)
	}
	// The checksum of the compressed data, and what authenticates encrypted data, is at the
	// end.
	if rest, err := io.Copy(io.Discard, io.LimitReader(zipped, 1<<20)); err != nil || rest == 1<<20 {
		return failed(errors.Join(errors.New("its end is damaged: use another backup"), err))
	}
	return b, nil
}

// check returns an error if an archive must not have these entries.
func (m *manifest) check() error {
	switch {
	case m.Format > FormatVersion:
		return fmt.Errorf("numaform %s wrote it in format %d, but this version supports only %d: use that version", m.Version, m.Format, FormatVersion)
	case m.Format < 1 || m.ClusterID == "":
		return fmt.Errorf("its %s has no format or no cluster_id: it is not a backup", manifestName)
	case len(m.Entries) > maxEntries:
		return fmt.Errorf("it has %d entries: at most %d are allowed", len(m.Entries), maxEntries)
	}
	total := int64(0)
	seen := map[string]bool{}
	for _, e := range m.Entries {
		if !fs.ValidPath(e.Name) || strings.ContainsAny(e.Name, "\\\x00") {
			return fmt.Errorf("entry %q: the path is outside the backup", e.Name)
		}
		if e.Size < 0 || e.Size > maxEntry {
			return fmt.Errorf("entry %q has %d bytes: at most %d are allowed", e.Name, e.Size, int64(maxEntry))
		}
		if total += e.Size; total > maxTotal {
			return fmt.Errorf("its entries have more than %d bytes", int64(maxTotal))
		}
		if seen[e.Name] {
			return fmt.Errorf("entry %q is listed twice", e.Name)
		}
		seen[e.Name] = true
	}
	return nil
}

// read reads and verifies an archive.
func read(archive *tar.Reader) (*Backup, error) {
	head, err := next(archive, manifestName, maxManifest)
	if err != nil {
		return nil, err
	}
	var m manifest
	if err := json.Unmarshal(head, &m); err != nil {
		return nil, fmt.Errorf("%s: %w", manifestName, err)
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	b := &Backup{
		ClusterID: m.ClusterID, Version: m.Version, Created: m.Created, KeyInCluster: m.KeyInCluster,
		Content: &store.Content{Files: map[string][]byte{}}, States: map[string][]byte{}, ConfigMaps: map[string]map[string]string{},
	}
	for _, e := range m.Entries {
		content, err := next(archive, e.Name, e.Size)
		if err != nil {
			return nil, err
		}
		if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != e.SHA256 || int64(len(content)) != e.Size {
			return nil, fmt.Errorf("entry %q differs from the manifest: the backup was edited or is damaged: use another one", e.Name)
		}
		if err := b.add(e.Name, content); err != nil {
			return nil, err
		}
	}
	if extra, err := archive.Next(); !errors.Is(err, io.EOF) {
		if err != nil {
			return nil, fmt.Errorf("it is damaged after its last entry: %w: use another backup", err)
		}
		return nil, fmt.Errorf("entry %q is not in the manifest: the backup was edited: use another one", extra.Name)
	}
	return b, b.Content.Check()
}

// next reads the next entry, which must be a regular file with that name and at most limit
// bytes.
func next(archive *tar.Reader, name string, limit int64) ([]byte, error) {
	header, err := archive.Next()
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("it ends before entry %q: the backup is incomplete: use another one", name)
	case err != nil:
		return nil, fmt.Errorf("it is damaged before entry %q: %w: use another backup", name, err)
	case header.Name != name || header.Typeflag != tar.TypeReg:
		return nil, fmt.Errorf("it has entry %q where %q is expected: the backup was edited: use another one", header.Name, name)
	case header.Size > limit:
		return nil, fmt.Errorf("entry %q has %d bytes, but the manifest allows %d: the backup was edited: use another one", name, header.Size, limit)
	}
	content, err := io.ReadAll(io.LimitReader(archive, limit))
	if err != nil {
		return nil, fmt.Errorf("entry %q: %w: use another backup", name, err)
	}
	return content, nil
}

// add adds an entry.
func (b *Backup) add(name string, content []byte) error {
	unknown := fmt.Errorf("entry %q is not part of a backup", name)
	dir, below, nested := strings.Cut(name, "/")
	switch {
	case name == keyName:
		b.Key = content
	case !nested:
		return unknown
	case dir == fleetDir:
		b.Content.Files[below] = content
	case dir == historyDir && strings.HasSuffix(below, outcomeSuffix):
		last := len(b.Content.Records) - 1
		if last < 0 || b.Content.Records[last].ID != strings.TrimSuffix(below, outcomeSuffix) {
			return fmt.Errorf("entry %q does not follow the record of its change", name)
		}
		b.Content.Records[last].Outcome = content
	case dir == historyDir && strings.HasSuffix(below, changeSuffix):
		b.Content.Records = append(b.Content.Records, store.Record{ID: strings.TrimSuffix(below, changeSuffix), Change: content})
	case dir == statesDir && strings.HasSuffix(below, stateSuffix):
		b.States[strings.TrimSuffix(below, stateSuffix)] = content
	case dir == clusterDir && strings.HasSuffix(below, changeSuffix):
		var data map[string]string
		if err := json.Unmarshal(content, &data); err != nil {
			return fmt.Errorf("entry %q: %w", name, err)
		}
		b.ConfigMaps[strings.TrimSuffix(below, changeSuffix)] = data
	default:
		return unknown
	}
	return nil
}
