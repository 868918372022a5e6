package scheduling

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// once removes files that are named repeatedly, by themselves or by their directory.
func once(files []string) []string {
	var kept []string
	seen := map[string]bool{}
	for _, file := range files {
		same, err := filepath.EvalSymlinks(file)
		if err != nil {
			same = file // reading it reports the error
		}
		if !seen[same] {
			kept = append(kept, file)
		}
		seen[same] = true
	}
	return kept
}

// sources maps each object to its file.
type sources map[[3]string]string

// add refuses a duplicate object, because it is unclear which one is meant.
func (s sources) add(file string, objects []client.Object) error {
	var errs []error
	for _, object := range objects {
		kind := object.GetObjectKind().GroupVersionKind().Kind
		key := [3]string{kind, cmp.Or(object.GetNamespace(), corev1.NamespaceDefault), object.GetName()}
		first, known := s[key]
		if known && object.GetName() != "" {
			errs = append(errs, fmt.Errorf("reading %s: %s %q is in %s already: keep one of them", file, kind, object.GetName(), first))
			continue
		}
		s[key] = file
	}
	return errors.Join(errs...)
}
