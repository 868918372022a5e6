package pvesim

import "strings"

// parseNet parses a network card; a missing MAC address is generated.
func (s *Server) parseNet(vmid int, key, text string) (map[string]string, *apiError) {
	props, err := parsePropertyString(s.options()[key].Properties, text)
	if err != nil {
		return nil, oneParamError(key, "invalid format - %s\n", err)
	}
	if props["macaddr"] == "" {
		s.state.mu.Lock()
		props["macaddr"] = s.state.mac(vmid, key)
		s.state.mu.Unlock()
	}
	return props, nil
}

// printNet prints a network card as model=MAC with the other keys sorted.
func printNet(props map[string]string) string {
	rest := map[string]string{"": props["model"] + "=" + strings.ToUpper(props["macaddr"])}
	for key, val := range props {
		if key != "model" && key != "macaddr" {
			rest[key] = val
		}
	}
	return printPropertyString(rest, "")
}

// checkBridge requires SDN.Use on a network card's bridge or, if the card has a VLAN tag,
// on this VLAN of the bridge.
func (a *access) checkBridge(who identity, props map[string]string) *apiError {
	if who.isRoot() || props["bridge"] == "" {
		return nil
	}
	path := "/sdn/zones/localnetwork/" + props["bridge"]
	if props["tag"] != "" {
		path += "/" + props["tag"]
	}
	return a.check(who, path, "SDN.Use")
}
