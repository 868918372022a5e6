package bootstrap_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/bootstrap"
)

func TestUsesBootstrapToken(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"token: {{ .Kubernetes.BootstrapToken }}":                                           true,
		"{{ printf \"K10%s\" .Kubernetes.BootstrapToken | toJson }}":                        true,
		"{{ if eq 1 2 }}{{ else }}{{ $.Kubernetes.BootstrapToken }}{{ end }}":               true,
		"{{ with .Kubernetes }}{{ .BootstrapToken }}{{ end }}":                              true,
		"{{ $k := .Kubernetes }}{{ range .Metadata.Tags }}{{ $k.BootstrapToken }}{{ end }}": true,
		"{{ (.Kubernetes).BootstrapToken }}":                                                true,
		"{{ if .Kubernetes.BootstrapToken }}x{{ end }}":                                     true,
		"{{ define \"a\" }}{{ .BootstrapToken }}{{ end }}{{ template \"a\" .Kubernetes }}":  true,
		"{{ template \"a\" .Kubernetes.BootstrapToken }}{{ define \"a\" }}{{ end }}":        true,
		"{{ index .Kubernetes \"BootstrapToken\" }}":                                        true,
		"token: {{ .Kubernetes.Token }}":                                                    false,
		"{{ bootstrapKubeconfig .Kubernetes }}":                                             false,
		"BootstrapToken {{/* .Kubernetes.BootstrapToken */}}":                               false,
		"{{ .Kubernetes.BootstrapToken":                                                     false,
	} {
		templates := bootstrap.Defaults()
		templates[bootstrap.VendorData] = text
		if got := bootstrap.UsesBootstrapToken(templates); slices.Contains(got, bootstrap.VendorData) != want || len(got) > 1 {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
	all := strings.Repeat("{{ .Kubernetes.BootstrapToken }}", 2)
	got := bootstrap.UsesBootstrapToken(bootstrap.Templates{bootstrap.UserData: all, bootstrap.MetaData: all, bootstrap.NetworkConfig: all, bootstrap.VendorData: all, bootstrap.JoinCommand: all})
	if len(got) != 5 {
		t.Errorf("documents %v, want all five", got)
	}
}
