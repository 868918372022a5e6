package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/topology"
)

// expiryWarning is the remaining validity below which a certificate causes a warning.
const expiryWarning = 14 * 24 * time.Hour

// region checks one Proxmox cluster.
func (e *examination) region(ctx context.Context, r *Region) {
	where := string(r.Name)
	ofHosts := []string{"topology", "template", "storage", "vmid", "marker"}
	dependent := append([]string{"privilege", "host"}, ofHosts...)
	if r.Broken != nil {
		e.failed("credential", where, r.Broken)
		e.skip(where, "credential", append([]string{"reach"}, dependent...)...)
		return
	}
	if !e.reach(ctx, r) {
		e.skip(where, "reach", dependent...)
		return
	}
	snapshot, err := r.Snapshot(ctx)
	if err != nil {
		e.failed("host", where, err)
		e.privileges(ctx, r, &topology.Snapshot{})
		e.skip(where, "host", ofHosts...)
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

// reach reads the version, which also checks the credential, and then checks the trust and
// the expiry of the certificate. It returns false if the region cannot be read.
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
	user := "user " + r.Client.User()
	if id := r.Client.TokenID(); id != "" {
		user = "API token " + id
	}
	e.ok("reach", where, fmt.Sprintf("Proxmox VE %s accepts %s", version, user))

	certificate, err := r.Client.Certificate(ctx)
	if err != nil {
		e.failed("certificate", where, err)
		return true
	}
	until := certificate.Expires.UTC().Format(time.DateOnly)
	switch {
	case r.Insecure:
		e.add("certificate", Warn, where,
			"insecure is set, so an attacker on the network can steal the credential; the certificate has SHA-256 "+certificate.Fingerprint,
			"copy /etc/pve/pve-root-ca.pem from a host, set ca_file to the copy, and remove insecure")
	case certificate.Expires.Before(e.config.Clock.Now().Add(expiryWarning)):
		e.add("certificate", Warn, where, "expires on "+until, "renew it on the host: "+proxmox.RenewCertificate+", or pvenode acme cert renew for one from ACME",
			Command{Line: proxmox.RenewCertificate, OnHost: true})
	default:
		e.ok("certificate", where, "is trusted and valid until "+until)
	}
	return true
}

// untrusted reports an untrusted certificate, and how to get the certificate of its authority.
func (e *examination) untrusted(ctx context.Context, r *Region, err error) {
	what, fix, api := err.Error(), "", ""
	var commands []Command
	var refused *proxmox.Error
	if errors.As(err, &refused) {
		commands = commandsOf(refused)
		what = strings.TrimSuffix(what, ": "+refused.Hint)
		fix = refused.Hint
		api = refused.Endpoint
	}
	if errors.As(err, new(x509.UnknownAuthorityError)) {
		command := Command{Line: proxmox.CopyCA(api, "."), Safe: true}
		commands = append(commands, command)
		fix += "; copy it with `" + command.Line + "`"
	}
	if shown, err := r.Client.Certificate(ctx); err == nil {
		fix += fmt.Sprintf("; the server's certificate has SHA-256 %s: compare it with `pvenode cert info` on the host", shown.Fingerprint)
	}
	e.add("reach", Fail, string(r.Name), what, fix, commands...)
}
