package forge

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"k8s.io/utils/clock"
)

// Kind is a kind of forge.
type Kind string

// The supported forges.
const (
	GitHub Kind = "github"
	GitLab Kind = "gitlab"
	// Gitea is also Forgejo.
	Gitea Kind = "gitea"
)

// Kinds returns the supported forges.
func Kinds() []Kind { return []Kind{GitHub, GitLab, Gitea} }

// TokenVariable is the environment variable with the token.
const TokenVariable = "NUMAFORM_FORGE_TOKEN" //nolint:gosec // the name of a variable

// Config selects a repository at a forge.
type Config struct {
	// Remote is the URL of the repository, for https or ssh.
	Remote string
	// Base is the branch of the pull requests.
	Base string
	// Kind is the kind of forge; empty if the host of the remote is known.
	Kind Kind
	// URL is the address of the forge, such as https://git.example.com; empty means https and
	// the host of the remote.
	URL string
	// Token is the token of the forge's API.
	Token string
	// RemoteToken is the token of an https remote, for a forge without a Token at the same
	// address as the remote.
	RemoteToken string
	// CAs are the certificate authorities to trust; nil means the system's.
	CAs *x509.CertPool
	// Clock is the clock for RateLimitError; nil means the real one.
	Clock clock.PassiveClock
}

// known are the hosts whose kind is known.
func known() map[string]Kind {
	return map[string]Kind{"github.com": GitHub, "gitlab.com": GitLab, "gitea.com": Gitea, "codeberg.org": Gitea}
}

// New returns a client of the configured repository. It does no I/O.
func New(config Config) (Client, error) {
	host, path, err := parseRemote(config.Remote)
	if err != nil {
		return nil, err
	}
	kind := cmp.Or(config.Kind, known()[host])
	if kind == "" {
		return nil, fmt.Errorf("fleet.git.forge: the kind of the forge at %s is unknown: set fleet.git.forge.kind to %s", host, kindNames())
	}
	base, err := address(config.URL, host)
	if err != nil {
		return nil, err
	}
	path = strings.TrimPrefix(path, strings.TrimPrefix(base.Path, "/")+"/") // a forge below a path of its host
	path = strings.TrimSuffix(strings.Trim(path, "/"), ".git")
	parts := strings.Split(path, "/")
	if len(parts) < 2 || kind != GitLab && len(parts) != 2 || slices.ContainsFunc(parts, func(p string) bool { return !segment.MatchString(p) }) {
		return nil, fmt.Errorf("fleet.git.remote: %q is not the path of a repository at %s, such as OWNER/NAME", path, base.Host)
	}

	token := config.Token
	if token == "" && base.Host == host && base.Scheme == "https" {
		token = config.RemoteToken
	}
	if token == "" {
		return nil, fmt.Errorf("fleet.git.forge: no token for %s: set the environment variable %s to a token with the rights in docs/pull-requests.md", base.Host, TokenVariable)
	}
	c := connection{name: base.Host + "/" + path, base: config.Base, token: token, clock: config.Clock}
	if c.clock == nil {
		c.clock = clock.RealClock{}
	}
	inner := http.DefaultTransport
	if config.CAs != nil {
		own := http.DefaultTransport.(*http.Transport).Clone()
		own.TLSClientConfig = &tls.Config{RootCAs: config.CAs, MinVersion: tls.VersionTLS12}
		inner = own
	}
	c.http = &http.Client{Transport: &transport{inner: inner}, Timeout: requestTimeout, CheckRedirect: noRedirect}
	switch kind {
	case GitHub:
		return newGitHub(c, base, parts[0], parts[1])
	case GitLab:
		api := base.JoinPath("api", "v4")
		root := *api
		root.Path, root.RawPath = api.Path+"/projects/"+path, api.EscapedPath()+"/projects/"+url.PathEscape(path)
		return &gitLabClient{api: api, rest: rest{connection: c, root: &root, authorization: "PRIVATE-TOKEN", words: words{
			pulls: "merge_requests", update: http.MethodPut, body: "description", closed: [2]string{"state_event", "close"},
			commented: "merge_requests", comments: "notes",
		}}}, nil
	case Gitea:
		root := base.JoinPath("api", "v1", "repos", parts[0], parts[1])
		return &giteaClient{rest{connection: c, root: root, authorization: "Authorization", scheme: "token ", words: words{
			pulls: "pulls", update: http.MethodPatch, body: "body", closed: [2]string{"state", "closed"}, commented: "issues", comments: "comments",
		}}}, nil
	}
	return nil, fmt.Errorf("fleet.git.forge.kind %q: must be %s", kind, kindNames())
}

func kindNames() string {
	names := make([]string, len(Kinds()))
	for i, kind := range Kinds() {
		names[i] = string(kind)
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// segment matches an element of a repository's path.
var segment = regexp.MustCompile(`^[A-Za-z0-9_.][A-Za-z0-9_.-]*$`)

// scp matches an ssh remote without a scheme, such as git@host:owner/name.
var scp = regexp.MustCompile(`^(?:[^@/:\s]+@)?([^@/:\s]+):([^/\s].*)$`)

// parseRemote returns the host, with the port of an http or https URL, and the path of a
// repository.
func parseRemote(remote string) (host, path string, err error) {
	if found := scp.FindStringSubmatch(remote); found != nil && !strings.Contains(remote, "://") {
		return strings.ToLower(found[1]), found[2], nil
	}
	parsed, err := url.Parse(remote)
	if err != nil || parsed.Host == "" {
		return "", "", errors.New("fleet.git.forge: pull requests require a repository at a forge: set fleet.git.remote to its https or ssh URL")
	}
	host = parsed.Hostname() // the port of ssh is not the port of the API
	if parsed.Scheme == "http" || parsed.Scheme == "https" {
		host = parsed.Host
	}
	return strings.ToLower(host), strings.TrimPrefix(parsed.Path, "/"), nil
}

// address returns the address of a forge. The token is sent there, so it must not be in clear
// text, except to this machine.
func address(configured, host string) (*url.URL, error) {
	base, err := url.Parse(strings.TrimSuffix(cmp.Or(configured, "https://"+host), "/"))
	switch {
	case err != nil || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "":
		return nil, errors.New("fleet.git.forge.url: must be the address of the forge without a user, such as https://git.example.com")
	case base.Scheme == "https", base.Scheme == "http" && isLoopback(base.Hostname()):
		base.Host = strings.ToLower(base.Host)
		return base, nil
	}
	return nil, fmt.Errorf("fleet.git.forge.url: the token must not be sent in clear text: set it to https://%s", base.Host)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
