package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/cli"
)

// examples are the cases in the documentation.
const examples = "../../examples/policy"

// policy runs `numaform policy` and returns its exit code and output.
func policy(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = cli.Run(t.Context(), cli.Process{
		Args: append([]string{"policy"}, args...), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
	})
	return code, out.String(), errs.String()
}

func TestPolicyTestOfTheExamples(t *testing.T) {
	t.Parallel()
	code, out, errs := policy(t, "test", examples)
	if code != cli.ExitOK || errs != "" {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	for _, want := range []string{
		"scale-up.yaml: allowed",
		"scale-down.yaml: allowed",
		"foreign-vm.yaml: denied",
		"[address] proxmox_virtual_environment_vm.database: not a numaform VM",
		"[identity] module.workers-2002.proxmox_virtual_environment_vm.node: ",
		"[replace] module.workers-2001.proxmox_virtual_environment_vm.node: it is tainted",
		"[drained] module.workers-2002.proxmox_virtual_environment_vm.node: VM 2002 cannot be deleted until its Node is drained",
		"over-limit.yaml: needs approval",
		"[limit] 65 creates on host lab/pve-1 within 1 h exceed the limit of 64:",
		"unknown-import.yaml: needs approval",
		"[import] module.workers-2002.proxmox_virtual_environment_vm.node: the import was not requested",
		`[action] module.workers-2001.proxmox_virtual_environment_vm.node: numaform never requests the action "open"`,
		"[pins] module.workers-2001.proxmox_virtual_environment_vm.node: CPUs 5 of host pve-1",
		"[breaker] the last 3 changes",
		"11 cases passed",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("want %q in\n%s", want, out)
		}
	}
}

// write creates a file in a directory of the test.
func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPolicyTestByOtherRules(t *testing.T) {
	t.Parallel()
	strict := write(t, t.TempDir(), "strict.yaml", "rules:\n- name: one-at-a-time\n  when: change.creates > 1\n  decision: deny\n  message: one at a time\n")
	code, out, errs := policy(t, "test", "--policy", "default", "--policy", strict, filepath.Join(examples, "scale-up.yaml"), filepath.Join(examples, "scale-down.yaml"))
	if code != cli.ExitFailed || !strings.Contains(errs, "1 of 2 cases failed") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	for _, want := range []string{
		"FAIL  ../../examples/policy/scale-up.yaml: denied\n        [policy/one-at-a-time] one at a time\n",
		"! expected allowed\n", "! expected rules [], got [policy/one-at-a-time]\n", "ok    ../../examples/policy/scale-down.yaml: allowed\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("want %q in\n%s", want, out)
		}
	}
	code, out, errs = policy(t, "test", "--policy", strict, filepath.Join(examples, "scale-down.yaml"))
	if code != cli.ExitFailed || !strings.Contains(out, "no rule of the policy allows it") {
		t.Errorf("without the shipped rules: exit code %d\n%s%s", code, out, errs)
	}
}

func TestPolicyTestRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plan := write(t, dir, "broken.json", "{")
	for name, tt := range map[string]struct {
		args []string
		code int
		want string
	}{
		"nothing":            {nil, cli.ExitUsage, "missing argument: run numaform policy test"},
		"an unknown flag":    {[]string{"--rules", "x", examples}, cli.ExitUsage, "unknown flag"},
		"no cases":           {[]string{t.TempDir()}, cli.ExitFailed, "no .yaml or .yml file in"},
		"what is not there":  {[]string{filepath.Join(dir, "nope")}, cli.ExitFailed, "nope: no such file or directory: pass case files, or a directory that contains them"},
		"no such policy":     {[]string{"--policy", filepath.Join(dir, "nope.yaml"), examples}, cli.ExitFailed, "reading policy"},
		"the same twice":     {[]string{"--policy", "default", "--policy", "default", examples}, cli.ExitFailed, "is in both"},
		"a broken policy":    {[]string{"--policy", write(t, dir, "p.yaml", "rules: []\n"), examples}, cli.ExitFailed, "p.yaml:1: the file has no rules"},
		"an unknown key":     {[]string{write(t, dir, "a.yaml", "plans: x\n")}, cli.ExitFailed, `a.yaml: unknown field "plans": see examples/policy for the format`},
		"no plan":            {[]string{write(t, dir, "b.yaml", "host: lab/pve-1\nexpect: {decision: allow}\n")}, cli.ExitFailed, "plan is missing"},
		"no host":            {[]string{write(t, dir, "c.yaml", "plan: x\nexpect: {decision: allow}\n")}, cli.ExitFailed, "host is missing"},
		"no expectation":     {[]string{write(t, dir, "d.yaml", "plan: x\nhost: lab/pve-1\n")}, cli.ExitFailed, "expect.decision is missing"},
		"another decision":   {[]string{write(t, dir, "e.yaml", "plan: x\nhost: lab/pve-1\nexpect: {decision: maybe}\n")}, cli.ExitFailed, "use allow, approve or deny"},
		"a plan not there":   {[]string{write(t, dir, "f.yaml", "plan: nope.json\nhost: lab/pve-1\nexpect: {decision: deny}\n")}, cli.ExitFailed, "checking"},
		"a plan that is not": {[]string{write(t, dir, "g.yaml", "plan: "+plan+"\nhost: lab/pve-1\nexpect: {decision: deny}\n")}, cli.ExitFailed, "reading plan"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, out, errs := policy(t, append([]string{"test"}, tt.args...)...)
			if code != tt.code || !strings.Contains(errs, tt.want) {
				t.Errorf("exit code %d, want %d with %q\n%s%s", code, tt.code, tt.want, out, errs)
			}
		})
	}
}

// TestPolicyTestComparesAll checks that the expected decision by another rule, or about
// another resource, does not pass a case.
func TestPolicyTestComparesAll(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(examples, "undrained.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	plan, err := filepath.Abs(filepath.Join(examples, "plans", "scale-down.json"))
	if err != nil {
		t.Fatal(err)
	}
	original := strings.Replace(string(text), "plans/scale-down.json", plan, 1)
	for name, tt := range map[string]struct{ from, to, want string }{
		"as it is":         {"", "", "1 cases passed"},
		"another rule":     {"  - drained\n", "  - identity\n", "! expected rules [identity], got [drained]"},
		"another address":  {"addresses:\n  - module.workers-2002", "addresses:\n  - module.workers-2003", "! expected addresses [module.workers-2003."},
		"another decision": {"decision: deny", "decision: approve", "! expected needs approval"},
		"other limits":     {"expect:", "limits:\n  per_change:\n    deletes: 0\nexpect:", "! expected rules [drained], got [drained, limit]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changed := strings.Replace(original, tt.from, tt.to, 1)
			if changed == original && tt.from != "" {
				t.Fatalf("the case has no %q", tt.from)
			}
			_, out, errs := policy(t, "test", write(t, t.TempDir(), "case.yaml", changed))
			if !strings.Contains(out, tt.want) {
				t.Errorf("want %q in\n%s%s", tt.want, out, errs)
			}
		})
	}
}

// TestPolicyShow checks that the output is a valid policy.
func TestPolicyShow(t *testing.T) {
	t.Parallel()
	code, out, errs := policy(t, "show")
	if code != cli.ExitOK || !strings.Contains(out, "name: ordinary-scaling") || !strings.Contains(out, "#   per_host:\n#     creates: 64\n") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	shown := write(t, t.TempDir(), "shown.yaml", out)
	if code, out, errs := policy(t, "test", "--policy", shown, examples); code != cli.ExitOK {
		t.Errorf("with the printed policy: exit code %d\n%s%s", code, out, errs)
	}
	if code, _, errs := policy(t, "nope"); code != cli.ExitUsage || !strings.Contains(errs, "nope") {
		t.Errorf("an unknown command: exit code %d, %s", code, errs)
	}
}

// TestPolicyTestOfLargeFiles checks that files over the size limits of policies, cases and
// plans are refused.
func TestPolicyTestOfLargeFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	large := func(name string, size int64) string {
		t.Helper()
		path := write(t, dir, name, "")
		if err := os.Truncate(path, size); err != nil { // the file is sparse
			t.Fatal(err)
		}
		return path
	}
	tooLarge, plan := large("large.yaml", 1<<20+1), large("plan.json", 256<<20+1)
	ofPlan := write(t, dir, "case.yaml", "plan: plan.json\nhost: lab/pve-1\nexpect: {decision: allow}\n")
	for want, args := range map[string][]string{
		"reading case: " + tooLarge + " has more than 1048576 bytes":   {"test", tooLarge},
		"reading policy: " + tooLarge + " has more than 1048576 bytes": {"test", "--policy", tooLarge, examples},
		plan + " has more than 268435456 bytes":                        {"test", ofPlan},
	} {
		if code, _, errs := policy(t, args...); code != cli.ExitFailed || !strings.Contains(errs, want) {
			t.Errorf("exit code %d, %q, want %q", code, errs, want)
		}
	}
}
