package forge_test

import (
	"testing"

	"github.com/numaform/numaform/internal/forge"
)

func TestFileURLs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind          forge.Kind
		url           string
		content, page string
	}{
		{
			forge.GitHub, "https://github.com/acme/fleet/pull/7",
			"https://github.com/acme/fleet/raw/c0ffee/proposals/web.lab.pve-1.svg?sanitize=true",
			"https://github.com/acme/fleet/blob/c0ffee/proposals/web.lab.pve-1.svg",
		},
		{
			forge.GitLab, "https://git.example/group/sub/fleet/-/merge_requests/7",
			"https://git.example/group/sub/fleet/-/raw/c0ffee/proposals/web.lab.pve-1.svg",
			"https://git.example/group/sub/fleet/-/blob/c0ffee/proposals/web.lab.pve-1.svg",
		},
		{
			forge.Gitea, "http://git.example:3000/below/acme/fleet/pulls/7",
			"http://git.example:3000/below/acme/fleet/raw/commit/c0ffee/proposals/web.lab.pve-1.svg",
			"http://git.example:3000/below/acme/fleet/src/commit/c0ffee/proposals/web.lab.pve-1.svg",
		},
		{forge.GitHub, "https://github.com/acme/fleet/pulls/7", "", ""},
		{forge.GitHub, "javascript:alert(1)//pull/7", "", ""},
		{forge.Gitea, "", "", ""},
		{"", "https://github.com/acme/fleet/pull/7", "", ""},
	} {
		content, page := forge.FileURLs(c.kind, &forge.PullRequest{Number: 7, URL: c.url}, "c0ffee", "proposals/web.lab.pve-1.svg")
		if content != c.content || page != c.page {
			t.Errorf("%s %s: got %s and %s", c.kind, c.url, content, page)
		}
	}
}
