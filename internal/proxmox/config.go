package proxmox

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/numaform/numaform/topology"
)

// apiPath is the path of Proxmox' API.
const apiPath = "/api2/json"

var (
	tokenIDPattern  = regexp.MustCompile(`^[^\s:/@!=]+@[A-Za-z][A-Za-z0-9._-]+![A-Za-z][A-Za-z0-9._-]*$`)
	userPattern     = regexp.MustCompile(`^[^\s:/@]+@[A-Za-z][A-Za-z0-9._-]*$`)
	hostNamePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$`)
)

// check returns the API's endpoints, or every mistake in the configuration.
func (cfg *Config) check() (*endpoints, error) {
	hosts, err := newEndpoints(cfg)
	errs := []error{err, cfg.checkCredential()}
	if cfg.Region == "" {
		errs = append(errs, errors.New("region: is empty: name the Proxmox cluster"))
	}
	if cfg.Insecure && len(cfg.CA) > 0 {
		errs = append(errs, errors.New("insecure, ca_file: one excludes the other: remove insecure to have the certificate checked"))
	}
	if cfg.Timeout < 0 || cfg.MaxInFlight < 0 {
		errs = append(errs, errors.New("timeout and requests in flight must not be negative"))
	}
	for _, host := range cfg.Hosts {
		if !hostNamePattern.MatchString(string(host)) {
			errs = append(errs, fmt.Errorf("hosts: %q is no name of a Proxmox host: give it as `pvecm nodes` prints it", host))
		}
	}
	return hosts, errors.Join(errs...)
}

func (cfg *Config) checkCredential() error {
	token, user := cfg.TokenID != "" || cfg.TokenSecret != "", cfg.Username != "" || cfg.Password != ""
	switch {
	case token && user:
		return errors.New("token_id, username: both are set: keep one of them")
	case token:
		return cfg.checkToken()
	case user:
		return cfg.checkUser()
	}
	return errors.New("token_id: no credential is set: set token_id and token_secret_file, or username and password_file")
}

func (cfg *Config) checkToken() error {
	if !tokenIDPattern.MatchString(cfg.TokenID) {
		return fmt.Errorf("token_id: %q is not of the form user@realm!name: copy it from `pveum user token list`", cfg.TokenID)
	}
	notPrinted := func(r rune) bool { return r <= ' ' || r > '~' }
	if cfg.TokenSecret == "" || strings.ContainsFunc(cfg.TokenSecret, notPrinted) {
		return errors.New("token_secret: is empty or holds white space: give the UUID that `pveum user token add` printed")
	}
	return nil
}

func (cfg *Config) checkUser() error {
	if !userPattern.MatchString(cfg.Username) {
		return fmt.Errorf("username: %q is not of the form user@realm: write root@pam, say", cfg.Username)
	}
	if cfg.Password == "" || strings.ContainsAny(cfg.Password, "\r\n") {
		return errors.New("password: is empty or has a line break: write it alone on the first line of password_file")
	}
	return nil
}

// apiURL appends the API's path. Its errors do not repeat a URL that may contain a
// password.
func apiURL(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", errors.New("url: cannot be read: want https://HOST:8006")
	}
	if u.User != nil {
		return "", errors.New("url: holds a user name: set username and password_file, or token_id, instead")
	}
	path := strings.TrimRight(u.Path, "/")
	switch {
	case u.Scheme != "https":
		return "", fmt.Errorf("url: %q is not https: want https://HOST:8006", text)
	case u.Host == "" || u.RawQuery != "" || u.Fragment != "":
		return "", fmt.Errorf("url: %q is not an address of Proxmox: want https://HOST:8006", text)
	case path == "":
		path = apiPath
	case !strings.HasSuffix(path, apiPath):
		return "", fmt.Errorf("url: %q has a path that does not end in %s: want https://HOST:8006", text, apiPath)
	}
	return "https://" + u.Host + path, nil
}

// allows reports whether numaform may use the host.
func (cfg *Config) allows(host topology.HostName) bool {
	return len(cfg.Hosts) == 0 || slices.Contains(cfg.Hosts, host)
}
