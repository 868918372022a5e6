package hostile_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// The file modes of git.
const (
	modeFile       = "100644"
	modeExecutable = "100755"
	modeLink       = "120000"
	modeModule     = "160000"
)

// file is a file as stored in git: the content of a link is its target, the content of a
// submodule its commit.
type file struct {
	mode    string
	content []byte
}

// files are the files of a fleet by path. A file without a mode is a removed file.
type files map[string]file

// put adds or replaces a regular file.
func (f files) put(name, content string) { f[name] = file{mode: modeFile, content: []byte(content)} }

// program adds or replaces an executable.
func (f files) program(name, content string) {
	f[name] = file{mode: modeExecutable, content: []byte(content)}
}

// link adds or replaces a symbolic link.
func (f files) link(name, target string) { f[name] = file{mode: modeLink, content: []byte(target)} }

// remove removes a file.
func (f files) remove(name string) { f[name] = file{} }

// edit replaces text in a file, which must contain the text.
func (f files) edit(w *world, name, old, replacement string) {
	w.t.Helper()
	have := f[name]
	if !bytes.Contains(have.content, []byte(old)) {
		w.t.Fatalf("%s does not contain %q:\n%s", name, old, have.content)
	}
	f[name] = file{mode: have.mode, content: bytes.ReplaceAll(have.content, []byte(old), []byte(replacement))}
}

// nodes returns the node files, sorted.
func (f files) nodes() []string {
	var names []string
	for name := range f {
		if strings.HasPrefix(name, rootDir+"/node-") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// files returns the files of the fleet as visible to the attacker.
func (w *world) files() files {
	w.t.Helper()
	if w.place == inGit {
		return w.committed()
	}
	found := files{}
	w.must(filepath.WalkDir(w.path("fleet"), func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		relative, err := filepath.Rel(w.path("fleet"), name)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(name)
		found[filepath.ToSlash(relative)] = file{mode: modeFile, content: content}
		return err
	}))
	return found
}

// committed returns the files of the repository's branch.
func (w *world) committed() files {
	w.t.Helper()
	found := files{}
	for line := range strings.SplitSeq(strings.TrimRight(w.git(w.path("remote.git"), nil, "ls-tree", "-rz", "main"), "\x00"), "\x00") {
		about, name, _ := strings.Cut(line, "\t")
		fields := strings.Fields(about)
		found[name] = file{mode: fields[0], content: []byte(w.git(w.path("remote.git"), nil, "cat-file", "blob", fields[2]))}
	}
	return found
}

// attack makes the changes of an attack: it pushes them with git, or writes the files.
func (w *world) attack(before, after files) {
	w.t.Helper()
	changed := files{}
	for name, f := range after {
		if have, exists := before[name]; !exists || have.mode != f.mode || !bytes.Equal(have.content, f.content) {
			changed[name] = f
		}
	}
	if len(changed) == 0 {
		w.t.Fatal("the attack changes no file")
	}
	if w.place == inGit {
		w.push(changed)
		return
	}
	// Remove existing files first: a file may become a directory.
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		w.must(os.RemoveAll(w.path("fleet", filepath.FromSlash(name))))
	}
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		w.write(w.path("fleet")+"/"+name, changed[name])
	}
}

// write writes one file of an attack to the file system.
func (w *world) write(target string, f file) {
	w.t.Helper()
	if f.mode == "" || f.mode == modeModule {
		return
	}
	w.must(os.MkdirAll(path.Dir(target), 0o755))
	if f.mode == modeLink {
		w.must(os.Symlink(string(f.content), target))
		return
	}
	mode := os.FileMode(0o644)
	if f.mode == modeExecutable {
		mode = 0o755
	}
	w.must(os.WriteFile(target, f.content, mode))
}

// push commits the files in the attacker's clone and pushes them.
func (w *world) push(changed files) {
	w.t.Helper()
	clone := filepath.Join(w.t.TempDir(), "eve.git")
	w.git(w.dir, nil, "clone", "--quiet", "--bare", w.path("remote.git"), clone)
	var stream bytes.Buffer
	stream.WriteString("commit refs/heads/main\ncommitter Eve <eve@example.org> 1700000000 +0000\ndata 4\nlook\nfrom refs/heads/main^0\n")
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		f := changed[name]
		switch f.mode {
		case "":
			fmt.Fprintf(&stream, "D %s\n", quoted(name))
		case modeModule:
			fmt.Fprintf(&stream, "M %s %s %s\n", f.mode, f.content, quoted(name))
		default:
			fmt.Fprintf(&stream, "M %s inline %s\ndata %d\n", f.mode, quoted(name), len(f.content))
			stream.Write(f.content)
			stream.WriteString("\n")
		}
	}
	w.git(clone, stream.Bytes(), "fast-import", "--quiet")
	w.git(clone, nil, "push", "--quiet", w.path("remote.git"), "main")
}

// quoted quotes a path as git does.
func quoted(name string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range []byte(name) {
		if c < ' ' || c == '"' || c == '\\' || c > '~' {
			fmt.Fprintf(&b, "\\%03o", c)
			continue
		}
		b.WriteByte(c)
	}
	b.WriteByte('"')
	return b.String()
}

// pushTree pushes a commit whose tree contains a path that git refuses to add.
func (w *world) pushTree(name string) {
	w.t.Helper()
	clone := filepath.Join(w.t.TempDir(), "eve.git")
	w.git(w.dir, nil, "clone", "--quiet", "--bare", w.path("remote.git"), clone)
	object := strings.TrimSpace(w.git(clone, []byte(w.remoteState("tree")), "hash-object", "-w", "--stdin"))
	root := w.git(clone, nil, "ls-tree", "-z", "main")
	entry, parts := "100644 blob ", strings.Split(name, "/")
	for at, part := range slices.Backward(parts) {
		entry += object + "\t" + part + "\x00"
		if at == 0 {
			entry = root + entry
		}
		object = strings.TrimSpace(w.git(clone, []byte(entry), "mktree", "-z"))
		entry = "040000 tree "
	}
	commit := strings.TrimSpace(w.git(clone, nil, "commit-tree", "-p", "main", "-m", "look", object))
	w.git(clone, nil, "push", "--quiet", w.path("remote.git"), commit+":refs/heads/main")
}
