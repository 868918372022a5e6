// Package confine keeps a child process from files that it has no business with, by
// Landlock where the kernel has it. A program that is its own helper calls Main first;
// who starts a child starts the helper instead, with the variable of Rules.Env. It is
// no container: the child sees the same processes, users and network. Start at Rules.
package confine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
)

// variable tells the helper what to run, and with which rules.
const variable = "NUMAFORM_CONFINE"

// program is the main package that calls Main.
const program = "github.com/numaform/numaform/cmd/numaform"

// Rules are what a child may do with files: what they do not name is hidden. Paths that
// do not exist are left out.
type Rules struct {
	// Program is what the helper becomes.
	Program string `json:"program"`
	// Read are files, and directories with all below them, to read and to run.
	Read []string `json:"read,omitempty"`
	// Write are those to change as well.
	Write []string `json:"write,omitempty"`
	// Open starts the program without any rule.
	Open bool `json:"open,omitempty"`
}

// Env returns the variable that makes the helper run the program by the rules.
func (r Rules) Env() (name, value string) {
	content, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings have a JSON form
	}
	return variable, string(content)
}

// Helper returns the path of the helper: of this very program, if it is numaform and the
// kernel can confine; else "".
func Helper() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Path != program || Version() == 0 {
		return ""
	}
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	return path
}

// init becomes the program before the packages of Kubernetes are initialized, which takes
// more CPU time than all else that a helper does: Go initializes packages by import path
// (The Go Programming Language Specification, Program initialization).
func init() { //nolint:gochecknoinits // later, each command of the engine costs 20 ms of CPU
	if _, helper := os.LookupEnv(variable); helper {
		_ = Main() // it returns only if it cannot; main calls it again, and reports why
	}
}

// Main becomes the program of the rules if this process was started as a helper. It
// returns only if it was not, or with the reason why it cannot. Files that this process
// was started with, besides the standard ones, are not passed on to any child.
func Main() error {
	keepFiles()
	text, ok := os.LookupEnv(variable)
	if !ok {
		return nil
	}
	var rules Rules
	if err := json.Unmarshal([]byte(text), &rules); err != nil {
		return fmt.Errorf("reading %s: %w", variable, err)
	}
	if rules.Program == "" {
		return errors.New("reading " + variable + ": it names no program")
	}
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, variable+"=") {
			env = append(env, entry)
		}
	}
	return rules.become(append([]string{rules.Program}, os.Args[1:]...), env)
}
