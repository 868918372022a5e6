package forge

import (
	"net/url"
	"strconv"
	"strings"
)

// FileURLs returns the address at which a browser gets the content of a file of a commit, for
// an image in the text of a pull request, and the address of the file's page. Both are at
// the public address of the repository that the pull request's own URL has, so the reader's
// session at the forge gives access to a private repository. It returns empty addresses if
// the pull request's URL is not one of that kind of forge.
//
// GitHub serves SVG images as images only with sanitize=true, and proxies images of other
// hosts without the reader's session: github.com/github/markup/issues/556. GitLab resolves
// relative addresses against the default branch, which does not have the file.
func FileURLs(kind Kind, request *PullRequest, commit, file string) (content, page string) {
	number := strconv.Itoa(request.Number)
	suffix := map[Kind]string{GitHub: "/pull/" + number, GitLab: "/-/merge_requests/" + number, Gitea: "/pulls/" + number}[kind]
	at, found := strings.CutSuffix(request.URL, suffix)
	base, err := url.Parse(at)
	if !found || suffix == "" || err != nil || base.Scheme != "https" && base.Scheme != "http" || base.RawQuery != "" {
		return "", ""
	}
	switch kind {
	case GitHub:
		return base.JoinPath("raw", commit, file).String() + "?sanitize=true", base.JoinPath("blob", commit, file).String()
	case GitLab:
		return base.JoinPath("-", "raw", commit, file).String(), base.JoinPath("-", "blob", commit, file).String()
	case Gitea:
		return base.JoinPath("raw", "commit", commit, file).String(), base.JoinPath("src", "commit", commit, file).String()
	}
	return "", ""
}
