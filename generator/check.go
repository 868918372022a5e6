package generator

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// FieldError reports a value of a fleet that cannot be written, and what is valid
// instead.
type FieldError struct {
	// VM is the name of the VM that the value belongs to, or empty.
	VM string
	// Field is the path of the value, such as "tags[1]".
	Field string
	// Value is the invalid value, or empty if it must not be repeated.
	Value string
	// Problem says what is wrong and how to fix it.
	Problem string
}

// Error returns the field, its value and the problem in one line.
func (e *FieldError) Error() string {
	field := e.Field
	if e.VM != "" {
		field = "vm " + e.VM + ": " + field
	}
	if e.Value == "" {
		return field + ": " + e.Problem
	}
	return fmt.Sprintf("%s %q: %s", field, e.Value, e.Problem)
}

func refuse(field, value, problem string) error {
	if value == "" {
		problem = "is empty: " + problem
	}
	return &FieldError{Field: field, Value: value, Problem: problem}
}

// inVM adds the VM's name to an error about one of its fields.
func inVM(vm *fleet.VM, err error) error {
	var field *FieldError
	if errors.As(err, &field) {
		field.VM = vm.Name
	}
	return err
}

// The patterns of names in paths, HCL and Proxmox.
var (
	placeName  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	keyName    = regexp.MustCompile(`^[0-9a-f]{32}$`)
	moduleHash = regexp.MustCompile(`^[0-9a-f]{16}$`)
	cpuType    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	storage    = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]*$`)
	bridge     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	mac        = regexp.MustCompile(`^([0-9A-F][02468ACE](:[0-9A-F]{2}){5})?$`)
	tag        = regexp.MustCompile(`^[a-z0-9_][a-z0-9_+.-]*$`)
	pool       = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*){0,2}$`)
	group      = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{1,17}$`)
	optionName = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
)

// maxText bounds free text, which ends up in Proxmox' 8 KiB description.
const maxText = 1024

// checkText accepts one line of text that survives a round trip through HCL unchanged.
func checkText(field, value string) error {
	switch {
	case !utf8.ValidString(value):
		return refuse(field, value, "is not valid UTF-8: write plain text")
	case !norm.NFC.IsNormalString(value):
		return refuse(field, value, "is not in Unicode's normal form C, and HCL would change it: write it composed")
	case strings.IndexFunc(value, unprintable) >= 0:
		return refuse(field, value, "has a line break or another control character: write one line of plain text")
	case len(value) > maxText:
		return &FieldError{Field: field, Problem: fmt.Sprintf("has %d bytes: write at most %d", len(value), maxText)}
	case strings.TrimSpace(value) != value:
		return refuse(field, value, "begins or ends with a space, which Proxmox would cut off: remove it")
	}
	return nil
}

// unprintable reports whether r would break a comment line or be invisible in a diff.
func unprintable(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r)
}

func checkMatch(field, value string, pattern *regexp.Regexp, problem string) error {
	if pattern.MatchString(value) {
		return nil
	}
	return refuse(field, value, problem)
}

// first returns the first error.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func checkFleet(f *fleet.Fleet) error {
	if err := first(fleet.CheckClusterID(f.ClusterID), checkBackend(f.Backend)); err != nil {
		return err
	}
	regions := map[topology.RegionName]bool{}
	for _, region := range f.Regions {
		if err := checkRegion(region); err != nil {
			return err
		}
		if regions[region.Name] {
			return refuse("region", string(region.Name), "stands twice: each Proxmox cluster needs a name of its own")
		}
		regions[region.Name] = true
	}
	for _, host := range f.Hosts {
		if !regions[host.Region] {
			return refuse("host "+host.String(), string(host.Region), "is not a region of the fleet: add it to clusters in numaform.yaml")
		}
		if err := checkHost(host.Host); err != nil {
			return err
		}
	}
	return checkVMs(f)
}

const placeProblem = "names a directory: want at most 63 of letters, digits, '.', '_' and '-', " +
	"beginning and ending with a letter or digit"

func checkRegion(region fleet.Region) error {
	name := string(region.Name)
	if name == modulesDir || strings.Contains(name, "..") {
		return refuse("region", name, "is a name that the fleet's directory needs itself: name the region otherwise")
	}
	return first(
		checkMatch("region", name, placeName, placeProblem),
		checkEndpoint("region "+name+": endpoint", region.Endpoint),
	)
}

func checkHost(name topology.HostName) error {
	if name == templatesDir || strings.Contains(string(name), "..") {
		return refuse("host", string(name), "is a name that the fleet's directory needs itself: rename the host")
	}
	return checkMatch("host", string(name), placeName, placeProblem)
}

// checkEndpoint accepts a URL in the provider's form, or "" if the engine's environment
// names one of several endpoints. It does not repeat a value that contains a password.
func checkEndpoint(field, value string) error {
	if value == "" {
		return nil
	}
	if hasUserinfo(value) {
		return &FieldError{Field: field, Problem: "has a user or password in it: " +
			"remove them and set PROXMOX_VE_API_TOKEN, or PROXMOX_VE_USERNAME and PROXMOX_VE_PASSWORD"}
	}
	parsed, err := url.Parse(value)
	if err != nil || parsed.Scheme != "https" || parsed.Host == "" ||
		strings.Trim(parsed.Path, "/") != "" || parsed.RawQuery != "" || parsed.Fragment != "" {
		return refuse(field, value, "want https://host:port/ without a path, such as https://pve-1.example:8006/")
	}
	return checkText(field, value)
}

// checkVMs checks each VM, and that VMs do not share what must be unique.
func checkVMs(f *fleet.Fleet) error {
	owners := map[string]string{}
	for i := range f.VMs {
		vm := &f.VMs[i]
		if err := first(checkVM(vm), checkSeed(f.ClusterID, vm)); err != nil {
			return err
		}
		for _, unique := range []struct{ field, value string }{
			{"name", vm.Name}, {"key", string(vm.Key)}, {"vmid", fmt.Sprintf("%s/%d", vm.Host.Region, vm.VMID)},
		} {
			id := unique.field + " " + unique.value
			if other, taken := owners[id]; taken {
				return inVM(vm, refuse(unique.field, unique.value, fmt.Sprintf("is that of vm %s too: "+
					"reserve another VMID; regions need a vmid_range each that do not overlap", other)))
			}
			owners[id] = vm.Name
		}
	}
	return nil
}
