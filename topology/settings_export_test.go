package topology

import "fmt"

// Print returns the settings as JSON. Equal settings yield identical bytes.
func (s Settings) Print() ([]byte, error) {
	hosts := s.hosts
	if hosts == nil {
		hosts = map[RegionName]map[HostName]hostSettings{}
	}
	text, err := printJSON(hosts)
	if err != nil {
		return nil, fmt.Errorf("printing settings: %w", err)
	}
	return text, nil
}
