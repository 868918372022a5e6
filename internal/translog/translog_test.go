package translog_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/numaform/numaform/internal/translog"
)

func leaf(i int) translog.Leaf {
	return translog.NewLeaf(translog.KindChange, fmt.Sprint(i), [32]byte{byte(i), byte(i >> 8)})
}

func signer(t testing.TB, secret string) *translog.Signer {
	t.Helper()
	s, err := translog.NewSigner([]byte(secret), "prod")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// hashes are the stored hashes of a tree of package tlog.
type hashes []tlog.Hash

func (h hashes) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	var list []tlog.Hash
	for _, i := range indexes {
		list = append(list, h[i])
	}
	return list, nil
}

// TestTree compares each tree of up to 300 leaves with that of package tlog.
func TestTree(t *testing.T) {
	t.Parallel()
	var tree translog.Tree
	var stored hashes
	for i := range 300 {
		want, err := tlog.TreeHash(int64(i), stored)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && tree.Root() != want || !tree.Valid() || tree.Size != int64(i) {
			t.Fatalf("tree of %d leaves: %s, want %s", i, tree.Root(), want)
		}
		more, err := tlog.StoredHashesForRecordHash(int64(i), leaf(i).Hash(), stored)
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, more...)
		tree = tree.Add(leaf(i))
	}
}

// TestCheckpoint checks that other programs can read checkpoints: package note opens them with
// the verifier key of the log.
func TestCheckpoint(t *testing.T) {
	t.Parallel()
	s := signer(t, "secret")
	tree := translog.Tree{}.Add(leaf(0))
	seal, err := tree.Seal(leaf(1), s, "A1")
	if err != nil {
		t.Fatal(err)
	}
	next := tree.Add(leaf(1))
	signed := s.Key().Checkpoint(leaf(1), seal)
	if !bytes.Equal(signed, s.Checkpoint(next, "A1")) {
		t.Errorf("the checkpoint in the seal is %q, want %q", signed, s.Checkpoint(next, "A1"))
	}
	verifier, err := note.NewVerifier(s.Key().Verifier("A1"))
	if err != nil {
		t.Fatal(err)
	}
	opened, err := note.Open(signed, note.VerifierList(verifier))
	if want := fmt.Sprintf("numaform.dev/history/prod/A1\n2\n%s\n", next.Root()); err != nil || opened.Text != want {
		t.Errorf("note %+v, %v, want %q", opened, err, want)
	}
	again, err := translog.ParseKey(s.Key().String())
	if err != nil || !again.Equal(s.Key()) {
		t.Fatalf("key %s, %v", again, err)
	}
	read, err := again.Open(signed)
	if err != nil || read.Log != "A1" || read.Size != 2 || read.Root != next.Root() {
		t.Errorf("checkpoint %+v, %v", read, err)
	}
	if _, err := signer(t, "other").Key().Open(signed); !errors.Is(err, translog.ErrOtherKey) {
		t.Errorf("with another key: %v", err)
	}
	for _, edit := range [][2]string{{"\n2\n", "\n3\n"}, {"/A1\n2", "/A2\n2"}, {"\n2\n", "\n02\n"}, {"\n\n", "\n"}, {"— ", "- "}} {
		if edited := strings.Replace(string(signed), edit[0], edit[1], 1); edited == string(signed) {
			t.Fatalf("%q is not in %q", edit[0], signed)
		} else if _, err := again.Open([]byte(edited)); err == nil {
			t.Errorf("%q is read", edited)
		}
	}
	if list := translog.Split([]byte(string(signed) + "\n" + string(signed) + string(signed))); len(list) != 3 || !bytes.Equal(list[1], signed) {
		t.Errorf("split into %q", list)
	}
}

func TestSeal(t *testing.T) {
	t.Parallel()
	s := signer(t, "secret")
	tree := translog.Tree{}.Add(leaf(0))
	seal, err := tree.Seal(leaf(1), s, "A")
	if err != nil || !s.Key().Check(leaf(1), seal) {
		t.Fatalf("seal %+v, %v", seal, err)
	}
	broken := *seal
	broken.Before.Size = 5 // more leaves than the edge has
	other := *seal
	other.Log = "B"
	line := *seal
	line.Log = "A\n1\n"
	for name, check := range map[string]bool{
		"another leaf": s.Key().Check(leaf(2), seal),
		"another key":  signer(t, "other").Key().Check(leaf(1), seal),
		"a size":       s.Key().Check(leaf(1), &broken),
		"another log":  s.Key().Check(leaf(1), &other),
		"a line":       s.Key().Check(leaf(1), &line),
	} {
		if check {
			t.Errorf("%s is accepted", name)
		}
	}
	if _, err := tree.Seal(leaf(1), s, "A/B"); err == nil {
		t.Error("an ID of a log that its key does not read back is signed")
	}
}

// TestWitness checks a cosignature as the format describes it: a key hash, a time, and a
// signature of both with the text.
func TestWitness(t *testing.T) {
	t.Parallel()
	w, err := translog.NewWitness("witness.example.com/w1")
	if err == nil {
		w, err = translog.ParseWitness(w.Private() + "\n")
	}
	if err != nil {
		t.Fatal(err)
	}
	key, err := translog.ParseWitnessKey(w.String())
	if err != nil {
		t.Fatal(err)
	}
	s := signer(t, "secret")
	signed := s.Checkpoint(translog.Tree{}.Add(leaf(0)), "A")
	at := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	cosigned, err := w.Cosign(signed, at)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := key.Cosigned(cosigned); err != nil || !got.Equal(at) {
		t.Errorf("cosigned at %s, %v", got, err)
	}
	if _, err := s.Key().Open(cosigned); err != nil {
		t.Errorf("the log's signature beside the witness's: %v", err)
	}
	parts := strings.Split(w.String(), "+")
	public, err := base64.StdEncoding.DecodeString(strings.Join(parts[2:], "+"))
	if err != nil || len(public) != 33 || public[0] != 4 {
		t.Fatalf("public key %x, %v", public, err)
	}
	lines := strings.Split(strings.TrimSpace(string(cosigned)), "\n")
	content, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(lines[len(lines)-1], "— witness.example.com/w1 "))
	if err != nil || len(content) != 4+8+64 || int64(binary.BigEndian.Uint64(content[4:])) != at.Unix() || fmt.Sprintf("%x", content[:4]) != parts[1] {
		t.Fatalf("line %q, %v", lines[len(lines)-1], err)
	}
	text, _, _ := strings.Cut(string(signed), "\n\n")
	if !ed25519.Verify(public[1:], fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s\n", at.Unix(), text), content[12:]) {
		t.Error("the signature does not cover the time and the text")
	}
	if _, err := key.Cosigned(signed); err == nil {
		t.Error("a checkpoint without a cosignature is cosigned")
	}
	if _, err := key.Cosigned([]byte(strings.Replace(string(cosigned), "\n1\n", "\n2\n", 1))); err == nil {
		t.Error("an edited checkpoint is cosigned")
	}
	for _, bad := range []string{"", "a", "a+b", "PRIVATE+KEY+a+b+c", w.String(), s.Key().String()} {
		if _, err := translog.ParseWitness(bad); err == nil {
			t.Errorf("%q is the private key of a witness", bad)
		}
	}
	if _, err := translog.ParseWitnessKey(s.Key().String()); err == nil {
		t.Error("the key of a log is the key of a witness")
	}
	if _, err := translog.NewWitness("a b"); err == nil {
		t.Error("a name with a space")
	}
}

// FuzzOpen reads hostile checkpoints: none is signed.
func FuzzOpen(f *testing.F) {
	s := signer(f, "secret")
	signed := s.Checkpoint(translog.Tree{}.Add(leaf(0)), "A")
	f.Add(signed)
	f.Add([]byte("a\n1\n\n"))
	f.Add([]byte("\n\n\n"))
	witness, err := translog.NewWitness("w")
	if err != nil {
		f.Fatal(err)
	}
	key, err := translog.ParseWitnessKey(witness.String())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		for _, part := range translog.Split(content) {
			if c, err := s.Key().Open(part); err == nil && !strings.HasPrefix(string(signed), c.Text) {
				t.Errorf("%q is signed", part)
			}
			if _, err := key.Cosigned(part); err == nil {
				t.Errorf("%q is cosigned", part)
			}
		}
	})
}
