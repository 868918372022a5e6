package operator_test

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestStateDir(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, text string
		environ    []string
		want       string
	}{
		{"none without a home", minimal, nil, ""},
		{"below the home directory", minimal, []string{"HOME=/home/me"}, "/home/me/.local/state/numaform/prod-"},
		{"below XDG_STATE_HOME", minimal, []string{"HOME=/home/me", "XDG_STATE_HOME=/state"}, "/state/numaform/prod-"},
		{"a relative XDG_STATE_HOME does not count", minimal, []string{"XDG_STATE_HOME=state"}, ""},
		{"as the configuration says", minimal + "state_dir: /srv/state\n", []string{"HOME=/home/me"}, "/srv/state"},
		{"as the variable says", minimal, []string{"NUMAFORM_STATE_DIR=/srv/state"}, "/srv/state"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			config, _, err := load(t, test.text, test.environ...)
			if err != nil {
				t.Fatal(err)
			}
			got, err := config.StatePath("work")
			if test.want == "" {
				if err == nil || !strings.Contains(err.Error(), "set state_dir") {
					t.Errorf("got %q and error %v, want one that names state_dir", got, err)
				}
				return
			}
			if err != nil || !strings.HasPrefix(got, test.want) || filepath.Base(got) != "work" {
				t.Errorf("got %q and error %v, want work below %s", got, err, test.want)
			}
		})
	}
}

func TestStateDirsDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, text := range []string{
		minimal,
		minimal + "fleet: {dir: other}\n",
		minimal + "fleet: {git: {remote: 'https://git.example/fleet.git'}}\n",
		minimal + "fleet: {git: {remote: 'https://git.example/fleet.git', subdir: prod}}\n",
		minimal + "fleet: {configmap: {namespace: numaform, name: fleet}, backend: {type: kubernetes}}\n",
	} {
		config, _, err := load(t, text, "HOME=/home/me")
		if err != nil {
			t.Fatal(err)
		}
		if other, taken := seen[config.StateDir]; taken {
			t.Errorf("%s and %s share %s", other, text, config.StateDir)
		}
		seen[config.StateDir] = text
	}
}
