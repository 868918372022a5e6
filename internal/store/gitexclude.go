package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/numaform/numaform/generator"
)

// exclude keeps what numaform and the engine leave in this working copy out of what a
// person commits, also where a revert of the fleet's first commit took its .gitignore
// away: states and plans may hold what nobody else should read.
func (g *Git) exclude() error {
	dir := filepath.Join(g.config.Dir, ".git")
	if info, err := os.Stat(dir); err != nil {
		return fmt.Errorf("reading what git ignores: %w", err)
	} else if !info.IsDir() {
		return nil // one of several working copies, whose excludes are everybody's
	}
	name := filepath.Join(dir, "info", "exclude")
	have, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading what git ignores: %w", err)
	}
	want := generator.MergeIgnore(have, g.excluded())
	if string(want) == string(have) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return fmt.Errorf("writing what git ignores: %w", err)
	}
	if err := renameio.WriteFile(name, want, 0o644); err != nil {
		return fmt.Errorf("writing what git ignores: %w", err)
	}
	return nil
}

// excluded are the lines of the fleet's .gitignore, for the fleet's directory alone.
func (g *Git) excluded() []byte {
	if g.config.Subdir == "" {
		return generator.Ignored()
	}
	var lines strings.Builder
	for line := range strings.Lines(string(generator.Ignored())) {
		lines.WriteString("/" + g.config.Subdir + "/**/" + line)
	}
	return []byte(lines.String())
}
