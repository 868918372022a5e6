package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/numaform/numaform/internal/conformance"
	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/topology"
)

// requestTimeout limits one request of conformance. A host's report can take a long
// time.
const requestTimeout = 2 * time.Minute

// conformanceOptions are the flags of conformance.
type conformanceOptions struct {
	config, region, vmids, only, report, rootPasswordFile string
	list                                                  bool
	run                                                   conformance.Config
}

func newConformance(process Process) *cobra.Command {
	var o conformanceOptions
	command := &cobra.Command{
		Use:   "conformance",
		Short: "Compare the behavior of a Proxmox VE cluster with numaform's assumptions",
		Long: "Send requests to a Proxmox VE cluster and compare the responses with the cases on which numaform's\n" +
			"simulator and tests are based. The command creates VMs in one pool and one range of VMIDs, and removes\n" +
			"them, even when interrupted. It creates users, tokens and roles only with the password of root@pam;\n" +
			"the names of the users and roles begin with numaform-kit. The report contains no secrets, addresses or names of the cluster.\n" +
			"The exit code is 0 if the responses matched in all cases that ran, 2 for wrong usage, and 1 otherwise.",
		RunE: func(command *cobra.Command, _ []string) error { return o.compare(command.Context(), process) },
	}
	flags := command.Flags()
	registerConfig(flags, &o.config)
	flags.StringVar(&o.region, "region", "", "region of the configuration; required if the configuration has several")
	flags.StringVar(&o.run.Pool, "pool", "", "existing resource pool for the VMs (required)")
	flags.StringVar(&o.vmids, "vmids", "", "unused range of at least 7 VMIDs, such as 9000-9019 (required)")
	flags.IntVar(&o.run.Template, "template", 0, "VMID of a template to clone (required)")
	flags.StringVar(&o.run.Storage, "storage", "", "storage for disks; empty means the first suitable one")
	flags.StringVar(&o.run.ISOStorage, "iso-storage", "", "storage for small ISO images; empty means the first suitable one")
	flags.StringVar(&o.run.Bridge, "bridge", "vmbr0", "bridge of the VMs' network devices")
	flags.StringVar(&o.rootPasswordFile, "root-password-file", "", "file with the password of root@pam: also run the cases that create tokens, locks and pools")
	flags.StringVar(&o.only, "only", "", "regular expression for family/name of the cases to run")
	flags.BoolVar(&o.run.Destructive, "destructive", false, "also run cases that remove volumes of their own VMs")
	flags.BoolVar(&o.run.Slow, "slow", false, "also run cases that start VMs or read a host's report")
	flags.BoolVar(&o.run.RemoveLeftovers, "remove-leftovers", false, "first remove VMs of an earlier run that was killed")
	flags.StringVar(&o.report, "report", "", "file for the report: JSON if the name ends in .json, otherwise Markdown")
	flags.BoolVar(&o.list, "list", false, "list the cases with their sources, without running them")
	return command
}

func (o *conformanceOptions) compare(ctx context.Context, process Process) error {
	cases, err := conformance.Cases()
	if err != nil {
		return err
	}
	if o.only != "" {
		if o.run.Only, err = regexp.Compile(o.only); err != nil {
			return usageError{fmt.Errorf("--only: %w", err)}
		}
	}
	if o.list {
		for i := range cases {
			if name := cases[i].Family + "/" + cases[i].Name; o.run.Only == nil || o.run.Only.MatchString(name) {
				fmt.Fprintf(process.Stdout, "%s\t%s\n", name, cases[i].Source)
			}
		}
		return nil
	}
	config, err := loadConfig(process, o.config)
	if err != nil {
		return err
	}
	if err := o.target(config); err != nil {
		return err
	}
	o.run.Progress = func(result conformance.Result) {
		if result.Outcome == conformance.Different || result.Outcome == conformance.Failed {
			fmt.Fprintf(process.Stderr, "%s: %s/%s\n", result.Outcome, result.Family, result.Name)
		}
	}
	report, err := conformance.Run(ctx, o.run, cases)
	if bounds := (*conformance.BoundsError)(nil); errors.As(err, &bounds) {
		return usageError{bounds}
	}
	w := newPrinter(process)
	w.conformance(&report)
	err = errors.Join(err, w.err)
	if o.report != "" {
		var text bytes.Buffer
		write := report.Markdown
		if strings.HasSuffix(o.report, ".json") {
			write = func(w io.Writer) error { return printData(Process{Stdout: w}, "json", &report) }
		}
		err = errors.Join(err, write(&text))
		if writeErr := os.WriteFile(o.report, text.Bytes(), 0o644); writeErr != nil {
			err = errors.Join(err, fmt.Errorf("writing the report: %w", writeErr))
		}
	}
	if err == nil && report.Count(conformance.Different)+report.Count(conformance.Failed) > 0 {
		return exitError{ExitFailed}
	}
	return err
}

// target checks the flags, and sets the VMIDs, the credentials, the HTTP client and the URL
// of the run from them and the configuration.
func (o *conformanceOptions) target(config *operator.Config) error {
	for name, missing := range map[string]bool{"--pool": o.run.Pool == "", "--vmids": o.vmids == "", "--template": o.run.Template == 0} {
		if missing {
			return usageError{fmt.Errorf("%s is required: run numaform conformance --help", name)}
		}
	}
	lower, upper, _ := strings.Cut(o.vmids, "-")
	var errLower, errUpper error
	o.run.Lower, errLower = strconv.Atoi(lower)
	o.run.Upper, errUpper = strconv.Atoi(upper)
	if errLower != nil || errUpper != nil || o.run.Lower < 100 {
		return usageError{fmt.Errorf("--vmids %q: must be a range of VMIDs from 100, such as 9000-9019", o.vmids)}
	}
	at := slices.IndexFunc(config.Clusters, func(c operator.Cluster) bool {
		return c.Region == topology.RegionName(o.region) || o.region == "" && len(config.Clusters) == 1
	})
	if at < 0 {
		var regions []string
		for i := range config.Clusters {
			regions = append(regions, string(config.Clusters[i].Region))
		}
		return usageError{fmt.Errorf("--region %q: must be a region of %s (%s)", o.region, o.config, strings.Join(regions, ", "))}
	}
	if err := config.ReadSecrets(); err != nil {
		return err
	}
	cluster := &config.Clusters[at]
	if own := cluster.VMIDRange; own.Upper != 0 && o.run.Lower <= int(own.Upper) && o.run.Upper >= int(own.Lower) {
		return usageError{fmt.Errorf("--vmids %s: overlaps vmid_range %d-%d of region %s, which numaform uses for nodes: choose an unused range", o.vmids, own.Lower, own.Upper, cluster.Region)}
	}
	o.run.Login = conformance.Login{
		TokenID:     cluster.TokenID,
		TokenSecret: cluster.TokenSecret,
		Username:    cluster.Username,
		Password:    cluster.Password,
	}
	if o.run.Login.Username == "root@pam" {
		o.run.Root = &o.run.Login
	}
	if o.rootPasswordFile != "" {
		password, err := os.ReadFile(o.rootPasswordFile)
		if err != nil {
			return fmt.Errorf("reading the password of root@pam: %w", err)
		}
		o.run.Root = &conformance.Login{Username: "root@pam", Password: strings.TrimSpace(string(password))}
	}
	var err error
	if o.run.Client, err = apiClient(cluster); err != nil {
		return err
	}
	url := cluster.URL
	if url == "" {
		url = cluster.URLs[0] // Load rejects a cluster without URLs
	}
	o.run.URL = strings.TrimSuffix(strings.TrimRight(url, "/"), "/api2/json") + "/api2/json"
	return nil
}

// apiClient returns an HTTP client with the TLS settings of the cluster. It uses
// HTTP/1.1, because Proxmox reports errors in the reason phrase, which HTTP/2 lacks.
func apiClient(cluster *operator.Cluster) (*http.Client, error) {
	settings := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: cluster.Insecure} //nolint:gosec // the user's choice
	if cluster.CAFile != "" {
		pem, err := os.ReadFile(cluster.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading ca_file: %w", err)
		}
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("reading ca_file %s: contains no PEM certificate: copy /etc/pve/pve-root-ca.pem from a host", cluster.CAFile)
		}
	}
	return &http.Client{
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: settings},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       requestTimeout,
	}, nil
}

// conformance prints one line for each family of cases, and the differences.
func (w *printer) conformance(report *conformance.Report) {
	families := map[string]*conformance.Report{"all": report}
	var names []string
	for _, result := range report.Results {
		if families[result.Family] == nil {
			families[result.Family] = &conformance.Report{}
			names = append(names, result.Family)
		}
		families[result.Family].Results = append(families[result.Family].Results, result)
	}
	w.table(func(table io.Writer) {
		fmt.Fprintln(table, "FAMILY\tEQUAL\tDIFFERENT\tFAILED\tSKIPPED")
		for _, name := range append(names, "all") {
			f := families[name]
			fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\n", name,
				f.Count(conformance.Equal), f.Count(conformance.Different), f.Count(conformance.Failed), f.Count(conformance.Skipped))
		}
	})
	for _, result := range report.Results {
		if result.Outcome == conformance.Different || result.Outcome == conformance.Failed {
			w.printf("\n%s %s/%s (%s)\n  %s\n", result.Outcome, result.Family, result.Name, result.Source, strings.Join(result.Detail, "\n  "))
		}
	}
}
