// Package proxmox reads live Proxmox VE clusters into a topology.Snapshot, and
// does the few writes that stand in no plan: seeds, shutdowns of guests, and join
// commands. VMs are made and removed by state. It is the only user of go-proxmox:
// start at New and Snapshot.
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
	// defaultMaxInFlight is how many workers pveproxy has.
	defaultMaxInFlight = 3
	// defaultTimeout lies above the 30 s after which pveproxy gives up on another host.
	defaultTimeout = 40 * time.Second
	// ticketAge is how long a login is used; Proxmox' tickets last two hours.
	ticketAge = time.Hour
	userAgent = "numaform"
)

// Config says how to reach one Proxmox cluster.
type Config struct {
	Region topology.RegionName
	// URL is that of any host of the cluster, with or without /api2/json.
	URL string
	// URLs are those of further hosts, which are asked if it does not answer.
	URLs []string
	// Insecure accepts any certificate.
	Insecure bool
	// CA holds the certificates to trust in PEM, or nothing for the system's.
	CA []byte

	// Either a token or a user with password.
	TokenID, TokenSecret string
	Username, Password   string
	// Reread, if set, is asked for the credential before it is used, for it may have
	// been changed meanwhile.
	Reread func() (Credential, error)

	// Hosts are those that may be used; empty means all. Others are not asked
	// and stand in the Snapshot with a Problem, for their VMIDs are taken.
	Hosts []topology.HostName
	// Machines are what `numaform topology collect` printed on hosts; it wins
	// over what Proxmox reports.
	Machines map[topology.HostName]topology.Machine

	// Timeout is for one request, its time in the queue not counted; 0 means 40 s.
	Timeout time.Duration
	// MaxInFlight is how many requests may run at once; 0 means 3.
	MaxInFlight int
	// Observe is told of every request; nil drops that.
	Observe Observe
	// Now tells the time; nil means time.Now.
	Now func() time.Time
}

// Client reads one Proxmox cluster. It may be used by several goroutines.
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

// New returns a client of the cluster. It does not connect to it.
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

// rootUser is the one user who may set affinity and huge pages.
const rootUser = "root@pam"

// now is the time in whole seconds: what is recorded stays readable.
func (c *Client) now() time.Time {
	if c.cfg.Now != nil {
		return c.cfg.Now().UTC().Truncate(time.Second)
	}
	return time.Now().UTC().Truncate(time.Second)
}

// CanSetAffinity reports whether Proxmox lets this client's credential set the
// affinity of VMs, and why not.
func (c *Client) CanSetAffinity() (bool, string) {
	return c.isRoot("affinity", "pinWith: HostAgent")
}

// CanSetHugePages reports whether Proxmox lets this client's credential back VMs with
// huge pages, and why not.
func (c *Client) CanSetHugePages() (bool, string) {
	return c.isRoot("huge pages", "no placement.hugePages")
}

// isRoot reports whether the client logs in as the one user who may set that, and if
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

// ProviderEnv returns the environment by which the bpg/proxmox provider logs in
// as this client does, read anew; and of several endpoints, that which answered last.
// Its values are secret.
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
	if len(c.cfg.URLs) > 0 { // also if all are one host: then no file names it either
		env["PROXMOX_VE_ENDPOINT"] = c.endpoints.host() + "/"
	}
	return env
}
