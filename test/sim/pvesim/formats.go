package pvesim

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

var (
	configIDText  = regexp.MustCompile(`^(?i:[a-z][a-z0-9_-]+)$`)
	storageIDText = regexp.MustCompile(`^(?i:[a-z][a-z0-9\-_.]*[a-z0-9])$`)
	vmidText      = regexp.MustCompile(`^[1-9][0-9]{2,8}$`)
	nodeText      = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?$`)
	dnsNameText   = regexp.MustCompile(`^([a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?\.)*[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?$`)
	tagText       = regexp.MustCompile(`^(?i:[a-z0-9_][a-z0-9_\-+.]*)$`)
	poolText      = regexp.MustCompile(`^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+){0,2}$`)
	bridgeText    = regexp.MustCompile(`^[-_.\w]+$`)
	ifaceText     = regexp.MustCompile(`^(?i:[a-z][a-z0-9_]{1,20}([:.]\d+)?)$`)
	macText       = regexp.MustCompile(`^(?i:[a-f0-9][02468ace](:[a-f0-9]{2}){5})$`)
	urlencText    = regexp.MustCompile(`^[-%a-zA-Z0-9_.!~*'()]*$`)
	volumeText    = regexp.MustCompile(`^(?i:[a-z][a-z0-9\-_.]*[a-z0-9]):\S+$`)
	newDiskText   = regexp.MustCompile(`^(?:([^/:\s]+):)?(\d+(\.\d+)?)$`)
	sizeText      = regexp.MustCompile(`^(\d+(\.\d+)?)([KMGT])?$`)
	cpusetPart    = regexp.MustCompile(`^\s*(\d+)(?:-(\d+))?\s*$`)
	userText      = regexp.MustCompile(`^[^\s:/]+@[A-Za-z][A-Za-z0-9._-]+$`)
	roleText      = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
	tokenText     = regexp.MustCompile(`^[^\s:/]+@[A-Za-z][A-Za-z0-9._-]+![A-Za-z][A-Za-z0-9._-]+$`)
	privText      = regexp.MustCompile(`^[A-Z][A-Za-z]+(\.[A-Za-z]+)+$`)
)

// checkFormat checks text against the schema's format, or as a property string. Errors
// inside a property string also name the parameter (pve-common 9.2.1,
// PVE/JSONSchema.pm:1141-1145).
func (s *schema) checkFormat(path, text string) error {
	keys := s.Properties
	if keys == nil {
		keys = propertyFormats()[s.Format]
	}
	if keys != nil {
		_, err := parsePropertyString(keys, text)
		var inside *formatError
		if errors.As(err, &inside) {
			inside.path = path + "."
		}
		return err
	}
	if s.Format == "" {
		return nil
	}
	if name, isList := strings.CutSuffix(s.Format, "-list"); isList && simpleFormats()[name] != nil {
		for _, item := range splitList(text) {
			if err := simpleFormats()[name](item); err != nil {
				return err
			}
		}
		return nil
	}
	if check := simpleFormats()[s.Format]; check != nil {
		return check(text)
	}
	return nil
}

// knownFormat reports whether the format is checked, or known to accept any text.
func knownFormat(name string) bool {
	base, _ := strings.CutSuffix(name, "-list")
	return simpleFormats()[name] != nil || simpleFormats()[base] != nil || propertyFormats()[name] != nil || unchecked(name)
}

// unchecked reports whether a format is only used by options that numaform never writes.
// Such a format accepts any text.
func unchecked(name string) bool {
	switch name {
	case "pve-acme-alias", "pve-acme-domain", "pve-acme-domain-list", "pve-node-location",
		"pve-fw-addr-spec", "pve-fw-dport-spec", "pve-fw-icmp-type-spec", "pve-fw-protocol-spec", "pve-fw-sport-spec",
		"pve-qemu-sev-fmt", "pve-qemu-tdx-fmt", "pve-qm-rng",
		"pve-realm", "pve-task-status-type-list", "storage-pair-list", "string-list":
		return true
	}
	return false
}

// splitList splits as PVE::Tools::split_list does.
func splitList(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(",; \t\n\r\x00", r) })
}

// matching returns a function that checks values against a pattern. Its error is message,
// with %s replaced by the value.
func matching(re *regexp.Regexp, message string) func(string) error {
	return func(text string) error {
		if re.MatchString(text) {
			return nil
		}
		return errors.New(strings.ReplaceAll(message, "%s", text))
	}
}

func verifyNodeName(text string) error {
	return matching(nodeText, "value does not look like a valid node name")(text)
}

// simpleFormats returns the checks of formats of single values, by name.
func simpleFormats() map[string]func(string) error { return simpleFormatTable }

var simpleFormatTable = map[string]func(string) error{
	"pve-configid":   matching(configIDText, "invalid configuration ID '%s'"),
	"pve-storage-id": matching(storageIDText, "storage ID '%s' contains illegal characters"),
	"pve-bridge-id":  matching(bridgeText, "invalid bridge ID '%s'"),
	"pve-vmid":       matching(vmidText, "value does not look like a valid VM ID"),
	"pve-node":       verifyNodeName,
	"pve-poolid":     verifyPool,
	"pve-tag":        matching(tagText, "invalid characters in tag"),
	"pve-iface":      matching(ifaceText, "invalid network interface name '%s'"),
	"pve-priv":       matching(privText, "invalid privilege '%s'"),
	"pve-userid":     matching(userText, "value '%s' does not look like a valid user name"),
	"pve-roleid":     matching(roleText, "role name '%s' contains invalid characters"),
	"pve-tokenid":    matching(tokenText, "value '%s' does not look like a valid token ID"),
	"mac-addr":       matching(macText, "value does not look like a valid unicast MAC address"),
	"dns-name":       matching(dnsNameText, "value does not look like a valid DNS name"),
	"urlencoded":     matching(urlencText, "invalid urlencoded string: %s"),
	"disk-size":      matching(sizeText, "value does not look like a valid disk size: %s"),
	"pve-volume-id":  matching(volumeText, "unable to parse volume ID '%s'"),
	"pve-cpuset":     verifyCPUSet,
	"ipv4":           verifyIPv4,
	"address":        verifyAddress,
	"CIDR":           verifyCIDR,
	"pve-storage-content": func(text string) error {
		if holds([]string{"images", "rootdir", "iso", "vztmpl", "backup", "snippets", "import"}, text) {
			return nil
		}
		return fmt.Errorf("invalid content type '%s'", text)
	},
	"pve-volume-id-or-qm-path":       verifyVolumeOrPath,
	"pve-volume-id-or-absolute-path": verifyVolumeOrPath,
	"pve-startup-order": matching(regexp.MustCompile(`^((order=)?\d+|up=\d+|down=\d+)(,((order=)?\d+|up=\d+|down=\d+))*$`),
		"unable to parse startup options"),
	"pve-ha-resource-or-vm-id": matching(regexp.MustCompile(`^([a-z]+:\S+|\d+)$`), "value does not look like a valid ha resource id"),
	"pve-hotplug-features":     verifyHotplug,
	"pve-qm-bootdisk":          matching(regexp.MustCompile(`^(ide|scsi|virtio|sata|efidisk|tpmstate)\d+$`), "invalid boot disk '%s'"),
}

// verifyHotplug checks the list of hot-pluggable features (qemu-server 9.2.6,
// PVE/QemuServer.pm:1136-1165).
func verifyHotplug(text string) error {
	if text == "0" || text == "1" {
		return nil
	}
	for _, feature := range splitList(text) {
		if !holds([]string{"network", "disk", "cpu", "memory", "usb", "cloudinit"}, feature) {
			return fmt.Errorf("invalid hotplug feature '%s'", feature)
		}
	}
	return nil
}

// verifyCPUSet checks an affinity; CPU IDs have no upper limit. The error gives no details:
// qemu-server 9.2.6 src/PVE/QemuServer.pm:885-896.
func verifyCPUSet(text string) error {
	for part := range strings.SplitSeq(text, ",") {
		m := cpusetPart.FindStringSubmatch(part)
		if m == nil {
			return errors.New("unable to parse cpuset option")
		}
		low, _ := strconv.Atoi(m[1])
		if high, err := strconv.Atoi(m[2]); err == nil && high < low {
			return errors.New("unable to parse cpuset option")
		}
	}
	return nil
}

// verifyPool checks the name of a pool, as verify_poolname does (pve-access-control 9.1.1,
// src/PVE/AccessControl.pm:1353).
func verifyPool(text string) error {
	if strings.Count(text, "/") > 2 {
		return fmt.Errorf("pool name '%s' nested too deeply (max levels = 3)", text)
	}
	return matching(poolText, "pool name '%s' contains invalid characters")(text)
}

func verifyIPv4(text string) error {
	if addr, err := netip.ParseAddr(text); err != nil || !addr.Is4() {
		return errors.New("value does not look like a valid IPv4 address")
	}
	return nil
}

func verifyAddress(text string) error {
	if _, err := netip.ParseAddr(text); err != nil && !dnsNameText.MatchString(text) {
		return fmt.Errorf("value does not look like a valid address: %s", text)
	}
	return nil
}

func verifyCIDR(text string) error {
	prefix, err := netip.ParsePrefix(text)
	if err != nil || prefix.Bits() < 8 {
		return errors.New("value does not look like a valid CIDR network")
	}
	return nil
}

// verifyVolumeOrPath checks the file of a drive.
func verifyVolumeOrPath(text string) error {
	if text == "none" || text == "cdrom" || strings.HasPrefix(text, "/") || newDiskText.MatchString(text) || volumeText.MatchString(text) {
		return nil
	}
	return fmt.Errorf("unable to parse volume ID '%s'", text)
}
