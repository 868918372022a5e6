// Package proxmox reads live Proxmox VE clusters into a topology.Snapshot, and
// does the few writes that stand in no plan: seeds, shutdowns of guests, and join
// commands. VMs are made and removed by state. It is the only user of go-proxmox:
// start at New and Snapshot.
package proxmox

import (
	"fmt"
	"net/http"
	"sync"
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
	// Insecure accepts any certificate.
	Insecure bool
	// CA holds the certificates to trust in PEM, or nothing for the system's.
	CA []byte

	// Either a token or a user with password.
	TokenID, TokenSecret string
	Username, Password   string

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
}

// Client reads one Proxmox cluster. It may be used by several goroutines.
type Client struct {
	cfg  Config
	base string // ends in /api2/json
	http *http.Client

	// mu guards the two fields below.
	mu sync.Mutex
	// api is logged in until expires; a token never expires.
	api     *pve.Client
	expires time.Time
}

// New returns a client of the cluster. It does not connect to it.
func New(cfg Config) (*Client, error) {
	base, err := cfg.check()
	if err != nil {
		return nil, fmt.Errorf("reading region %q of numaform.yaml: %w", cfg.Region, err)
	}
	if cfg.MaxInFlight == 0 {
		cfg.MaxInFlight = defaultMaxInFlight
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	transport, err := newTransport(cfg)
	if err != nil {
		return nil, fmt.Errorf("reading region %q of numaform.yaml: %w", cfg.Region, err)
	}
	c := &Client{cfg: cfg, base: base, http: &http.Client{Transport: transport, CheckRedirect: refuseRedirect}}
	if cfg.TokenID != "" {
		c.api = c.newAPI(pve.WithAPIToken(cfg.TokenID, cfg.TokenSecret))
	}
	return c, nil
}

func (c *Client) newAPI(auth pve.Option) *pve.Client {
	return pve.NewClient(c.base, pve.WithHTTPClient(c.http), pve.WithUserAgent(userAgent), auth)
}

// Region returns the name of the client's cluster.
func (c *Client) Region() topology.RegionName { return c.cfg.Region }

// rootUser is the one user who may set affinity.
const rootUser = "root@pam"

// CanSetAffinity reports whether Proxmox lets this client's credential set the
// affinity of VMs, and why not.
func (c *Client) CanSetAffinity() (bool, string) {
	who := "user " + c.cfg.Username
	if c.cfg.TokenID != "" {
		who = "API token " + c.cfg.TokenID
	}
	if c.cfg.TokenID == "" && c.cfg.Username == rootUser {
		return true, ""
	}
	return false, fmt.Sprintf("region %s: Proxmox lets only %s with a password set affinity, not %s: "+
		"set pinWith: HostAgent in the ProxmoxNodeClass, or username: %s and its password in numaform.yaml",
		c.cfg.Region, rootUser, who, rootUser)
}

// ProviderEnv returns the environment by which the bpg/proxmox provider logs in
// as this client does. Its values are secret.
func (c *Client) ProviderEnv() map[string]string {
	if c.cfg.TokenID != "" {
		return map[string]string{"PROXMOX_VE_API_TOKEN": c.cfg.TokenID + "=" + c.cfg.TokenSecret}
	}
	return map[string]string{
		"PROXMOX_VE_USERNAME": c.cfg.Username,
		"PROXMOX_VE_PASSWORD": c.cfg.Password,
	}
}
