package operator

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/modules"
)

// maxModuleFile limits the size of a file of custom modules.
const maxModuleFile = 1 << 20

// release returns the modules that node files may call: numaform's own, and the ones that
// the configuration allows.
func (c *Config) release() (generator.Release, error) {
	release := generator.Current()
	if len(c.Modules.Allow) > 0 {
		release.Allowed = map[string]map[string][]byte{}
	}
	for _, hash := range slices.Sorted(maps.Keys(c.Modules.Allow)) {
		dir := c.Modules.Allow[hash]
		files, err := readModules(dir)
		if err != nil {
			return generator.Release{}, fmt.Errorf("reading modules.allow.%s: %w", hash, err)
		}
		if got := modules.HashOf(files); got != hash {
			return generator.Release{}, fmt.Errorf("reading modules.allow.%s: the content of %s has hash %s: review the changes, then set that hash", hash, dir, got)
		}
		release.Allowed[hash] = files
	}
	return release, nil
}

// readModules reads the .tf files of the modules in a directory.
func readModules(dir string) (files map[string][]byte, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	files = map[string][]byte{}
	for _, module := range modules.Names() {
		entries, err := fs.ReadDir(root.FS(), module)
		if err != nil {
			return nil, fmt.Errorf("%w: copy modules/%s of numaform's source into %s", err, module, dir)
		}
		for _, entry := range entries {
			name := path.Join(module, entry.Name())
			if !entry.Type().IsRegular() || !strings.HasSuffix(name, ".tf") {
				return nil, fmt.Errorf("%s/%s is not a regular .tf file: remove it", dir, name)
			}
			file, err := root.Open(name)
			if err != nil {
				return nil, err
			}
			files[name], err = io.ReadAll(io.LimitReader(file, maxModuleFile+1))
			if err = errors.Join(err, file.Close()); err != nil {
				return nil, err
			}
			if len(files[name]) > maxModuleFile {
				return nil, fmt.Errorf("%s/%s is larger than %d bytes: split it", dir, name, maxModuleFile)
			}
		}
	}
	return files, nil
}
