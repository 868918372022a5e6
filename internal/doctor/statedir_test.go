package doctor_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/numaform/numaform/internal/doctor"
)

// TestStateDir checks the findings about state directories that are private, shared,
// missing or unusable.
func TestStateDir(t *testing.T) {
	t.Parallel()
	type test struct {
		name   string
		make   func(dir string) error
		status doctor.Status
		want   []string
	}
	tests := []test{
		{"private", func(dir string) error { return os.Mkdir(dir, 0o700) }, doctor.OK, []string{"is accessible only to this user", "MiB free"}},
		{"not there", func(string) error { return nil }, doctor.OK, []string{"does not exist yet: the first apply creates it"}},
		{"for all to read", func(dir string) error { return os.Mkdir(dir, 0o755) }, doctor.Warn, []string{"is readable by other users (mode 0755)", "chmod 700 "}},
		{"for all to write", func(dir string) error { return writable(dir) }, doctor.Fail, []string{"is writable by other users (mode 0777)", "run chmod 700 /"}},
		{"a file", func(dir string) error { return os.WriteFile(dir, nil, 0o600) }, doctor.Fail, []string{"is not a directory", "remove the file"}},
		{"a link", func(dir string) error { return os.Symlink(os.TempDir(), dir) }, doctor.Fail, []string{"is a symbolic link"}},
		{"in a checkout", func(dir string) error { return os.MkdirAll(filepath.Join(dir, ".git"), 0o700) }, doctor.Fail, []string{"is inside the git checkout"}},
		{"below a file", func(dir string) error { return os.WriteFile(filepath.Dir(dir), nil, 0o600) }, doctor.Fail, []string{"state"}},
	}
	if os.Geteuid() == 0 { // only root may change the owner of a directory
		tests = append(tests, test{"of another", others, doctor.Fail, []string{"is owned by user 12345", "set state_dir"}})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "parent", "state")
			if tt.name != "below a file" {
				if err := os.Mkdir(filepath.Dir(dir), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := tt.make(dir); err != nil {
				t.Fatal(err)
			}
			report := examine(t, func(p *patient) { p.StateDir = dir })
			wants(t, report, tt.status, "state", append(tt.want, dir)...)
		})
	}
	wants(t, examine(t, func(p *patient) { p.StateDir = "" }), doctor.Fail, "state", "no state directory is configured", "set state_dir")
}

func writable(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return os.Chmod(dir, 0o777)
}

func others(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return os.Chown(dir, 12345, 12345)
}
