package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMistakes checks, with the scripts testdata/mistakes/*.txtar, that the message about
// each mistake of a new user states what is wrong, where, and how to fix it. No engine is
// installed.
func TestMistakes(t *testing.T) {
	commands := map[string]func(*testscript.TestScript, bool, []string){
		"exits": exits, "replace": replace, "simulate": simulate(t), "plaintext": plaintext, "write": write,
	}
	runScriptsIn(t, "mistakes", commands, func(env *testscript.Env) {
		env.Setenv("NEWLINE", "\n")
		env.Setenv("TAB", "\t")
	})
}

// plaintext starts a server without TLS, and configures it as the Proxmox host.
func plaintext(ts *testscript.TestScript, _ bool, _ []string) {
	server := httptest.NewServer(http.NotFoundHandler())
	ts.Defer(server.Close)
	reach(ts, strings.Replace(server.URL, "http:", "https:", 1), nil)
	ts.Setenv("NUMAFORM_CLUSTERS_0_CA_FILE", "")
}

// write writes a line to a file: write FILE TEXT.
func write(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(args[1]+"\n"), 0o600))
}
