package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/numaform/numaform/internal/operator"
	"github.com/numaform/numaform/state/guard"
	"github.com/numaform/numaform/topology"
)

// shippedPolicy is the value of --policy for the built-in policy.
const shippedPolicy = "default"

func newPolicy(process Process) *cobra.Command {
	command := &cobra.Command{
		Use:   "policy",
		Short: "Show the rules that the guard applies to plans, and test them on example plans",
		RunE:  func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	var files []string
	test := &cobra.Command{
		Use:   "test [--policy FILE]... DIR|FILE...",
		Short: "Check example plans, and compare each verdict with the expected one",
		Args:  arguments(1, anyNumber),
		RunE: func(_ *cobra.Command, args []string) error {
			return testPolicy(process.Stdout, files, args)
		},
	}
	test.Flags().StringArrayVar(&files, "policy", []string{shippedPolicy},
		"policy file, or default for the built-in policy; repeatable")
	command.AddCommand(test, newPolicyShow(process))
	return command
}

func newPolicyShow(process Process) *cobra.Command {
	var path string
	var shipped bool
	command := &cobra.Command{
		Use:   "show",
		Short: "Print the effective rules and limits, built-in and configured",
		RunE: func(command *cobra.Command, _ []string) error {
			if shipped {
				return showPolicy(process.Stdout, nil)
			}
			config, err := loadConfig(process, path)
			if errors.Is(err, fs.ErrNotExist) && !command.Flags().Changed("config") {
				fmt.Fprintf(process.Stderr, "%s does not exist: showing the built-in rules and limits.\n", path)
				config, err = nil, nil
			}
			if err != nil {
				return err
			}
			return showPolicy(process.Stdout, config)
		},
	}
	registerConfig(command.Flags(), &path)
	command.Flags().BoolVar(&shipped, "shipped", false, "print only the built-in rules and limits, without numaform.yaml")
	return command
}

// showPolicy prints the effective rules as YAML documents, and the limits as a comment.
// Without a configuration it prints the defaults.
func showPolicy(out io.Writer, config *operator.Config) error {
	limits := guard.DefaultLimits()
	parts := []string{string(guard.DefaultPolicy())}
	if config != nil {
		rules, err := config.Rules()
		if err != nil {
			return err
		}
		limits = rules.Limits
		if config.Policy.ReplaceDefault {
			parts = nil
		}
		for _, file := range config.Policy.Files {
			text, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("reading policy.files: %w: correct the path", err)
			}
			parts = append(parts, fmt.Sprintf("# From %s:\n%s", file, text))
		}
	}
	printed, err := yaml.Marshal(limits)
	if err != nil {
		return fmt.Errorf("printing limits: %w", err)
	}
	comment := strings.ReplaceAll(strings.TrimSpace(string(printed)), "\n", "\n#   ")
	_, err = fmt.Fprintf(out, "%s\n# Limits:\n#   %s\n", strings.Join(parts, "\n---\n"), comment)
	return err
}

// The maximum sizes of the input files of policy tests. The plan of a host with 100 VMs has
// about 2 MB.
const (
	maxPolicyFile = 1 << 20
	maxPlanFile   = 256 << 20
)

// readBounded reads an untrusted file of up to most bytes, such as one from a pull
// request.
func readBounded(name string, most int64) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it is only read
	content, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(content)) > most {
		return nil, fmt.Errorf("%s has more than %d bytes: use a smaller file", name, most)
	}
	return content, err
}

// loadPolicy reads policies and combines their rules.
func loadPolicy(files []string) (*guard.Policy, error) {
	var all *guard.Policy
	for _, name := range files {
		text := guard.DefaultPolicy()
		if name != shippedPolicy {
			var err error
			if text, err = readBounded(name, maxPolicyFile); err != nil {
				return nil, fmt.Errorf("reading policy: %w", err)
			}
		}
		policy, err := guard.ParsePolicy(name, text)
		if err != nil {
			return nil, err
		}
		if all == nil {
			all = policy
		} else if all, err = all.And(policy); err != nil {
			return nil, err
		}
	}
	if all == nil {
		return nil, errors.New("reading policy: --policy is empty: set it to a file, or to default for the built-in policy")
	}
	return all, nil
}

// policyCase is a plan, the requested change, and the expected verdict.
type policyCase struct {
	Description string `json:"description"`
	// Plan is the path of a file with the output of `show -json`, relative to the directory
	// of the case.
	Plan   string          `json:"plan"`
	Host   topology.HostID `json:"host"`
	Intent guard.Intent    `json:"intent"`
	// Recent are earlier changes; Limits override the default limits.
	Recent []guard.Event `json:"recent"`
	Limits guard.Limits  `json:"limits"`
	Expect struct {
		Decision *guard.Decision `json:"decision"`
		// Rules and Addresses are the expected values of all findings. Addresses is
		// optional.
		Rules     []string `json:"rules"`
		Addresses []string `json:"addresses"`
	} `json:"expect"`
}

// testPolicy runs the cases in the paths and reports each result.
func testPolicy(out io.Writer, files, paths []string) error {
	policy, err := loadPolicy(files)
	if err != nil {
		return err
	}
	cases, err := findCases(paths)
	if err != nil {
		return err
	}
	wrong := 0
	for _, name := range cases {
		c, err := readCase(name)
		if err != nil {
			return err
		}
		verdict, err := c.check(filepath.Dir(name), policy)
		if err != nil {
			return fmt.Errorf("checking %s: %w", name, err)
		}
		mark := "ok  "
		differences := c.compare(verdict)
		if len(differences) > 0 {
			mark = "FAIL"
			wrong++
		}
		fmt.Fprintf(out, "%s  %s: %s\n", mark, name, verdict.Decision)
		for _, finding := range verdict.Findings {
			fmt.Fprintf(out, "        %s\n", finding)
		}
		for _, difference := range differences {
			fmt.Fprintf(out, "      ! %s\n", difference)
		}
	}
	if wrong > 0 {
		return fmt.Errorf("testing policy: %d of %d cases failed: correct the policy or the case", wrong, len(cases))
	}
	fmt.Fprintf(out, "%d cases passed\n", len(cases))
	return nil
}

// findCases returns the paths of cases. A directory means the YAML files directly
// in it.
func findCases(paths []string) ([]string, error) {
	var cases []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("finding cases: %w: pass case files, or a directory that contains them", err)
		}
		if !info.IsDir() {
			cases = append(cases, path)
			continue
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, fmt.Errorf("finding cases: %w", err)
		}
		for _, entry := range entries {
			if extension := filepath.Ext(entry.Name()); !entry.IsDir() && (extension == ".yaml" || extension == ".yml") {
				cases = append(cases, filepath.Join(path, entry.Name()))
			}
		}
	}
	if len(cases) == 0 {
		return nil, fmt.Errorf("finding cases: no .yaml or .yml file in %s: pass case files, or a directory that contains them", strings.Join(paths, ", "))
	}
	return cases, nil
}

func readCase(name string) (*policyCase, error) {
	text, err := readBounded(name, maxPolicyFile)
	if err != nil {
		return nil, fmt.Errorf("reading case: %w", err)
	}
	c := &policyCase{Limits: guard.DefaultLimits()}
	if err := yaml.UnmarshalStrict(text, c); err != nil {
		problem := err.Error()
		for _, lead := range []string{"error converting YAML to JSON: ", "error unmarshaling JSON: ", "while decoding JSON: ", "json: "} {
			problem = strings.TrimPrefix(problem, lead)
		}
		return nil, fmt.Errorf("reading case %s: %s: see examples/policy for the format", name, problem)
	}
	switch {
	case c.Plan == "":
		return nil, fmt.Errorf("reading case %s: plan is missing: set it to the path of a file with the output of `show -json` for a saved plan", name)
	case c.Host == (topology.HostID{}):
		return nil, fmt.Errorf("reading case %s: host is missing: set it to REGION/HOST", name)
	case c.Expect.Decision == nil:
		return nil, fmt.Errorf("reading case %s: expect.decision is missing: set it to allow, approve or deny", name)
	}
	return c, nil
}

// check returns the verdict on the plan, for a change that affects only its host.
func (c *policyCase) check(dir string, policy *guard.Policy) (guard.Verdict, error) {
	path := filepath.FromSlash(c.Plan)
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	raw, err := readBounded(path, maxPlanFile)
	if err != nil {
		return guard.Verdict{}, err
	}
	plan, err := guard.Decode(raw)
	if err != nil {
		return guard.Verdict{}, err
	}
	verdict := guard.CheckRecorded(plan, c.Intent, guard.Rules{Limits: c.Limits, Policy: policy})
	part := guard.HostIntent{Host: c.Host, Intent: c.Intent}
	return verdict.And(guard.CheckLimits([]guard.HostIntent{part}, c.Recent, c.Limits)), nil
}

// compare describes the differences between a verdict and the expected one.
func (c *policyCase) compare(verdict guard.Verdict) []string {
	var differences []string
	if verdict.Decision != *c.Expect.Decision {
		differences = append(differences, fmt.Sprintf("expected %s", *c.Expect.Decision))
	}
	var rules, addresses []string
	for _, finding := range verdict.Findings {
		rules = append(rules, string(finding.Rule))
		addresses = append(addresses, finding.Address)
	}
	if got, want := distinct(rules), distinct(c.Expect.Rules); !slices.Equal(got, want) {
		differences = append(differences, fmt.Sprintf("expected rules [%s], got [%s]", strings.Join(want, ", "), strings.Join(got, ", ")))
	}
	want := distinct(c.Expect.Addresses)
	if got := distinct(addresses); len(want) > 0 && !slices.Equal(got, want) {
		differences = append(differences, fmt.Sprintf("expected addresses [%s], got [%s]", strings.Join(want, ", "), strings.Join(got, ", ")))
	}
	return differences
}

// distinct returns the non-empty texts, sorted, without duplicates.
func distinct(texts []string) []string {
	found := slices.DeleteFunc(slices.Clone(texts), func(s string) bool { return s == "" })
	slices.Sort(found)
	return slices.Compact(found)
}
