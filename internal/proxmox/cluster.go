package proxmox

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/numaform/numaform/topology"
)

// OldestVersion is the oldest major version of Proxmox VE that numaform supports.
const OldestVersion = 8

// TooOldError reports a version of Proxmox VE that is too old.
type TooOldError struct {
	Region  topology.RegionName
	Version string
}

func (e *TooOldError) Error() string {
	return fmt.Sprintf("region %s runs Proxmox VE %s: numaform requires %d or newer: upgrade its hosts (https://pve.proxmox.com/wiki/Category:Upgrade)",
		e.Region, e.Version, OldestVersion)
}

// Version returns the version of the responding Proxmox VE, together with a *TooOldError
// if numaform does not support it.
func (c *Client) Version(ctx context.Context) (string, error) {
	var answer struct {
		Version string `json:"version"`
	}
	if err := c.get(ctx, "/version", &answer); err != nil {
		return "", err
	}
	return answer.Version, c.checkVersion(answer.Version)
}

// checkVersion refuses a version that is too old. It accepts an empty or unparseable
// version, because reports may lack it.
func (c *Client) checkVersion(text string) error {
	major, _, _ := strings.Cut(text, ".")
	if number, err := strconv.Atoi(major); err == nil && number < OldestVersion {
		return &TooOldError{Region: c.cfg.Region, Version: text}
	}
	return nil
}

// MapsCPUModels reports whether a Proxmox VE of that version requires Mapping.Use on
// /mapping/cpu/NAME for a VM with the custom CPU model NAME. This was added in
// qemu-server 9.1.13, with Proxmox VE 9.2.
func MapsCPUModels(version string) bool {
	var major, minor int
	_, _ = fmt.Sscanf(version, "%d.%d", &major, &minor)
	return major > 9 || major == 9 && minor >= 2
}

// CPUModels returns the CPU models of a Proxmox cluster, as reported by a host. It
// includes the custom ones that the credential may see, with the prefix custom-.
func (c *Client) CPUModels(ctx context.Context, host topology.HostName) ([]string, error) {
	var models []struct {
		Name string `json:"name"`
	}
	if err := c.get(ctx, fmt.Sprintf("/nodes/%s/capabilities/qemu/cpu", host), &models); err != nil {
		return nil, fmt.Errorf("listing the CPU models: %w", err)
	}
	names := make([]string, len(models))
	for i, model := range models {
		names[i] = model.Name
	}
	return names, nil
}

// StorageState is the state of a storage as queried from a host. A Snapshot contains the
// last state seen by pvestatd instead, and omits disabled storages.
type StorageState struct {
	// Enabled is false if the storage is disabled or not assigned to this host.
	Enabled bool
	// Active is false if the host cannot use it, such as an NFS share that does not
	// respond.
	Active bool
	Shared bool
}

// StoragesOf returns all storages of the cluster that the credential may see, by name, as
// the host reports them.
func (c *Client) StoragesOf(ctx context.Context, host topology.HostName) (map[string]StorageState, error) {
	var list []struct {
		Storage                 string
		Enabled, Active, Shared number
	}
	if err := c.get(ctx, fmt.Sprintf("/nodes/%s/storage", host), &list); err != nil {
		return nil, fmt.Errorf("listing storages: %w", err)
	}
	states := map[string]StorageState{}
	for _, s := range list {
		states[s.Storage] = StorageState{Enabled: s.Enabled != 0, Active: s.Active != 0, Shared: s.Shared != 0}
	}
	return states, nil
}

// TagAccess describes the tags that users without Sys.Modify on / may set and remove.
type TagAccess struct {
	// Mode is none, list, existing or free; empty means free.
	Mode string
	// List are the tags for the modes list and existing.
	List []string
	// Registered are tags that only privileged users may set or remove, in any mode.
	Registered []string
	// allowed are the tags that the mode allows, without registered ones.
	allowed []string
}

// TagAccess reads which tags the credential may set. It requires Sys.Audit on /.
func (c *Client) TagAccess(ctx context.Context) (TagAccess, error) {
	var options struct {
		Access struct {
			Mode string   `json:"user-allow"`
			List []string `json:"user-allow-list"`
		} `json:"user-tag-access"`
		Registered []string `json:"registered-tags"`
		Allowed    []string `json:"allowed-tags"`
	}
	if err := c.get(ctx, "/cluster/options", &options); err != nil {
		return TagAccess{}, fmt.Errorf("checking the datacenter's rules for tags: %w", err)
	}
	return TagAccess{Mode: options.Access.Mode, List: options.Access.List, Registered: options.Registered, allowed: options.Allowed}, nil
}

// Free reports whether all unregistered tags are allowed.
func (a TagAccess) Free() bool { return a.Mode == "" || a.Mode == "free" }

// Allows reports whether a tag may be set and removed.
func (a TagAccess) Allows(tag string) bool {
	return !slices.Contains(a.Registered, tag) && (a.Free() || slices.Contains(a.allowed, tag))
}

// Busy reports whether a host is cloning or destroying a guest. It considers the tasks of
// this credential and, if the credential may see them, the tasks of other users.
func (c *Client) Busy(ctx context.Context, host topology.HostName) (bool, error) {
	var tasks []struct {
		Type string `json:"type"`
	}
	err := c.get(ctx, "/nodes/"+string(host)+"/tasks?source=active", &tasks)
	for _, task := range tasks {
		if task.Type == "qmclone" || task.Type == "qmdestroy" {
			return true, err
		}
	}
	return false, err
}

var devicePattern = regexp.MustCompile(`^net\d+$`)

// Firewall is the part of a VM's firewall that clones inherit.
type Firewall struct {
	// On reports whether the VM's firewall is enabled. It applies to network devices with
	// the firewall option.
	On bool
	// Device reports whether one of the VM's network devices has the firewall option.
	Device bool
	// Rules is the number of rules.
	Rules int
}

// FirewallOn reports whether the datacenter's firewall is enabled. If it is not, no guest's
// firewall has an effect.
func (c *Client) FirewallOn(ctx context.Context) (bool, error) {
	var options values
	if err := c.get(ctx, "/cluster/firewall/options", &options); err != nil {
		return false, fmt.Errorf("checking the datacenter's firewall: %w", err)
	}
	return options["enable"] != "" && options["enable"] != "0", nil
}

// FirewallOf reads the firewall of a VM.
func (c *Client) FirewallOf(ctx context.Context, host topology.HostName, vmid int) (Firewall, error) {
	var options, config values
	var rules []values
	path := fmt.Sprintf("/nodes/%s/qemu/%d", host, vmid)
	err := c.get(ctx, path+"/firewall/options", &options)
	if err == nil {
		err = c.get(ctx, path+"/firewall/rules", &rules)
	}
	if err == nil {
		err = c.get(ctx, path+"/config", &config)
	}
	if err != nil {
		return Firewall{}, fmt.Errorf("checking the firewall of VM %d: %w", vmid, err)
	}
	found := Firewall{On: options.is("enable"), Rules: len(rules)}
	for key, device := range config {
		found.Device = found.Device || devicePattern.MatchString(key) && slices.Contains(strings.Split(device, ","), "firewall=1")
	}
	return found, nil
}

// Certificate is a Proxmox host's certificate, trusted or not.
type Certificate struct {
	// Fingerprint is the SHA-256 of the certificate, as `pvenode cert info` prints it.
	Fingerprint string
	Subject     string
	Expires     time.Time
}

// Certificate returns the certificate of the client's host, without trusting it. It sends
// no request.
func (c *Client) Certificate(ctx context.Context) (Certificate, error) {
	endpoint, err := url.Parse(c.transport.endpoint())
	if err != nil {
		return Certificate{}, fmt.Errorf("reading the certificate: %w", err)
	}
	address := endpoint.Host
	if endpoint.Port() == "" {
		address += ":443"
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}} //nolint:gosec // nothing is sent
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return Certificate{}, fmt.Errorf("reading the certificate of %s: %w", address, err)
	}
	defer func() { _ = conn.Close() }()
	secure, ok := conn.(*tls.Conn)
	if !ok || len(secure.ConnectionState().PeerCertificates) == 0 {
		return Certificate{}, fmt.Errorf("reading the certificate of %s: the host sent none: check that url is the address of a Proxmox host", address)
	}
	shown := secure.ConnectionState().PeerCertificates[0]
	sum := sha256.Sum256(shown.Raw)
	pairs := make([]string, len(sum))
	for i, b := range sum {
		pairs[i] = fmt.Sprintf("%02X", b)
	}
	return Certificate{Fingerprint: strings.Join(pairs, ":"), Subject: shown.Subject.String(), Expires: shown.NotAfter}, nil
}
