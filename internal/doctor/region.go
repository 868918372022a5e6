package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/topology"
)

// soon is the remaining lifetime of a certificate that causes a warning.
const soon = 14 * 24 * time.Hour

// dependent returns the checks of a region that need an answer from Proxmox.
func dependent() []string {
	return []string{"privilege", "host", "topology", "template", "storage", "vmid", "marker"}
}

// region runs the checks of one Proxmox cluster.
func (e *examination) region(ctx context.Context, r *Region) {
	where := string(r.Name)
	if r.Broken != nil {
		e.failed("credential", where, r.Broken)
		e.skipAt(where, "credential", append([]string{"reach"}, dependent()...)...)
		return
	}
	if !e.reach(ctx, r) {
		e.skipAt(where, "reach", dependent()...)
		return
	}
	snapshot, err := r.Snapshot(ctx)
	if err != nil {
		e.failed("host", where, err)
		e.privileges(ctx, r, &topology.Snapshot{})
		e.skipAt(where, "host", dependent()[2:]...)
		return
	}
	e.privileges(ctx, r, snapshot)
	e.cpuModels(ctx, r, snapshot)
	e.hosts(r, snapshot)
	if len(e.config.Classes) == 0 {
		e.templates(r, snapshot)
		e.storages(snapshot)
	}
	e.classStorages(ctx, r, snapshot)
	e.vmids(ctx, r, snapshot)
	e.seen.Regions = append(e.seen.Regions, snapshot.Regions...)
	e.seen.Hosts = append(e.seen.Hosts, snapshot.Hosts...)
}

// reach queries the version, which also checks the certificate and the credential.
func (e *examination) reach(ctx context.Context, r *Region) bool {
	where := string(r.Name)
	version, err := r.Client.Version(ctx)
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &untrusted):
		e.untrusted(ctx, r, err)
		return false
	case err != nil:
		e.failed("reach", where, err)
		return false
	}
	e.ok("reach", where, fmt.Sprintf("Proxmox VE %s knows %s", version, who(r.Client)))
	e.certificate(ctx, r)
	return true
}

func who(client *proxmox.Client) string {
	if id := client.TokenID(); id != "" {
		return "API token " + id
	}
	return "user " + client.User()
}

// untrusted explains how to get the authority of an untrusted certificate.
func (e *examination) untrusted(ctx context.Context, r *Region, err error) {
	finding := Finding{Check: "reach", Status: Fail, Where: string(r.Name)}
	var refused *proxmox.Error
	host := "HOST"
	finding.What = err.Error()
	if errors.As(err, &refused) {
		finding.What = strings.TrimSuffix(finding.What, ": "+refused.Mend)
		finding.Mend = refused.Mend + "; "
		host = hostOf(refused.Endpoint)
	}
	finding.Mend += fmt.Sprintf("get it by `scp root@%s:/etc/pve/pve-root-ca.pem .`", host)
	if shown, err := r.Client.Certificate(ctx); err == nil {
		finding.Mend += fmt.Sprintf("; what answers now shows the certificate with SHA-256 %s, which `pvenode cert info` there must print, too", shown.Fingerprint)
	}
	e.add(finding)
}

// hostOf returns the host of an endpoint such as https://pve-1.example:8006.
func hostOf(endpoint string) string {
	host := strings.TrimPrefix(endpoint, "https://")
	if at := strings.LastIndexByte(host, ':'); at > 0 {
		host = host[:at]
	}
	return strings.TrimSuffix(host, "/")
}

// certificate reports whether the certificate is verified, and when it expires.
func (e *examination) certificate(ctx context.Context, r *Region) {
	finding := Finding{Check: "certificate", Status: OK, Where: string(r.Name)}
	shown, err := r.Client.Certificate(ctx)
	if err != nil {
		e.failed("certificate", finding.Where, err)
		return
	}
	until := shown.Expires.UTC().Format(time.DateOnly)
	switch {
	case r.Insecure:
		finding.Status, finding.What = Warn, fmt.Sprintf("insecure is set: whoever stands between gets the credential; the certificate shown has SHA-256 %s", shown.Fingerprint)
		finding.Mend = "copy /etc/pve/pve-root-ca.pem from a host, set ca_file to it, and take insecure out"
	case shown.Expires.Before(e.config.Clock.Now().Add(soon)):
		finding.Status, finding.What = Warn, "is good only until "+until
		finding.Mend = "renew it on the host: pvecm updatecerts --force"
	default:
		finding.What = "is trusted, and good until " + until
	}
	e.add(finding)
}
