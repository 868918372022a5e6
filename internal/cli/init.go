package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/proxmox"
	"github.com/numaform/numaform/internal/shell"
)

// initOptions are the flags of init. Its questions set the same values.
type initOptions struct {
	config, clusterID, region, url string
	caFile, tokenID, secretFile    string
	insecure                       bool
	vmids, pool, template          string
	disks, seeds, models           []string
	// discoverFile is the path of a file with an existing API token that may read Proxmox.
	// found contains what was read with this token; it is nil without a token.
	discoverFile string
	found        *discovery
}

func newInit(process Process) *cobra.Command {
	var o initOptions
	command := &cobra.Command{
		Use:   "init",
		Short: "Write numaform.yaml, and print the commands that create numaform's user in Proxmox",
		Long: "Ask a few questions; write numaform.yaml, a README.md with the next commands and, in manifests/, a ProxmoxNodeClass, a NodePool and example pods; and print pveum commands that create the roles, user, token and pool with the fewest privileges on " +
			"each path, for Proxmox VE 8 and 9. Each question has a flag; without a terminal, a missing flag has its default. The command never overwrites a file. " +
			"The printed commands print only the token's secret: write it to a separate file, never to numaform.yaml. " +
			"With --discover-token-file, the command reads your Proxmox with an existing API token, proposes values, and checks each answer.",
		Example: "  numaform init                                                          # asks questions\n" +
			"  numaform init --cluster-id prod --url https://pve-1.example:8006       # without a terminal\n" +
			"  numaform init --url https://pve-1.example:8006 --pool k8s --seed-storage seeds\n" +
			"  numaform init --url pve-1.example >create-user.sh                      # commands to review, and then:\n" +
			"  ssh root@pve-1.example sh <create-user.sh >token                       # creates the user, and stores the token's secret\n" +
			"  numaform init --url pve-1.example --discover-token-file mytoken          # proposes templates, storages and pools",
		RunE: func(command *cobra.Command, _ []string) error {
			return runInit(command.Context(), process, command.Flags(), &o)
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.config, "config", "numaform.yaml", "file to write")
	flags.StringVar(&o.clusterID, "cluster-id", "prod", "name of this numaform installation, used in tags, state names and markers")
	flags.StringVar(&o.url, "url", "", "API URL of any host of the Proxmox cluster, such as https://pve-1.example:8006, or only the name of the host")
	flags.StringVar(&o.region, "region", "homelab", "name of the Proxmox cluster, used as the region label of nodes")
	flags.StringVar(&o.pool, "pool", "", "resource pool of numaform's VMs and templates; empty allows numaform to change any VM")
	flags.StringVar(&o.template, "template", "debian-13-k8s", "name of the VM template of the first class")
	flags.StringSliceVar(&o.seeds, "seed-storage", nil, "storage for seeds; empty if nodes join without seeds")
	flags.StringSliceVar(&o.disks, "disk-storage", nil, "storage for the VMs' disks; empty means any")
	flags.StringSliceVar(&o.models, "cpu-model", nil, "custom CPU model of the VMs, without the prefix custom-")
	flags.StringVar(&o.caFile, "ca-file", "pve-root-ca.pem", "copy of /etc/pve/pve-root-ca.pem; empty trusts the system's certificate authorities")
	flags.BoolVar(&o.insecure, "insecure", false, "do not verify the certificate of the Proxmox API")
	flags.StringVar(&o.tokenID, "token-id", "numaform@pve!scaler", "API token to create")
	flags.StringVar(&o.secretFile, "token-secret-file", "token", "file for the token's secret")
	flags.StringVar(&o.vmids, "vmids", "2000-2999", "range of VMIDs reserved for numaform")
	flags.StringVar(&o.discoverFile, "discover-token-file", "", "file with an existing API token, user@realm!name=secret, to read proposals from Proxmox once; it is not stored")
	return command
}

func runInit(ctx context.Context, process Process, flags *pflag.FlagSet, o *initOptions) error {
	if _, err := os.Lstat(o.config); err == nil {
		return fmt.Errorf("writing %s: the file already exists; nothing was changed: edit it, or use another file with --config", o.config)
	}
	if err := o.ask(ctx, process, flags); err != nil {
		return err
	}
	text, err := o.render()
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Dir(o.config)); err != nil {
		return fmt.Errorf("writing %s: %w: create the directory, or use another file with --config", o.config, err)
	}
	// An existing numaform.yaml ends init, so write it last: a failed init can be repeated.
	written, kept, err := o.writeFiles()
	if err != nil {
		return err
	}
	if err := writeNew(o.config, text); err != nil {
		return fmt.Errorf("writing %s: %w: use another file with --config", o.config, err)
	}

	w := newPrinter(process)
	// Do not wrap these lines: the second line of a wrapped comment would be a command.
	w.raw("# Run these commands as root on one host of the Proxmox cluster (Proxmox VE 8 or 9).\n")
	reach := o.reach()
	if o.found.hasPool(o.pool) {
		w.raw("# The pool " + o.pool + " already exists.\n")
		reach.PoolExists = true
	}
	for _, line := range reach.Pveum(o.tokenID) {
		w.raw(line + "\n")
	}
	if w.err != nil {
		return w.err
	}

	return o.printNext(process, written, kept)
}

// printNext prints the files and the next steps to stderr.
func (o *initOptions) printNext(process Process, written, kept []string) error {
	w := &printer{Terminal: process.terminal(process.Stderr), w: process.Stderr}
	w.printf("\nWrote %s.\n", strings.Join(append([]string{o.config}, written...), ", "))
	if len(kept) > 0 {
		w.printf("Existing files were not changed: %s: compare them with your answers before you use them.\n", strings.Join(kept, ", "))
	}

	// The paths in numaform.yaml are relative to its directory, those in the steps to the
	// current directory.
	beside := func(path string) string {
		if filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(filepath.Dir(o.config), path)
	}
	secret := beside(o.secretFile)
	var steps []string
	if isTerminal(process.Stdout) {
		w.printf("Next steps:\n")
		steps = append(steps, "run the commands above as root on a Proxmox host; the last one prints the token's secret once",
			fmt.Sprintf("write only the secret to the file %s, and run %s", secret, shell.Line("chmod", "600", secret)))
	} else {
		w.printf("The commands that create numaform's user were written to standard output. Run them as root on a Proxmox host, "+
			"and store their output, the token's secret, in the file %s. Then:\n", secret)
	}
	if o.caFile != "" && !o.insecure {
		steps = append(steps, proxmox.CopyCA(o.url, beside(o.caFile)))
	}
	if o.pool != "" {
		steps = append(steps, fmt.Sprintf("add the templates to the pool with pveum pool modify %s --vms VMID,VMID, and set spec.pool of your own ProxmoxNodeClasses to %s", o.pool, o.pool))
	}
	next := options{config: o.config, files: []string{beside(manifestsDir)}}
	steps = append(steps, "run numaform doctor"+next.source(), "run numaform apply"+next.source()+", which shows the plan and asks for confirmation")
	for i, step := range steps {
		w.printf("  %d. %s\n", i+1, step)
	}
	return w.err
}

// reach returns the resources that numaform's user may use.
func (o *initOptions) reach() proxmox.Reach {
	return proxmox.Reach{Pool: o.pool, Disks: o.disks, Seeds: o.seeds, CPUModels: o.models}
}

// host returns the name or address of the host in the URL, as ssh expects it.
func (o *initOptions) host() string {
	parsed, err := url.Parse(o.url)
	if err != nil || parsed.Hostname() == "" {
		return "HOST"
	}
	return parsed.Hostname()
}

// ask asks for the values of missing flags, if stdin is a terminal, and repeats a question
// until its answer is valid. With --discover-token-file, it reads Proxmox as soon as the
// URL is known.
func (o *initOptions) ask(ctx context.Context, process Process, flags *pflag.FlagSet) error {
	in := bufio.NewReader(process.Stdin)
	for _, question := range []struct{ flag, text string }{
		{flag: "url", text: "API URL of any host of the Proxmox cluster (https://HOST:8006)"},
		{flag: "cluster-id", text: "Name of this numaform installation"},
		{flag: "region", text: "Name of the Proxmox cluster, used as the region label of nodes"},
		{flag: "template", text: "Name of the VM template of your nodes"},
		{flag: "pool", text: "Resource pool of numaform's VMs and templates (empty: any VM)"},
		{flag: "seed-storage", text: "Storage for seeds (empty: nodes join without seeds)"},
	} {
		flag := flags.Lookup(question.flag)
		if question.flag != "url" && o.found == nil && o.discoverFile != "" && o.url != "" {
			if err := o.discover(ctx, process, flags); err != nil {
				return err
			}
		}
		if flag.Changed || !atTerminal(process) {
			continue
		}
		text, proposed := question.text, strings.Trim(flag.Value.String(), "[]")
		if choices := o.found.choices(question.flag); choices != "" {
			text += " (found: " + choices + ")"
		}
		if proposed != "" {
			text += " [" + proposed + "]"
		}
		for {
			answer, err := process.ask(ctx, in, text, "the answer for --"+question.flag)
			if err != nil {
				return fmt.Errorf("%w: nothing was written", err)
			}
			if err = flags.Set(question.flag, cmp.Or(strings.TrimSpace(answer), proposed)); err == nil {
				err = o.check()
			}
			if err == nil {
				break
			}
			fmt.Fprintf(process.Stderr, "  %v\n", err)
			if slice, ok := flag.Value.(pflag.SliceValue); ok {
				_ = slice.Replace(nil) // otherwise, the next answer would be appended
			}
		}
	}
	return o.check()
}

// check completes the URL, and rejects values that are invalid in numaform.yaml or
// unsafe in the printed shell commands.
func (o *initOptions) check() error {
	if o.url == "" {
		return usageError{errors.New("--url is required: set it to the API URL of a Proxmox host, such as https://pve-1.example:8006")}
	}
	o.url = apiURL(o.url)
	for _, given := range []struct {
		flag   string
		values []string
		form   string
		valid  func(string) bool
	}{
		{"pool", []string{o.pool}, "the name of a resource pool", func(s string) bool { return s == "" || proxmox.IsPool(s) }},
		{"seed-storage", o.seeds, "the name of a storage", proxmox.IsStorage},
		{"disk-storage", o.disks, "the name of a storage", proxmox.IsStorage},
		{"cpu-model", o.models, "the name of a custom CPU model", proxmox.IsCPUModel},
		{"template", []string{o.template}, "the name of a VM template", func(s string) bool { return s != "" && !strings.ContainsAny(s, " \t\n") }},
		{"token-id", []string{o.tokenID}, "user@realm!name", proxmox.IsTokenID},
	} {
		for _, value := range given.values {
			if !given.valid(value) {
				return usageError{fmt.Errorf("--%s %q: must be %s", given.flag, value, given.form)}
			}
		}
	}
	if err := o.found.check(o); err != nil {
		return usageError{err}
	}
	if user, _, _ := strings.Cut(o.tokenID, "!"); user == "root@pam" {
		return usageError{fmt.Errorf("--token-id %q: must not belong to root@pam, which has all privileges: use a separate user", o.tokenID)}
	}
	_, err := o.render()
	return err
}

// apiURL completes the name or address of a host, such as pve-1 or pve-1:8006, to the URL of
// its API.
func apiURL(address string) string {
	if strings.Contains(address, "://") || strings.ContainsAny(address, "/ \"'") {
		return address
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		address = net.JoinHostPort(strings.Trim(address, "[]"), "8006")
	}
	return "https://" + address
}

// render returns the content of numaform.yaml, or an error if operator.Load would not
// accept it.
func (o *initOptions) render() (string, error) {
	lower, upper, ok := strings.Cut(o.vmids, "-")
	first, lowErr := strconv.Atoi(lower)
	last, highErr := strconv.Atoi(upper)
	if !ok || lowErr != nil || highErr != nil {
		return "", usageError{fmt.Errorf("--vmids %q: must be a range such as 2000-2999", o.vmids)}
	}
	text := "# Written by numaform init. docs/configuration.md describes the keys; `numaform doctor` checks them.\n" +
		"clusterID: " + scalar(o.clusterID) + "\n" +
		"clusters:\n" +
		"- region: " + scalar(o.region) + "\n" +
		"  url: " + scalar(strings.TrimRight(o.url, "/")) + "\n"
	switch {
	case o.insecure:
		text += "  insecure: true            # prefer ca_file\n"
	case o.caFile != "":
		text += "  ca_file: " + scalar(o.caFile) + "  # copy of /etc/pve/pve-root-ca.pem from a host\n"
	}
	text += "  token_id: " + scalar(o.tokenID) + "\n" +
		"  token_secret_file: " + scalar(o.secretFile) + "\n" +
		fmt.Sprintf("  vmid_range: {lower: %d, upper: %d}\n", first, last) +
		"fleet:    # with the chart, the fleet is in the cluster: see docs/install.md, Commands on your machine\n  dir: fleet\n  backend: {type: local}    # to store states elsewhere: kubernetes, pg, s3 or http\n"

	// Any error of Load is an error in a flag or an answer.
	dir, err := os.MkdirTemp("", "numaform-init-")
	if err != nil {
		return "", fmt.Errorf("checking the configuration: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "numaform.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("checking the configuration: %w", err)
	}
	if _, err := operator.Load(path, nil); err != nil {
		return "", usageError{errors.New(strings.TrimPrefix(err.Error(), "reading "+path+": "))}
	}
	return text, nil
}

// scalar formats a text as a YAML scalar.
func scalar(text string) string {
	out, err := yaml.Marshal(text)
	if err != nil {
		return strconv.Quote(text)
	}
	return strings.TrimRight(string(out), "\n")
}
