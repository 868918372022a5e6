package scheduling_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/internal/scheduling"
)

// FuzzManifests checks that objects decoded from any text are the same after printing and
// decoding them again.
func FuzzManifests(f *testing.F) {
	for _, name := range []string{"nodepools.yaml", "pods.yaml"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "examples", "quickstart", "manifests", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i}]}}\n"))
	f.Add([]byte("---\n---\n# nothing\n"))
	f.Add([]byte("apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: 'a\"${b}'}\n"))
	decode, err := scheduling.NewDecode()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		first, err := decode(text)
		if err != nil {
			return
		}
		once := printed(t, first)
		second, err := decode(once)
		if err != nil {
			t.Fatalf("printed, it is refused: %v\n%s", err, once)
		}
		if diff := cmp.Diff(string(once), string(printed(t, second))); diff != "" {
			t.Fatalf("printed and read again (-first +second):\n%s", diff)
		}
	})
}

// printed prints objects as one manifest.
func printed[T any](t *testing.T, objects []T) []byte {
	t.Helper()
	var all bytes.Buffer
	for _, object := range objects {
		text, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString("---\n")
		all.Write(text)
	}
	return all.Bytes()
}
