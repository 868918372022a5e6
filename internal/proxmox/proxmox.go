// Package proxmox reads live Proxmox VE clusters into a topology.Snapshot, and makes the
// few writes that are in no plan: seeds, shutdowns of guests, and join commands. Package
// state creates and removes VMs. This is the only package that uses go-proxmox: start at
// New and Snapshot.
package proxmox

import (
	"fmt"
	"net/http"
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
	// ticketAge is how long a login is reused; Proxmox' tickets are valid for two hours.
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
	// over Proxmox' reports.
	Machines map[topology.HostName]topology.Machine

	// Timeout is for one request, without its time in the queue; 0 means 40 s.
	Timeout time.Duration
	// MaxInFlight is the number of concurrent requests; 0 means 3.
	MaxInFlight int
	// Observe is called for every request; it may be nil.
	Observe Observe
	// Now returns the time; nil means time.Now.
	Now func() time.Time
}

// Client reads one Proxmox cluster. It is safe for concurrent use.
type Client struct {
	cfg       Config
	endpoints *endpoints
	http      *http.Client

	credentials atomic.Pointer[Credential]

	// mu guards the two fields below.
	mu sync.Mutex
	// api is logged in until expires; a token never expires.
	api     *pve.Client
	expires time.Time
}

// New returns a client of the cluster. It does not connect.
func New(cfg Config) (*Client, error) {
	hosts, err := cfg.check()
	if err != nil {
		return nil, fmt.Errorf("reading region %q of numaform.yaml: %w", cfg.Region, err)
	}
	if cfg.MaxInFlight == 0 {
		cfg.MaxInFlight = defaultMaxInFlight
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	transport, err := newTransport(cfg, hosts)
	if err != nil {
		return nil, fmt.Errorf("reading region %q of numaform.yaml: %w", cfg.Region, err)
	}
	c := &Client{cfg: cfg, endpoints: hosts, http: &http.Client{Transport: transport, CheckRedirect: refuseRedirect}}
	c.credentials.Store(&Credential{cfg.TokenID, cfg.TokenSecret, cfg.Username, cfg.Password})
	return c, nil
}

func (c *Client) newAPI(auth pve.Option) *pve.Client {
	return pve.NewClient(c.endpoints.bases[0], pve.WithHTTPClient(c.http), pve.WithUserAgent(userAgent), auth)
}

// Region returns the name of the client's cluster.
func (c *Client) Region() topology.RegionName { return c.cfg.Region }

// rootUser is the only user who may set affinity and huge pages.
const rootUser = "root@pam"

// now returns the time in whole seconds, which keeps recordings readable.
func (c *Client) now() time.Time {
	if c.cfg.Now != nil {
		return c.cfg.Now().UTC().Truncate(time.Second)
	}
	return time.Now().UTC().Truncate(time.Second)
}

// CanSetAffinity reports whether Proxmox allows this client's credential to set the
// affinity of VMs, and why not.
func (c *Client) CanSetAffinity() (bool, string) {
	return c.isRoot("affinity", "pinWith: HostAgent")
}

// CanSetHugePages reports whether Proxmox allows this client's credential to back VMs
// with huge pages, and why not.
func (c *Client) CanSetHugePages() (bool, string) {
	return c.isRoot("huge pages", "no placement.hugePages")
}

// isRoot reports whether the client logs in as the only user who may set that, and if
// not, what to set in the ProxmoxNodeClass instead.
func (c *Client) isRoot(what, instead string) (bool, string) {
	login := c.credential()
	who := "user " + login.Username
	if login.TokenID != "" {
		who = "API token " + login.TokenID
	}
	if login.TokenID == "" && login.Username == rootUser {
		return true, ""
	}
	return false, fmt.Sprintf("region %s: Proxmox lets only %s with a password set %s, not %s: "+
		"set %s in the ProxmoxNodeClass, or username: %s and its password in numaform.yaml",
		c.cfg.Region, rootUser, what, who, instead, rootUser)
}

// ProviderEnv returns the environment with which the bpg/proxmox provider logs in like
// this client, with the current credential and, of several endpoints, the one that
// responded last. Its values are secret.
func (c *Client) ProviderEnv() map[string]string {
	c.mu.Lock()
	c.renew()
	c.mu.Unlock()
	env, login := map[string]string{}, c.credential()
	if login.TokenID != "" {
		env["PROXMOX_VE_API_TOKEN"] = login.TokenID + "=" + login.TokenSecret
	} else {
		env["PROXMOX_VE_USERNAME"], env["PROXMOX_VE_PASSWORD"] = login.Username, login.Password
	}
	if len(c.cfg.URLs) > 0 { // even if all are the same host: then no file names it either
		env["PROXMOX_VE_ENDPOINT"] = c.endpoints.host() + "/"
	}
	return env
}
