package faults_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// shimName is the file name of the shim, which numaform runs as its engine. The file
// shimName.json contains its shimConfig.
const shimName = "tofu"

// shimConfig contains the path of the real engine and the address of the test. They are in
// a file because numaform sets the environment of the engine.
type shimConfig struct {
	Engine  string `json:"engine"`
	Address string `json:"address"`
	// Kept is the directory for copies of plans that are about to be applied.
	Kept string `json:"kept"`
}

// visit is the message that the shim sends before it runs the engine and, if the test
// requests it, after the engine ended. The test responds with a line.
type visit struct {
	Command string `json:"command"`
	Ended   bool   `json:"ended"`
	// Plan is the hash of the plan to apply.
	Plan string `json:"plan,omitempty"`
}

// The responses to a visit.
const (
	answerGo   = "go"
	answerStay = "stay" // run the engine as a child, and visit again when it ends
)

// shim runs the real engine after the test allows it.
func shim() int {
	code, err := runShim()
	if err != nil {
		fmt.Fprintln(os.Stderr, "engine shim:", err)
		return 1
	}
	return code
}

func runShim() (int, error) {
	content, err := os.ReadFile(os.Args[0] + ".json")
	if err != nil {
		return 0, err
	}
	var config shimConfig
	if err := json.Unmarshal(content, &config); err != nil {
		return 0, err
	}
	command := os.Args[1]
	if command == "version" {
		return 0, become(config.Engine)
	}
	v := visit{Command: command}
	if v.Plan, err = keepPlan(config.Kept); err != nil {
		return 0, err
	}
	answer, err := call(config.Address, v)
	if err != nil {
		return 0, err
	}
	if answer != answerStay {
		return 0, become(config.Engine)
	}
	engine := exec.Command(config.Engine, os.Args[1:]...)
	engine.Stdin, engine.Stdout, engine.Stderr = os.Stdin, os.Stdout, os.Stderr
	failed := engine.Run()
	if engine.ProcessState == nil {
		return 0, failed
	}
	v.Ended = true
	if _, err := call(config.Address, v); err != nil {
		return 0, err
	}
	return engine.ProcessState.ExitCode(), nil
}

// become replaces this process with the engine, which keeps the process ID and the
// parent-death signal.
func become(engine string) error {
	return syscall.Exec(engine, slices.Concat([]string{engine}, os.Args[1:]), os.Environ())
}

// keepPlan copies the plan named in the arguments and returns its hash.
func keepPlan(kept string) (string, error) {
	if os.Args[1] != "apply" {
		return "", nil
	}
	at := slices.IndexFunc(os.Args, func(arg string) bool { return strings.HasSuffix(arg, ".tfplan") })
	if at < 0 {
		return "", fmt.Errorf("apply without a plan: %q", os.Args)
	}
	content, err := os.ReadFile(os.Args[at])
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(content)
	hash := hex.EncodeToString(sum[:])
	return hash, os.WriteFile(filepath.Join(kept, hash+".tfplan"), content, 0o600)
}

// call sends a visit to the test and returns the response.
func call(address string, v visit) (string, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close() //nolint:errcheck // the exchange is complete
	if err := json.NewEncoder(conn).Encode(v); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}
