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

// shimName is what the shim is called: numaform takes it for the engine. Beside it
// lies shimName.json, a shimConfig.
const shimName = "tofu"

// shimConfig tells the shim which engine is the real one, and where the test
// listens. The engine's environment is numaform's, so it has no room for this.
type shimConfig struct {
	Engine  string `json:"engine"`
	Address string `json:"address"`
	// Kept is where plans are kept that are about to be applied.
	Kept string `json:"kept"`
}

// visit is what the shim says before it becomes the engine, and after the engine
// has ended if the test asked for that. The test answers with a line.
type visit struct {
	Command string `json:"command"`
	Ended   bool   `json:"ended"`
	// Plan is the hash of the plan that is applied.
	Plan string `json:"plan,omitempty"`
}

// The answers to a visit.
const (
	answerGo   = "go"
	answerStay = "stay" // run the engine as a child, and come back when it has ended
)

// shim runs the real engine after the test lets it.
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

// become turns this process into the engine: its number stays, and so does what
// numaform and the kernel agreed on about its death.
func become(engine string) error {
	return syscall.Exec(engine, slices.Concat([]string{engine}, os.Args[1:]), os.Environ())
}

// keepPlan copies the plan that the arguments name and returns its hash.
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

// call says something to the test and returns its answer.
func call(address string, v visit) (string, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close() //nolint:errcheck // everything was said
	if err := json.NewEncoder(conn).Encode(v); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}
