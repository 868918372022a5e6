package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/shell"
	"github.com/numaform/numaform/internal/workdir"
)

// secretFiles checks that other users cannot read the files with secrets.
func (e *examination) secretFiles() {
	for _, path := range e.config.SecretFiles {
		if mode, open := openToOthers(path); open {
			command := Command{Line: shell.Line("chmod", "600", path), Safe: true}
			e.add("credential", Warn, path, fmt.Sprintf("is accessible to all users (mode %04o)", mode), command.Line, command)
		}
	}
}

// openToOthers reports whether users other than the owner and the group can access a file.
// Kubernetes makes the files of a Secret readable by a pod's group.
func openToOthers(path string) (fs.FileMode, bool) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, false // another check reports it
	}
	return info.Mode().Perm(), info.Mode().Perm()&0o007 != 0
}

// Repair fixes what is safe to fix on this machine, and returns what it did as commands: it
// creates the state directory, and removes the access of other users to the state
// directory, unless they can write to it, and to files with secrets that users other than
// the owner and the group can access. It changes only files of this user.
func Repair(config Config) (done []string, err error) {
	var failed []error
	chmod := func(path string, mode fs.FileMode) {
		info, err := os.Stat(path)
		if err != nil {
			failed = append(failed, err)
			return
		}
		command := shell.Line("chmod", fmt.Sprintf("%o", mode), path)
		if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != os.Geteuid() {
			failed = append(failed, fmt.Errorf("%s belongs to another user: run %s as its owner", path, command))
			return
		}
		if err := os.Chmod(path, mode); err != nil {
			failed = append(failed, err)
			return
		}
		done = append(done, command)
	}
	if dir := config.StateDir; dir != "" {
		info, err := os.Lstat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := workdir.Private(dir); err != nil {
				failed = append(failed, err)
			} else {
				done = append(done, shell.Line("mkdir", "-m", "700", "-p", dir))
			}
		case err == nil && info.IsDir() && info.Mode().Perm()&0o077 != 0 && info.Mode().Perm()&0o022 == 0:
			chmod(dir, 0o700) // if other users could write to it, its content needs a review first
		}
	}
	for _, path := range config.SecretFiles {
		if _, open := openToOthers(path); open {
			chmod(path, 0o600)
		}
	}
	return done, errors.Join(failed...)
}

// Command is a command that fixes a problem.
type Command struct {
	// Line is the command line for a POSIX shell.
	Line string `json:"line"`
	// OnHost is set if root must run the command on a Proxmox host, and not on this machine.
	OnHost bool `json:"on_host"`
	// Safe is set if the command applies in every case. Otherwise the fix names a condition,
	// or the command deletes something.
	Safe bool `json:"safe"`
}

// onHost returns safe commands for root on a Proxmox host.
func onHost(lines ...string) []Command {
	commands := make([]Command, len(lines))
	for i, line := range lines {
		commands[i] = Command{Line: line, OnHost: true, Safe: true}
	}
	return commands
}

// commandsOf returns the commands in the hint of an error.
func commandsOf(err *proxmox.Error) []Command {
	commands := onHost(err.Commands...)
	for i := range commands {
		commands[i].Safe = !err.Conditional
	}
	return commands
}

// joined returns the commands in one line.
func joined(commands []Command) string {
	lines := make([]string, len(commands))
	for i, command := range commands {
		lines[i] = command.Line
	}
	return strings.Join(lines, " && ")
}

// Commands returns the safe commands of failures and warnings, without duplicates, in the
// order of the findings.
func (r Report) Commands() []Command {
	var commands []Command
	for _, finding := range r {
		if finding.Status != Fail && finding.Status != Warn {
			continue
		}
		for _, command := range finding.Commands {
			if command.Safe && !slices.Contains(commands, command) {
				commands = append(commands, command)
			}
		}
	}
	return commands
}
