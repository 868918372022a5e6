package guestsim

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// system is the result of cloud-init.
type system struct {
	instance, hostname string
	files              map[string]file
	commands           [][]string
	// address is the first static address. It is the zero Addr if none is configured.
	address netip.Addr
}

func newSystem(documents Documents) (*system, error) {
	config, err := parseCloudConfig(documents.UserData, documents.VendorData)
	if err != nil {
		return nil, err
	}
	s := &system{files: config.files, commands: config.commands}
	if err := s.readMetaData(documents.MetaData); err != nil {
		return nil, fmt.Errorf("reading meta-data: %w", err)
	}
	if s.address, err = firstAddress(documents.NetworkConfig); err != nil {
		return nil, fmt.Errorf("reading network-config: %w", err)
	}
	return s, nil
}

func (s *system) readMetaData(document []byte) error {
	var meta struct {
		Instance string `yaml:"instance-id"`
		Hostname string `yaml:"local-hostname"`
	}
	if err := yaml.Unmarshal(document, &meta); err != nil {
		return err
	}
	if meta.Instance == "" || meta.Hostname == "" {
		return errors.New("instance-id and local-hostname are required")
	}
	s.instance, s.hostname = meta.Instance, meta.Hostname
	return nil
}

// startsKubelet reports whether a command starts kubelet: systemctl with start, restart or
// enable --now.
func (s *system) startsKubelet() bool {
	return slices.ContainsFunc(s.commands, func(words []string) bool {
		text := " " + strings.Join(words, " ") + " "
		starts := strings.Contains(text, "start ") || strings.Contains(text, " --now ")
		return strings.Contains(text, "systemctl ") && starts &&
			(strings.Contains(text, " kubelet ") || strings.Contains(text, " kubelet.service "))
	})
}

// network contains the keys of a network-config, version 1 or 2, that guests use.
type network struct {
	Version int `yaml:"version"`
	Config  []struct {
		Type    string `yaml:"type"`
		Name    string `yaml:"name"`
		Subnets []struct {
			Type    string `yaml:"type"`
			Address string `yaml:"address"`
		} `yaml:"subnets"`
	} `yaml:"config"`
	Ethernets map[string]struct {
		Addresses []string `yaml:"addresses"`
	} `yaml:"ethernets"`
}

// firstAddress returns the first static address of a network-config. An empty
// network-config means DHCP.
func firstAddress(document []byte) (netip.Addr, error) {
	var root struct {
		network `yaml:",inline"`
		Network *network `yaml:"network"`
	}
	if err := yaml.Unmarshal(document, &root); err != nil {
		return netip.Addr{}, err
	}
	config := root.network
	if root.Network != nil {
		config = *root.Network
	}
	switch {
	case strings.TrimSpace(string(document)) == "":
		return netip.Addr{}, nil
	case config.Version != 1 && config.Version != 2:
		return netip.Addr{}, fmt.Errorf("version is %d: cloud-init supports 1 and 2", config.Version)
	}
	addresses := config.addresses()
	if len(addresses) == 0 {
		return netip.Addr{}, nil
	}
	for _, address := range addresses {
		if _, err := parseAddress(address); err != nil {
			return netip.Addr{}, err
		}
	}
	return parseAddress(addresses[0])
}

// addresses returns the static addresses in document order; interfaces of version 2 are
// sorted by name.
func (n network) addresses() []string {
	var addresses []string
	for _, card := range n.Config {
		for _, subnet := range card.Subnets {
			if subnet.Address != "" {
				addresses = append(addresses, subnet.Address)
			}
		}
	}
	names := make([]string, 0, len(n.Ethernets))
	for name := range n.Ethernets {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		addresses = append(addresses, n.Ethernets[name].Addresses...)
	}
	return addresses
}

func parseAddress(text string) (netip.Addr, error) {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return prefix.Addr(), nil
	}
	address, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("address %q: %w", text, err)
	}
	return address, nil
}
