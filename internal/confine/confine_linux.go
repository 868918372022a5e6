package confine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The rights that apply to files, and the rights on paths that the child may only read.
const (
	ofFiles = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_READ_FILE |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	reading = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
)

// first are the rights of the first Landlock version.
const first = unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1

// Version returns the kernel's version of Landlock, or 0 if it has none.
func Version() int {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(version)
}

// handled returns the rights that a version supports; they are denied unless a rule
// grants them.
func handled(version int) uint64 {
	rights := uint64(first)
	if version >= 2 {
		rights |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if version >= 3 {
		rights |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if version >= 5 {
		rights |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	return rights
}

// keepFiles prevents children from inheriting files that are open now.
func keepFiles() {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return // this process is confined, so its helper has already done this
	}
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}

// become confines this process, unless r.Open is set or the kernel has no Landlock, and
// executes the program. It returns only if it fails.
func (r Rules) become(args, env []string) error {
	// Landlock restricts a thread, and the program runs in the thread that executes it.
	runtime.LockOSThread()
	if !r.Open && Version() > 0 {
		if err := r.enforce(); err != nil {
			return fmt.Errorf("confining %s: %w", r.Program, err)
		}
	}
	if err := syscall.Exec(r.Program, args, env); err != nil { //nolint:gosec // the parent chose it
		return fmt.Errorf("starting %s: %w", r.Program, err)
	}
	return nil
}

func (r Rules) enforce() error {
	rights := handled(Version())
	attribute := unix.LandlockRulesetAttr{Access_fs: rights}
	// The attribute's size differs between versions: the first has only the file rights.
	ruleset, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET,
		uintptr(unsafe.Pointer(&attribute)), unsafe.Sizeof(attribute.Access_fs), 0) //nolint:gosec // the kernel reads it during the call
	if errno != 0 {
		return errno
	}
	fd := int(ruleset)
	defer unix.Close(fd) //nolint:errcheck // exec closes it as well
	for _, path := range append(append([]string{r.Program}, r.Read...), r.Write...) {
		if err := allow(fd, path, reading); err != nil {
			return err
		}
	}
	for _, path := range r.Write {
		if err := allow(fd, path, rights); err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// allow adds a rule for a path. It skips a path that does not exist or that this user
// cannot reach.
func allow(ruleset int, path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening %s: %w", path, err)
	}
	defer unix.Close(fd) //nolint:errcheck // the descriptor is only a reference to the path
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fmt.Errorf("inspecting %s: %w", path, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= ofFiles
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)} //nolint:gosec // a file descriptor
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0) //nolint:gosec // the kernel reads it during the call
	if errno != 0 {
		return fmt.Errorf("allowing %s: %w", path, errno)
	}
	return nil
}
