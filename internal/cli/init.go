package cli

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/internal/proxmox"
)

// initOptions are the flags of init, and the answers to its questions.
type initOptions struct {
	config, clusterID, region, url string
	caFile, tokenID, secretFile    string
	insecure                       bool
	vmids, pool                    string
	disks, seeds, models           []string
}

func newInit(process Process) *cobra.Command {
	var o initOptions
	command := &cobra.Command{
		Use:   "init",
		Short: "Write numaform.yaml, and print what makes numaform's user on Proxmox",
		Long: "Ask a few questions, write numaform.yaml, and print the pveum lines for role, user, token and pool: the least for each path, the same on " +
			"Proxmox VE 8 and 9. Each question is a flag, too; without a terminal, what no flag says is as proposed. A file that is there is not overwritten. " +
			"The token's secret goes into a file of its own, never into numaform.yaml.",
		Example: "  numaform init                                                          # asks\n" +
			"  numaform init --cluster-id prod --url https://pve-1.example:8006       # where there is no terminal\n" +
			"  numaform init --url https://pve-1.example:8006 --pool k8s --seed-storage seeds\n" +
			"  numaform init --url https://pve-1.example:8006 | ssh root@pve-1.example sh",
		RunE: func(command *cobra.Command, _ []string) error { return runInit(process, command.Flags(), &o) },
	}
	flags := command.Flags()
	flags.StringVar(&o.config, "config", "numaform.yaml", "file to write")
	flags.StringVar(&o.clusterID, "cluster-id", "prod", "name of this numaform, in every tag, state name and marker")
	flags.StringVar(&o.url, "url", "", "API of any host of the Proxmox cluster, such as https://pve-1.example:8006")
	flags.StringVar(&o.region, "region", "region-1", "name of the Proxmox cluster, which becomes a label of nodes")
	flags.StringVar(&o.pool, "pool", "", "resource pool of numaform's VMs and templates; empty allows it to change any VM")
	flags.StringSliceVar(&o.seeds, "seed-storage", nil, "storage of the seeds by which nodes join; empty if templates bring all that they need")
	flags.StringSliceVar(&o.disks, "disk-storage", nil, "storage of the VMs' disks; empty is any")
	flags.StringSliceVar(&o.models, "cpu-model", nil, "custom CPU model that VMs get: NAME of cpuType: custom-NAME")
	flags.StringVar(&o.caFile, "ca-file", "pve-root-ca.pem", "copy of /etc/pve/pve-root-ca.pem; empty trusts the system's authorities")
	flags.BoolVar(&o.insecure, "insecure", false, "check no certificate")
	flags.StringVar(&o.tokenID, "token-id", "numaform@pve!scaler", "API token to make")
	flags.StringVar(&o.secretFile, "token-secret-file", "token", "file with its secret")
	flags.StringVar(&o.vmids, "vmids", "2000-2999", "VMIDs that are numaform's")
	return command
}

func runInit(process Process, flags *pflag.FlagSet, o *initOptions) error {
	if _, err := os.Lstat(o.config); err == nil {
		return fmt.Errorf("writing %s: it exists: edit it, or name another file with --config; nothing was changed", o.config)
	}
	if err := o.ask(process, flags); err != nil {
		return err
	}
	text, err := o.render()
	if err != nil {
		return err
	}
	file, err := os.OpenFile(o.config, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("writing %s: %w: name another file with --config", o.config, err)
	}
	_, err = file.WriteString(text)
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}

	w := &printer{w: process.Stdout}
	w.printf("# To be run as root on one host of the Proxmox cluster; the same for Proxmox VE 8 and 9.\n")
	reach := proxmox.Reach{Pool: o.pool, Disks: o.disks, Seeds: o.seeds, CPUModels: o.models}
	for _, line := range reach.Pveum(o.tokenID) {
		w.printf("%s\n", line)
	}
	if w.err != nil {
		return w.err
	}

	steps := []string{
		"run the lines above on a host; the last one prints the token's secret, once",
		fmt.Sprintf("put that secret alone into the file %s beside %s, readable by you only (chmod 600)", o.secretFile, o.config),
	}
	if o.caFile != "" && !o.insecure {
		host, _, _ := strings.Cut(strings.Trim(strings.TrimPrefix(o.url, "https://"), "/"), ":")
		steps = append(steps, fmt.Sprintf("scp root@%s:/etc/pve/pve-root-ca.pem %s", host, o.caFile))
	}
	if o.pool != "" {
		steps = append(steps, fmt.Sprintf("put the templates into the pool: pveum pool modify %s --vms VMID,VMID; and name it in spec.pool of your ProxmoxNodeClasses", o.pool))
	}
	w = &printer{w: process.Stderr}
	w.printf("\nWrote %s. Then:\n", o.config)
	for i, step := range append(steps, "numaform doctor") {
		w.printf("  %d. %s\n", i+1, step)
	}
	return w.err
}

// ask asks for values without a flag, if there is a terminal.
func (o *initOptions) ask(process Process, flags *pflag.FlagSet) error {
	in := bufio.NewReader(process.Stdin)
	for _, question := range []struct{ flag, text string }{
		{"url", "API of any host of your Proxmox cluster (https://HOST:8006)"},
		{"cluster-id", "Name of this numaform, which marks its VMs"},
		{"region", "Name of the Proxmox cluster, which becomes a label of nodes"},
		{"pool", "Resource pool to keep numaform to, with its templates (empty: any VM)"},
		{"seed-storage", "Storage for the seeds by which nodes join (empty: none)"},
	} {
		flag := flags.Lookup(question.flag)
		if flag.Changed || !atTerminal(process) {
			continue
		}
		text, proposed := question.text, strings.Trim(flag.Value.String(), "[]")
		if proposed != "" {
			text += " [" + proposed + "]"
		}
		fmt.Fprintf(process.Stderr, "%s: ", text)
		answer, err := in.ReadString('\n')
		if err == nil {
			err = flags.Set(question.flag, cmp.Or(strings.TrimSpace(answer), proposed))
		}
		if err != nil {
			return fmt.Errorf("asking for --%s: %w", question.flag, err)
		}
	}
	if o.url == "" {
		return usageError{errors.New("--url: is empty: name the API of a host of the Proxmox cluster, such as https://pve-1.example:8006")}
	}
	return o.check()
}

// check refuses values that Load would refuse, and values that are unsafe in a shell
// command.
func (o *initOptions) check() error {
	for _, given := range []struct {
		flag   string
		values []string
		want   string
		good   func(string) bool
	}{
		{"pool", []string{o.pool}, "the name of a resource pool", func(s string) bool { return s == "" || proxmox.IsPool(s) }},
		{"seed-storage", o.seeds, "the name of a storage", proxmox.IsStorage},
		{"disk-storage", o.disks, "the name of a storage", proxmox.IsStorage},
		{"cpu-model", o.models, "the name of a custom CPU model", proxmox.IsCPUModel},
		{"token-id", []string{o.tokenID}, "user@realm!name", proxmox.IsTokenID},
	} {
		for _, value := range given.values {
			if !given.good(value) {
				return usageError{fmt.Errorf("--%s %q: want %s", given.flag, value, given.want)}
			}
		}
	}
	if user, _, _ := strings.Cut(o.tokenID, "!"); user == "root@pam" {
		return usageError{fmt.Errorf("--token-id %q: want a user of its own, as root@pam may do anything", o.tokenID)}
	}
	return nil
}

// render returns the file, after checking that Load accepts it.
func (o *initOptions) render() (string, error) {
	lower, upper, ok := strings.Cut(o.vmids, "-")
	first, lowErr := strconv.Atoi(lower)
	last, highErr := strconv.Atoi(upper)
	if !ok || lowErr != nil || highErr != nil {
		return "", usageError{fmt.Errorf("--vmids %q: want the first and the last, as 2000-2999", o.vmids)}
	}
	text := "# Written by numaform init. The keys are in numaform's README; `numaform doctor` checks them.\n" +
		"clusterID: " + scalar(o.clusterID) + "\n" +
		"clusters:\n" +
		"- region: " + scalar(o.region) + "\n" +
		"  url: " + scalar(strings.TrimRight(o.url, "/")) + "\n"
	switch {
	case o.insecure:
		text += "  insecure: true            # better: ca_file\n"
	case o.caFile != "":
		text += "  ca_file: " + scalar(o.caFile) + "  # a copy of /etc/pve/pve-root-ca.pem of a host\n"
	}
	text += "  token_id: " + scalar(o.tokenID) + "\n" +
		"  token_secret_file: " + scalar(o.secretFile) + "\n" +
		fmt.Sprintf("  vmid_range: {lower: %d, upper: %d}\n", first, last) +
		"fleet:\n  dir: fleet\n  backend: {type: local}    # kubernetes, pg, s3 or http for states that outlive this machine\n"

	// Any error of Load comes from an answer.
	dir, err := os.MkdirTemp("", "numaform-init-")
	if err != nil {
		return "", fmt.Errorf("checking the answers: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "numaform.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("checking the answers: %w", err)
	}
	if _, err := operator.Load(path, nil); err != nil {
		return "", usageError{errors.New(strings.TrimPrefix(err.Error(), "reading "+path+": "))}
	}
	return text, nil
}

// scalar returns a text as a YAML scalar.
func scalar(text string) string {
	out, err := yaml.Marshal(text)
	if err != nil {
		return strconv.Quote(text)
	}
	return strings.TrimRight(string(out), "\n")
}
