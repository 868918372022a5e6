// Package proxmox reads live Proxmox VE clusters into a topology.Snapshot, and makes the
// few writes that no plan contains: seeds, shutdowns of guests, and join commands.
// Package state creates and removes VMs. This is the only package that uses go-proxmox:
// start at New and Snapshot.
package proxmox

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pve "github.com/luthermonson/go-proxmox"

	"github.com/numaform/numaform/topology"
)

const (
	// defaultMaxInFlight is the number of pveproxy's workers.
	defaultMaxInFlight = 3
	// defaultTimeout exceeds the 30 s after which pveproxy gives up on another host.
	defaultTimeout = 40 * time.Second
	// ticketAge is how long a login is reused; Proxmox tickets are valid for two hours.
	ticketAge = time.Hour
	userAgent = "numaform"
)

// Config configures the connection to one Proxmox cluster.
type Config struct {
	Region topology.RegionName
	// URL is the URL of any host of the cluster, with or without /api2/json.
	URL string
	// URLs are the URLs of further hosts, which are tried if the first does not respond.
	URLs []string
	// Insecure accepts any certificate.
	Insecure bool
	// CA contains the certificates to trust in PEM; empty means the system's.
	CA []byte

	// Either a token or a user with a password must be set.
	TokenID, TokenSecret string
	Username, Password   string
	// Reread, if set, returns the current credential, which may have changed. It is
	// called before a credential is used.
	Reread func() (Credential, error)

	// Hosts is the allow list; empty means all. Other hosts are not queried but still
	// appear in the Snapshot, with a Problem, because their VMIDs are in use.
	Hosts []topology.HostName
	// Machines are outputs of `numaform topology collect` on hosts; they take precedence
	// over the reports of Proxmox.
	Machines map[topology.HostName]topology.Machine
	// Addresses makes Snapshot read the addresses of hosts, with one more request for each
	// host.
	Addresses bool

	// Timeout is for one request, without its time in the queue; 0 means 40 s.
	Timeout time.Duration
	// MaxInFlight is the number of concurrent requests; 0 means 3.
	MaxInFlight int
	// Observe is called for every request; it may be nil.
	Observe Observe
	// Now returns the time; nil means time.Now.
	Now func() time.Time
}

// apiPath is the path of the Proxmox API.
const apiPath = "/api2/json"

var (
	tokenIDPattern  = regexp.MustCompile(`^[^\s:/@!=]+@[A-Za-z][A-Za-z0-9._-]+![A-Za-z][A-Za-z0-9._-]*$`)
	userPattern     = regexp.MustCompile(`^[^\s:/@]+@[A-Za-z][A-Za-z0-9._-]*$`)
	hostNamePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$`)
)

// check returns the URLs of the API, without duplicates, or every mistake in the
// configuration.
func (cfg *Config) check() ([]string, error) {
	var urls []string
	var errs []error
	for _, text := range append([]string{cfg.URL}, cfg.URLs...) {
		base, err := apiURL(text)
		errs = append(errs, err)
		if !slices.Contains(urls, base) {
			urls = append(urls, base)
		}
	}
	errs = append(errs, Credential{TokenID: cfg.TokenID, TokenSecret: cfg.TokenSecret, Username: cfg.Username, Password: cfg.Password}.check())
	if cfg.Region == "" {
		errs = append(errs, errors.New("region: is empty: set it to a name for the Proxmox cluster"))
	}
	if cfg.Insecure && len(cfg.CA) > 0 {
		errs = append(errs, errors.New("insecure, ca_file: mutually exclusive: remove insecure to verify the certificate"))
	}
	if cfg.Timeout < 0 || cfg.MaxInFlight < 0 {
		errs = append(errs, errors.New("timeout and requests in flight must not be negative"))
	}
	for _, host := range cfg.Hosts {
		if !hostNamePattern.MatchString(string(host)) {
			errs = append(errs, fmt.Errorf("hosts: %q is not a valid name of a Proxmox host: use a name that `pvesh get /nodes` lists", host))
		}
	}
	return urls, errors.Join(errs...)
}

// apiURL appends the API's path. Its errors do not repeat a URL that may contain a
// password.
func apiURL(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", errors.New("url: is invalid: must be https://HOST:8006")
	}
	if u.User != nil {
		return "", errors.New("url: contains a user name: set username and password_file, or token_id, instead")
	}
	path := strings.TrimRight(u.Path, "/")
	switch {
	case u.Scheme != "https":
		return "", fmt.Errorf("url: %q is not https: must be https://HOST:8006", text)
	case u.Host == "" || u.RawQuery != "" || u.Fragment != "":
		return "", fmt.Errorf("url: %q is not the address of a Proxmox host: must be https://HOST:8006", text)
	case path == "":
		path = apiPath
	case !strings.HasSuffix(path, apiPath):
		return "", fmt.Errorf("url: %q has a path that does not end in %s: must be https://HOST:8006", text, apiPath)
	}
	return "https://" + u.Host + path, nil
}

// Credential is the login of a client: a token, or a user and a password.
type Credential struct {
	TokenID, TokenSecret string
	Username, Password   string
}

func (c Credential) check() error {
	token := c.TokenID != "" || c.TokenSecret != ""
	user := c.Username != "" || c.Password != ""
	switch {
	case token && user:
		return errors.New("token_id, username: both are set: remove one of them")
	case token:
		return c.checkToken()
	case !user:
		return errors.New("token_id: no credential is set: set token_id and token_secret_file, or username and password_file")
	case !userPattern.MatchString(c.Username):
		return fmt.Errorf("username: %q is not of the form user@realm, such as root@pam", c.Username)
	case c.Password == "" || strings.ContainsAny(c.Password, "\r\n"):
		return errors.New("password: is empty or contains a line break: write only the password to password_file")
	}
	return nil
}

// checkToken returns an error for an invalid token, without the secret.
func (c Credential) checkToken() error {
	notPrinted := func(r rune) bool { return r <= ' ' || r > '~' }
	switch {
	case strings.Contains(c.TokenID, "="):
		return errors.New("token_id: contains \"=\" and perhaps the secret: set it to user@realm!name only, and write the part after = to token_secret_file")
	case !tokenIDPattern.MatchString(c.TokenID):
		return fmt.Errorf("token_id: %q is not of the form user@realm!name: copy it from `pveum user token list`", c.TokenID)
	case c.TokenSecret == "" || strings.ContainsFunc(c.TokenSecret, notPrinted):
		return errors.New("token_secret: is empty or contains white space or non-ASCII characters: set it to the UUID that `pveum user token add` printed")
	case strings.ContainsAny(c.TokenSecret, "!=\"'"):
		return errors.New("token_secret: contains the token's ID or quotes: set it to the UUID only, the part after = of user@realm!name=UUID")
	}
	return nil
}

// Client is a client of one Proxmox cluster. It is safe for concurrent use.
type Client struct {
	cfg       Config
	transport *transport
	http      *http.Client

	credentials atomic.Pointer[Credential]
	guests      guestMemory

	// mu guards the fields below.
	mu sync.Mutex
	// loads are the last known loads, by host.
	loads map[topology.HostName]*topology.Load
	// backups are the times at which a guest was last seen being backed up, by host.
	backups map[topology.HostName]time.Time
	// api is logged in until expires; a token never expires.
	api     *pve.Client
	expires time.Time
}

// New returns a client of the cluster. It does not connect.
func New(cfg Config) (*Client, error) {
	urls, err := cfg.check()
	if err != nil {
		return nil, fmt.Errorf("reading region %q of numaform.yaml: %w", cfg.Region, err)
	}
	if cfg.MaxInFlight == 0 {
		cfg.MaxInFlight = defaultMaxInFlight
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	transport, err := newTransport(cfg, urls)
	if err != nil {
		return nil, fmt.Errorf("reading region %q of numaform.yaml: %w", cfg.Region, err)
	}
	c := &Client{
		cfg:       cfg,
		transport: transport,
		http:      &http.Client{Transport: transport, CheckRedirect: refuseRedirect},
		loads:     map[topology.HostName]*topology.Load{},
		backups:   map[topology.HostName]time.Time{},
	}
	c.credentials.Store(&Credential{TokenID: cfg.TokenID, TokenSecret: cfg.TokenSecret, Username: cfg.Username, Password: cfg.Password})
	return c, nil
}

// Region returns the name of the client's cluster.
func (c *Client) Region() topology.RegionName { return c.cfg.Region }

// rootUser is the only user who may set affinity and huge pages, and only with a password.
const rootUser = "root@pam"

// now returns the time in whole seconds, which keeps recordings readable.
func (c *Client) now() time.Time {
	return c.cfg.Now().UTC().Truncate(time.Second)
}

// credential returns the last read credential.
func (c *Client) credential() Credential { return *c.credentials.Load() }

// User returns the user that the client logs in as, or that owns its token.
func (c *Client) User() string {
	credential := c.credential()
	if credential.TokenID == "" {
		return credential.Username
	}
	user, _, _ := strings.Cut(credential.TokenID, "!")
	return user
}

// TokenID returns the ID of the client's token, or "" if it logs in with a password.
func (c *Client) TokenID() string { return c.credential().TokenID }

// CanSetAffinity reports whether Proxmox allows this client's credential to set the
// affinity of VMs, and why not.
func (c *Client) CanSetAffinity() (bool, string) {
	return c.isRoot("affinity", "set pinWith: HostAgent in the ProxmoxNodeClass")
}

// CanSetHugePages reports whether Proxmox allows this client's credential to back VMs
// with huge pages, and why not.
func (c *Client) CanSetHugePages() (bool, string) {
	return c.isRoot("huge pages", "remove placement.hugePages from the ProxmoxNodeClass")
}

// isRoot reports whether the client logs in as root@pam with a password, the only login
// that may set the option described by what. If not, it also returns the reason and two
// alternative fixes: instead, which needs no other login, and logging in as root@pam.
func (c *Client) isRoot(what, instead string) (bool, string) {
	login := c.credential()
	who := "user " + login.Username
	switch {
	case login.TokenID != "":
		who = "API token " + login.TokenID
	case login.Username == rootUser:
		return true, ""
	}
	return false, fmt.Sprintf("in region %s, Proxmox allows only %s with a password to set %s, not %s: "+
		"%s, or set username: %s and its password in numaform.yaml",
		c.cfg.Region, rootUser, what, who, instead, rootUser)
}

// ProviderEnv returns the environment with which the bpg/proxmox provider logs in as this
// client does: with the current credential and, if Config.URLs is set, the endpoint that
// responded last. Its values are secret.
func (c *Client) ProviderEnv() map[string]string {
	c.mu.Lock()
	c.renew()
	c.mu.Unlock()
	env := map[string]string{}
	login := c.credential()
	if login.TokenID != "" {
		env["PROXMOX_VE_API_TOKEN"] = login.TokenID + "=" + login.TokenSecret
	} else {
		env["PROXMOX_VE_USERNAME"] = login.Username
		env["PROXMOX_VE_PASSWORD"] = login.Password
	}
	if len(c.cfg.URLs) > 0 { // even if all URLs are the same: if URLs is set, no HCL file contains a URL
		env["PROXMOX_VE_ENDPOINT"] = c.transport.endpoint() + "/"
	}
	return env
}
