package generator

import (
	"crypto/sha256"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// maxStateName is the maximum length of a Kubernetes label value and of a PostgreSQL
// schema name.
const maxStateName = 63

// statePlaceholder is replaced by the root's state name in a backend setting.
const statePlaceholder = "{state}"

var notSlug = regexp.MustCompile(`[^a-z0-9]+`)

// StateName returns the name of a host's state. It is readable, unique for each cluster,
// region and host, has at most 63 characters, begins and ends with a letter (Terraform
// rejects a kubernetes secret_suffix that ends in "-1") and is a valid label value.
func StateName(clusterID string, host topology.HostID) string {
	sum := sha256.Sum256([]byte(clusterID + "\x00" + string(host.Region) + "\x00" + string(host.Host)))
	suffix := make([]byte, 0, 12)
	for _, b := range sum[:6] {
		suffix = append(suffix, 'a'+b>>4, 'a'+b&15)
	}
	slug := "numaform-" + notSlug.ReplaceAllString(strings.ToLower(clusterID+"-"+host.String()), "-")
	slug = slug[:min(len(slug), maxStateName-1-len(suffix))]
	return strings.TrimRight(slug, "-") + "-" + string(suffix)
}

// perRoot maps backend types to functions that set the settings of one root: the settings that
// identify its state, from the user's value and the state's name, and the settings that enable
// locking.
var perRoot = map[string]func(config map[string]string, state string){
	"azurerm": func(c map[string]string, state string) { c["key"] = join(c["key"], state, ".tfstate") },
	"consul":  func(c map[string]string, state string) { c["path"] = join(c["path"], state, "") },
	"gcs":     func(c map[string]string, state string) { c["prefix"] = join(c["prefix"], state, "") },
	"http": func(c map[string]string, state string) {
		c["address"] = join(c["address"], state, "")
		// Without a lock_address the http backend does not lock at all.
		for _, name := range []string{"lock_address", "unlock_address"} {
			if c[name] == "" {
				c[name] = c["address"]
				continue
			}
			c[name] = join(c[name], state, "")
		}
	},
	"kubernetes": func(c map[string]string, state string) { c["secret_suffix"] = state },
	"local": func(c map[string]string, state string) {
		if c["path"] != "" {
			c["path"] = join(c["path"], state, ".tfstate")
		}
	},
	"pg": func(c map[string]string, state string) { c["schema_name"] = state },
	"s3": func(c map[string]string, state string) {
		c["key"] = join(c["key"], state, ".tfstate")
		if c["dynamodb_table"] == "" && c["use_lockfile"] == "" {
			c["use_lockfile"] = "true"
		}
	},
}

// madePerRoot lists the settings whose value is only the state's name, by backend type.
var madePerRoot = map[string]string{"kubernetes": "secret_suffix", "pg": "schema_name"}

// join replaces the placeholder in base with the state's name, or appends the name if
// base has no placeholder.
func join(base, state, suffix string) string {
	switch {
	case strings.Contains(base, statePlaceholder):
		return strings.ReplaceAll(base, statePlaceholder, state)
	case base == "":
		return state + suffix
	default:
		return strings.TrimRight(base, "/") + "/" + state + suffix
	}
}

// backendSettings returns the backend settings of one root.
func backendSettings(backend fleet.Backend, state string) map[string]string {
	settings := map[string]string{}
	maps.Copy(settings, backend.Config)
	if set, ok := perRoot[backend.Type]; ok {
		set(settings, state)
	}
	for name, value := range settings {
		settings[name] = strings.ReplaceAll(value, statePlaceholder, state)
	}
	return settings
}

// credentials maps the settings that must be set in the environment to their variables,
// because a fleet's files may be in git.
var credentials = map[string]string{ //nolint:gosec // names of settings and variables
	"azurerm.access_key":                  "ARM_ACCESS_KEY",
	"azurerm.sas_token":                   "ARM_SAS_TOKEN",
	"azurerm.client_secret":               "ARM_CLIENT_SECRET",
	"azurerm.client_certificate":          "ARM_CLIENT_CERTIFICATE",
	"azurerm.client_certificate_password": "ARM_CLIENT_CERTIFICATE_PASSWORD",
	"azurerm.oidc_token":                  "ARM_OIDC_TOKEN",
	"azurerm.oidc_request_token":          "ARM_OIDC_REQUEST_TOKEN",
	"consul.access_token":                 "CONSUL_HTTP_TOKEN",
	"consul.http_auth":                    "CONSUL_HTTP_AUTH",
	"gcs.credentials":                     "GOOGLE_CREDENTIALS",
	"gcs.access_token":                    "GOOGLE_OAUTH_ACCESS_TOKEN",
	"gcs.encryption_key":                  "GOOGLE_ENCRYPTION_KEY",
	"http.username":                       "TF_HTTP_USERNAME",
	"http.password":                       "TF_HTTP_PASSWORD",
	"http.client_private_key_pem":         "TF_HTTP_CLIENT_PRIVATE_KEY_PEM",
	"kubernetes.username":                 "KUBE_USER",
	"kubernetes.password":                 "KUBE_PASSWORD",
	"kubernetes.token":                    "KUBE_TOKEN",
	"kubernetes.client_key":               "KUBE_CLIENT_KEY_DATA",
	"pg.conn_str":                         "PG_CONN_STR",
	"s3.access_key":                       "AWS_ACCESS_KEY_ID",
	"s3.secret_key":                       "AWS_SECRET_ACCESS_KEY",
	"s3.token":                            "AWS_SESSION_TOKEN",
	"s3.sse_customer_key":                 "AWS_SSE_CUSTOMER_KEY",
}

// looksSecret matches names of settings that are probably credentials, for settings that
// are not in credentials.
var looksSecret = regexp.MustCompile(`password|passwd|secret|token|credential|private_key|access_key|conn_str`)

// notSecret lists settings that match looksSecret but are not credentials.
var notSecret = map[string]bool{
	"token_endpoint": true, "oidc_token_file_path": true,
	"web_identity_token_file": true, "skip_credentials_validation": true,
}

var backendWord = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// backend checks the settings of the backend, and that no two roots share a state.
func (c *checker) backend(backend fleet.Backend) {
	if backend.Type == "" && len(backend.Config) == 0 {
		return
	}
	c.match("fleet.backend.type", backend.Type, backendWord, "must be a Terraform backend, such as kubernetes, s3, pg, http or local")

	placeholder := false
	for _, name := range slices.Sorted(maps.Keys(backend.Config)) {
		value := backend.Config[name]
		placeholder = placeholder || strings.Contains(value, statePlaceholder)
		field := "fleet.backend.config." + name
		variable := credentials[backend.Type+"."+name]
		c.match("fleet.backend.config", name, backendWord, "must have characters a-z, 0-9 and _ only, and begin with a letter")
		c.require(madePerRoot[backend.Type] != name, field, "is set by numaform for each host: remove it")
		c.require(variable == "", field, "is a credential, and the files of a fleet may be in git: "+
			"remove it and set the environment variable %s", variable)
		c.require(!looksSecret.MatchString(name) || notSecret[name], field, "looks like a credential, and the files of a fleet may be in git: "+
			"remove it and use the backend's environment variable")
		c.require(!hasUserinfo(value), field, "is a URL with a user or password: "+
			"remove them and use the backend's environment variables")
		c.text(field, value)
	}

	c.valid(backend.Type != "http" || backend.Config["address"] != "", "fleet.backend.config.address", "",
		"set it to the URL below which each host has its state")
	c.valid(perRoot[backend.Type] != nil || placeholder, "fleet.backend.type", backend.Type,
		"numaform cannot determine which of its settings names the state: "+
			"write "+statePlaceholder+" into that setting; numaform replaces it with the name of each host's state")
}

// hasUserinfo reports whether value is a URL that contains a user name, or an invalid URL
// that may contain one.
func hasUserinfo(value string) bool {
	parsed, err := url.Parse(value)
	if err != nil {
		scheme, rest, found := strings.Cut(value, "://")
		return found && scheme != "" && strings.Contains(rest, "@")
	}
	return parsed.Host != "" && parsed.User != nil
}
