package shell_test

import (
	"os/exec"
	"testing"

	"github.com/numaform/numaform/internal/shell"
)

// TestQuote checks that a shell reads each word as the given text.
func TestQuote(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ text, want string }{
		{"", "''"},
		{"/etc/pve/pve-root-ca.pem", "/etc/pve/pve-root-ca.pem"},
		{"my token", "'my token'"},
		{"it's", `'it'\''s'`},
		{"$(reboot)", "'$(reboot)'"},
		{"root@[2001:db8::1]:/x", "'root@[2001:db8::1]:/x'"},
		{"numaform@pve!scaler", "'numaform@pve!scaler'"},
		{"né", "'né'"},
	} {
		word := shell.Quote(test.text)
		if word != test.want {
			t.Errorf("%q is %s, want %s", test.text, word, test.want)
		}
		read, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+word).Output()
		if err != nil || string(read) != test.text {
			t.Errorf("sh reads %s as %q, %v; want %q", word, read, err, test.text)
		}
	}
	if got, want := shell.Quote("a\n\"'\x1b"), `$'a\n\"\'\x1b'`; got != want {
		t.Errorf("control characters: %s, want %s", got, want)
	}
	if got, want := shell.Line("chmod", "600", "my token"), "chmod 600 'my token'"; got != want {
		t.Errorf("line: %s, want %s", got, want)
	}
}
