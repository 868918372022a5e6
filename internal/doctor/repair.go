package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/numaform/numaform/internal/shell"
	"github.com/numaform/numaform/internal/workdir"
)

// secretFiles checks that other users cannot read the files with secrets.
func (e *examination) secretFiles() {
	for _, path := range e.config.SecretFiles {
		if mode, open := openToOthers(path); open {
			e.add("credential", Warn, path, fmt.Sprintf("is accessible to all users (mode %04o)", mode), shell.Line("chmod", "600", path))
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

// Command is a command that fixes a finding.
type Command struct {
	// OnHost is set if root must run it on a Proxmox host, and not on this machine.
	OnHost bool
	Line   string
}

var (
	// hostLine matches a command on a host that changes something.
	hostLine = regexp.MustCompile(`\b(?:pvesh (?:set|create)|pveum [a-z]+(?: [a-z]+)? (?:add|modify)|pvesm (?:set|add)|qm (?:set|template)|pvecm (?:add|updatecerts)) ` +
		`(?:'[^']*'|"[^"]*"|[^'"&;:` + "`" + `])*`)
	// localLine matches a fix that is a command, and quotedLine a command in a sentence.
	localLine  = regexp.MustCompile(`^(?:chmod|scp) \S.*$`)
	quotedLine = regexp.MustCompile("`((?:chmod|scp) [^`]+)`")
	// condition matches the words of a fix that does not apply in every case.
	condition = regexp.MustCompile(`(?:^|[\s(])(?:if|unless|when|once|after) `)
	// expiry matches a command that fixes only expired tokens.
	expiry = regexp.MustCompile(`--expire 0$`)
	// sentence matches the end of a command in a sentence.
	sentence = regexp.MustCompile(`, | \(| or | if |\. |\.$`)
	// placeholder matches a word such as VMID, which a user must replace.
	placeholder = regexp.MustCompile(`(?:^|[\s/])[A-Z]{3,}(?:$|[\s,])|…`)
)

// Commands returns the commands in failures and warnings that change something and apply in
// every case, without duplicates, in the order of the findings. It omits commands with
// placeholders.
func (r Report) Commands() []Command {
	var commands []Command
	known := map[Command]bool{}
	add := func(onHost bool, line string) {
		c := Command{OnHost: onHost, Line: strings.TrimSpace(line)}
		if !known[c] && !placeholder.MatchString(line) {
			known[c] = true
			commands = append(commands, c)
		}
	}
	for _, finding := range r {
		if finding.Status != Fail && finding.Status != Warn {
			continue
		}
		// A condition applies to one part of the fix.
		for part := range slices.Values(append(strings.Split(finding.What, "; "), strings.Split(finding.Fix, "; ")...)) {
			if condition.MatchString(part) {
				continue
			}
			for _, line := range hostLine.FindAllString(part, -1) {
				if end := sentence.FindStringIndex(line); end != nil {
					line = line[:end[0]]
				}
				if line = strings.TrimSpace(line); !expiry.MatchString(line) {
					add(true, line)
				}
			}
		}
		if condition.MatchString(finding.Fix) {
			continue
		}
		if localLine.MatchString(finding.Fix) && !sentence.MatchString(finding.Fix) {
			add(false, finding.Fix)
		}
		for _, match := range quotedLine.FindAllStringSubmatch(finding.Fix, -1) {
			add(false, match[1])
		}
	}
	return commands
}
