package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/numaform/numaform/internal/workdir"
)

// roomyMiB is the free space, in MiB, recommended for the engine's working directories, the
// states and the clone of a repository.
const roomyMiB = 512

// stateDir checks the state directory: accessible to this user alone, writable, and with
// free space. If it does not exist yet, the parent directory is checked.
func (e *examination) stateDir() {
	dir := e.config.StateDir
	if dir == "" {
		e.add(Finding{Check: "state", Status: Fail, What: "there is no state directory", Mend: "set state_dir in numaform.yaml, or the variable HOME"})
		return
	}
	existing, what := dir, "is this user's alone"
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		what = "is not there yet: the first apply makes it"
		for errors.Is(err, fs.ErrNotExist) && existing != filepath.Dir(existing) {
			existing = filepath.Dir(existing)
			_, err = os.Lstat(existing)
		}
	} else if err == nil {
		err = workdir.Private(dir)
	}
	if err != nil {
		finding := Finding{Check: "state", Status: Fail, Where: dir, What: err.Error()}
		if wrong, ok := errors.AsType[*workdir.PrivateError](err); ok {
			finding.What, finding.Mend = wrong.Problem, wrong.Hint
		}
		e.add(finding)
		return
	}
	if err := unix.Access(existing, unix.W_OK|unix.X_OK); err != nil {
		e.add(Finding{
			Check: "state", Status: Fail, Where: dir, What: fmt.Sprintf("cannot be written: %s: %v", existing, err),
			Mend: "let the user that numaform runs as write there, or set state_dir in numaform.yaml to another directory",
		})
		return
	}
	if info != nil && info.Mode().Perm()&0o077 != 0 {
		e.add(Finding{
			Check: "state", Status: Warn, Where: dir, What: fmt.Sprintf("can be read by others (mode %04o)", info.Mode().Perm()), Mend: "chmod 700 it",
		})
		return
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(existing, &disk); err == nil {
		free := disk.Bavail * uint64(disk.Bsize) >> 20 //nolint:gosec // a block's size
		what += fmt.Sprintf(", %d MiB are free", free)
		if free < roomyMiB {
			e.add(Finding{
				Check: "state", Status: Warn, Where: dir, What: what,
				Mend: fmt.Sprintf("make room for %d MiB: a state that cannot be written is lost, or set state_dir in numaform.yaml to another disk", roomyMiB),
			})
			return
		}
	}
	e.ok("state", dir, what)
}
