package conformance

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Report is the result of a run. It contains no names from the cluster.
type Report struct {
	// Version is the version of Proxmox VE, and Hosts the number of online hosts.
	Version string `json:"version"`
	Hosts   string `json:"hosts"`
	// AsRoot is set if the run had the root@pam login that some cases require.
	AsRoot  bool     `json:"asRoot"`
	Results []Result `json:"results"`
}

// Count returns the number of cases with the outcome.
func (r *Report) Count(outcome string) int {
	n := 0
	for i := range r.Results {
		if r.Results[i].Outcome == outcome {
			n++
		}
	}
	return n
}

var (
	ipAddress   = regexp.MustCompile(`\b\d{1,3}(?:\.\d{1,3}){3}\b|\b[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){4,7}\b`)
	macAddress  = regexp.MustCompile(`\b[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5}\b`)
	uuidText    = regexp.MustCompile(`\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b`)
	fingerprint = regexp.MustCompile(`\b[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){15,}\b`)
)

// redact replaces, in the details of the results, secrets and names of the cluster: hosts,
// storages, pool, users and addresses.
func (r *Report) redact(from *run) {
	cfg := &from.cfg
	named := map[string]string{cfg.Pool: "{pool}", cfg.Host: "{host}", cfg.Storage: "{storage}", cfg.ISOStorage: "{iso-storage}"}
	_, rest, _ := strings.Cut(cfg.URL, "://")
	address, _, _ := strings.Cut(rest, "/")
	name, _, _ := strings.Cut(address, ":")
	named[address] = "{address}"
	named[name] = "{address}"
	for _, login := range []*Login{&cfg.Login, cfg.Root} {
		if login == nil {
			continue
		}
		named[login.TokenSecret] = "{secret}"
		named[login.Password] = "{secret}"
		named[login.TokenID] = "{token-id}"
		owner, _, _ := strings.Cut(login.TokenID, "!")
		for _, user := range []string{owner, login.Username} {
			if user != "root@pam" {
				named[user] = "{user}"
			}
		}
	}
	for _, name := range []string{"storage", "iso-storage"} {
		named[from.values[name]] = "{" + name + "}"
	}
	for _, name := range from.hosts {
		named[name] = "{host}"
	}
	for _, name := range []string{"host", "other-host"} {
		named[from.values[name]] = "{" + name + "}"
	}
	delete(named, "")
	words := slices.SortedFunc(maps.Keys(named), func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	for i := range r.Results {
		for j, text := range r.Results[i].Detail {
			for _, word := range words {
				// Match only whole words, without a letter or digit next to them. The second pass
				// finds words that share a neighboring character with another match.
				re := regexp.MustCompile(`(?i)(^|[^A-Za-z0-9])` + regexp.QuoteMeta(word) + `($|[^A-Za-z0-9])`)
				for range 2 {
					text = re.ReplaceAllString(text, "${1}"+named[word]+"${2}")
				}
			}
			text = fingerprint.ReplaceAllString(text, "{fingerprint}")
			text = macAddress.ReplaceAllString(text, "{mac}")
			text = uuidText.ReplaceAllString(text, "{uuid}")
			r.Results[i].Detail[j] = ipAddress.ReplaceAllString(text, "{address}")
		}
	}
}

// Markdown writes the report as Markdown, to attach to an issue.
func (r *Report) Markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Conformance of Proxmox VE %s\n\n", r.Version)
	hosts := r.Hosts + " hosts"
	if r.Hosts == "1" {
		hosts = "1 host"
	}
	fmt.Fprintf(&b, "%d equal, %d different, %d failed, %d skipped; %s online, %s.\n",
		r.Count(Equal), r.Count(Different), r.Count(Failed), r.Count(Skipped), hosts, map[bool]string{true: "with root@pam", false: "without root@pam"}[r.AsRoot])
	for _, outcome := range []string{Different, Failed} {
		if r.Count(outcome) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n", map[string]string{Different: "Different", Failed: "Failed"}[outcome])
		for _, result := range r.Results {
			if result.Outcome != outcome {
				continue
			}
			fmt.Fprintf(&b, "\n- **%s/%s** (%s)\n", result.Family, result.Name, result.Source)
			for _, line := range result.Detail {
				fmt.Fprintf(&b, "  - `%s`\n", strings.ReplaceAll(line, "`", "'"))
			}
		}
	}
	b.WriteString("\n## All cases\n\n| family | case | outcome |\n| --- | --- | --- |\n")
	for _, result := range r.Results {
		outcome := result.Outcome
		if outcome == Skipped {
			outcome += ": " + strings.Join(result.Detail, "; ")
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", result.Family, strings.ReplaceAll(result.Name, "|", "\\|"), outcome)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}
