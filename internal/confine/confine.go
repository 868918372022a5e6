// Package confine restricts a child process to the files that it needs, with Landlock if
// the kernel supports it. A program that serves as its own helper calls Main first; a
// parent starts the helper instead of the child, with the variable from Rules.Env. It is
// not a container: the child sees the same processes, users and network. Start at Rules.
package confine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// variable is the environment variable that contains the helper's Rules.
const variable = "NUMAFORM_CONFINE"

// Rules define which files a child may access; Landlock denies access to all others. Paths
// that do not exist, or that this user cannot reach, are skipped.
type Rules struct {
	// Program is the program that the helper executes.
	Program string `json:"program"`
	// Read lists files, and directories with everything below them, that the child may
	// read and execute.
	Read []string `json:"read,omitempty"`
	// Write lists files and directories that the child may also change.
	Write []string `json:"write,omitempty"`
	// Open starts the program without any restriction.
	Open bool `json:"open,omitempty"`
}

// Env returns the variable that makes the helper run the program with the rules.
func (r Rules) Env() (name, value string) {
	content, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings always have a JSON form
	}
	return variable, string(content)
}

// init executes the program before the Kubernetes packages are initialized, because that
// takes more CPU time than everything else that a helper does. Go initializes packages by
// import path after the packages that they import (The Go Programming Language
// Specification, Program initialization), so this package imports only packages that are
// initialized early.
func init() { //nolint:gochecknoinits // later, each command of the engine costs 20 ms of CPU
	if _, helper := os.LookupEnv(variable); helper {
		_ = Main() // it returns only if it fails; main calls it again and reports the error
	}
}

// Main executes the program of the rules if this process was started as a helper. It
// returns only if the process is not a helper, or with an error. On Linux, no child
// inherits files with which this process was started, except the standard ones.
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
		return errors.New("reading " + variable + ": the program is missing")
	}
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, variable+"=") {
			env = append(env, entry)
		}
	}
	return rules.become(append([]string{rules.Program}, os.Args[1:]...), env)
}
