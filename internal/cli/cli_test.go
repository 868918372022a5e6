package cli_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/cli"
)

// TestDetailedExitCodeOfWrongUsage checks that wrong usage is not reported as changes, wherever
// --detailed-exitcode is set.
func TestDetailedExitCodeOfWrongUsage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args, environ string
		want          int
	}{
		{"plan --bogus", "", cli.ExitUsage},
		{"plan --bogus --detailed-exitcode=false", "", cli.ExitUsage},
		{"plan --bogus --detailed-exitcode", "", cli.ExitFailed},
		{"plan --detailed-exitcode=1 --bogus", "", cli.ExitFailed},
		{"plan --detailed-exitcode pods.yaml", "", cli.ExitFailed},
		{"plan --detailed-exitcode", "NUMAFORM_OUTPUT=toml", cli.ExitFailed},
		{"plan --bogus", "NUMAFORM_DETAILED_EXITCODE=true", cli.ExitFailed},
		{"plann --detailed-exitcode", "", cli.ExitFailed},
		{"drift --every 9s --detailed-exitcode", "", cli.ExitFailed},
		{"apply --bogus", "NUMAFORM_DETAILED_EXITCODE=true", cli.ExitUsage},
	} {
		t.Run(tt.args+" "+tt.environ, func(t *testing.T) {
			t.Parallel()
			var stderr bytes.Buffer
			code := cli.Run(t.Context(), cli.Process{
				Args: strings.Fields(tt.args), Environ: strings.Fields(tt.environ), Stdin: strings.NewReader(""), Stdout: &bytes.Buffer{}, Stderr: &stderr,
			})
			if code != tt.want || !strings.Contains(stderr.String(), "--help") {
				t.Errorf("exit code %d, want %d: %s", code, tt.want, &stderr)
			}
		})
	}
}
