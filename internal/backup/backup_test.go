package backup_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/internal/backup"
	"github.com/numaform/numaform/internal/store"
)

// example returns a backup with an entry of each kind.
func example(t *testing.T) *backup.Backup {
	t.Helper()
	files, err := generator.Render(fleet.Fleet{
		ClusterID: "prod", Backend: fleet.Backend{Type: "local"},
		Regions: []fleet.Region{{Name: "r", Endpoint: "https://pve-1.example:8006/"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &backup.Backup{
		ClusterID: "prod", Version: "v1.2.3", Created: time.Date(2026, 11, 28, 1, 2, 3, 0, time.UTC), Key: []byte("secret key"), KeyInCluster: true,
		Content: &store.Content{Files: files, Records: []store.Record{
			{ID: "20261121T134501Z-00000001", Change: []byte(`{"id":1}`), Outcome: []byte(`{"outcome":1}`)},
			{ID: "20261121T134601Z-00000002", Change: []byte(`{"id":2}`)},
		}},
		States:     map[string][]byte{"r/pve-1": []byte(`{"version":4}`), "templates/r/pve-1": []byte(`{"version":4}`)},
		ConfigMaps: map[string]map[string]string{"numaform-control": {"paused": "true"}},
	}
}

func written(t *testing.T, b *backup.Backup, recipients ...age.Recipient) []byte {
	t.Helper()
	var file bytes.Buffer
	if err := backup.Write(&file, b, recipients...); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	key, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	classic, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	recipient, err := age.NewScryptRecipient("correct horse battery staple")
	if err != nil {
		t.Fatal(err)
	}
	recipient.SetWorkFactor(10)
	identity, err := age.NewScryptIdentity("correct horse battery staple")
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := age.NewScryptIdentity("wrong")
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		to   []age.Recipient
		from age.Identity
	}{
		"plain":      {nil, nil},
		"keys":       {[]age.Recipient{key.Recipient()}, key},
		"classic":    {[]age.Recipient{classic.Recipient()}, classic},
		"passphrase": {[]age.Recipient{recipient}, identity},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := written(t, example(t), tt.to...)
			var identities []age.Identity
			if tt.from != nil {
				identities = []age.Identity{tt.from}
				if _, err := backup.Read(bytes.NewReader(file)); !errors.Is(err, backup.ErrEncrypted) {
					t.Errorf("without an identity: %v", err)
				}
				if _, err := backup.Read(bytes.NewReader(file), wrong); err == nil || !strings.Contains(err.Error(), "passphrase") {
					t.Errorf("with another identity: %v", err)
				}
				if bytes.Contains(file, []byte("manifest")) {
					t.Error("the file is not encrypted")
				}
			}
			got, err := backup.Read(bytes.NewReader(file), identities...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(example(t), got); diff != "" {
				t.Errorf("after a round trip (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDamaged cuts a backup at each byte, and changes each byte: the backup is never read with
// another content, except for the header of gzip, which has none of it.
func TestDamaged(t *testing.T) {
	t.Parallel()
	file := written(t, example(t))
	for i := range file {
		if _, err := backup.Read(bytes.NewReader(file[:i])); err == nil {
			t.Errorf("cut after %d of %d bytes: it was read", i, len(file))
		}
		damaged := bytes.Clone(file)
		damaged[i] ^= 0x55
		got, err := backup.Read(bytes.NewReader(damaged))
		if err == nil && !cmp.Equal(example(t), got) {
			t.Errorf("byte %d changed: it was read with another content", i)
		}
	}
}

// item is an entry of an archive.
type item struct {
	name    string
	content string
	link    string
}

// pack packs an archive with entries and their manifest, edited.
func pack(t *testing.T, items []item, edit func(m map[string]any)) []byte {
	t.Helper()
	var entries []any
	for _, i := range items {
		sum := sha256.Sum256([]byte(i.content))
		entries = append(entries, map[string]any{"name": i.name, "size": len(i.content), "sha256": hex.EncodeToString(sum[:])})
	}
	m := map[string]any{"format": 1, "cluster_id": "prod", "version": "v9", "entries": entries}
	edit(m)
	head, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	zipped := gzip.NewWriter(&file)
	archive := tar.NewWriter(zipped)
	for _, i := range append([]item{{name: "manifest.json", content: string(head)}}, items...) {
		header := &tar.Header{Name: i.name, Mode: 0o600, Size: int64(len(i.content)), Typeflag: tar.TypeReg}
		if i.link != "" {
			header.Typeflag, header.Linkname = tar.TypeSymlink, i.link
		}
		if err := archive.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(archive, i.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(archive.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// TestHostile reads archives that were edited: each error names the entry.
func TestHostile(t *testing.T) {
	t.Parallel()
	first := func(m map[string]any) map[string]any { return m["entries"].([]any)[0].(map[string]any) }
	same := func(map[string]any) {}
	for name, tt := range map[string]struct {
		items []item
		edit  func(m map[string]any)
		want  string
	}{
		"another digest":     {[]item{{name: "key", content: "x"}}, func(m map[string]any) { first(m)["sha256"] = strings.Repeat("0", 64) }, `entry "key" differs`},
		"a larger entry":     {[]item{{name: "key", content: "xyz"}}, func(m map[string]any) { first(m)["size"] = 1 }, `entry "key" has 3 bytes`},
		"a smaller entry":    {[]item{{name: "key", content: "xyz"}}, func(m map[string]any) { first(m)["size"] = 9 }, `entry "key" differs`},
		"a huge entry":       {[]item{{name: "key", content: "x"}}, func(m map[string]any) { first(m)["size"] = 1 << 40 }, `entry "key" has`},
		"a negative size":    {[]item{{name: "key", content: "x"}}, func(m map[string]any) { first(m)["size"] = -1 }, `entry "key" has -1`},
		"not listed":         {[]item{{name: "key", content: "x"}}, func(m map[string]any) { m["entries"] = nil }, `entry "key" is not in the manifest`},
		"missing":            {nil, func(m map[string]any) { m["entries"] = []any{map[string]any{"name": "key", "size": 0}} }, `ends before entry "key"`},
		"another order":      {[]item{{name: "key"}, {name: "fleet/x"}}, func(m map[string]any) { e := m["entries"].([]any); e[0], e[1] = e[1], e[0] }, `entry "key" where "fleet/x"`},
		"twice":              {[]item{{name: "key"}, {name: "key"}}, same, "twice"},
		"outside":            {[]item{{name: "../key"}}, same, `"../key"`},
		"outside, below":     {[]item{{name: "fleet/../../x"}}, same, `"fleet/../../x"`},
		"absolute":           {[]item{{name: "/etc/passwd"}}, same, `"/etc/passwd"`},
		"a backslash":        {[]item{{name: `fleet/..\x`}}, same, `outside`},
		"a link":             {[]item{{name: "key", link: "/etc/passwd"}}, same, `entry "key"`},
		"an unknown entry":   {[]item{{name: "other/x"}}, same, `"other/x" is not part`},
		"git's":              {[]item{{name: "fleet/.git/config"}}, same, ".git/config"},
		"an ID that is none": {[]item{{name: "history/x.json", content: "{}"}}, same, "x is not the ID"},
		"only an outcome":    {[]item{{name: "history/20261121T134501Z-1.outcome.json", content: "{}"}}, same, "does not follow"},
		"a newer format":     {nil, func(m map[string]any) { m["format"] = 2 }, "numaform v9 wrote it in format 2"},
		"no format":          {nil, func(m map[string]any) { delete(m, "format") }, "no format"},
		"no cluster":         {nil, func(m map[string]any) { delete(m, "cluster_id") }, "no cluster_id"},
		"cluster's objects":  {[]item{{name: "cluster/x.json", content: "[]"}}, same, `"cluster/x.json"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := backup.Read(bytes.NewReader(pack(t, tt.items, tt.edit)))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
	for name, file := range map[string]string{"nothing": "", "text": "hello, world, this is no backup", "cut": "\x1f\x8b"} {
		if _, err := backup.Read(strings.NewReader(file)); err == nil {
			t.Errorf("%s: it was read", name)
		}
	}
}

// TestBomb reads an archive of gigabytes of zeros: it ends at the limit.
func TestBomb(t *testing.T) {
	t.Parallel()
	read, write := io.Pipe()
	go func() {
		zipped := gzip.NewWriter(write)
		archive := tar.NewWriter(zipped)
		err := archive.WriteHeader(&tar.Header{Name: "manifest.json", Mode: 0o600, Size: 1 << 40, Typeflag: tar.TypeReg})
		zeros := make([]byte, 1<<20)
		for err == nil {
			_, err = archive.Write(zeros)
		}
	}()
	if _, err := backup.Read(read); err == nil || !strings.Contains(err.Error(), `"manifest.json" has`) {
		t.Errorf("got %v", err)
	}
	if err := read.Close(); err != nil {
		t.Fatal(err)
	}
}
