package pvesim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// firstTemplate is the VMID of the template that LoadHosts adds to the host of the first
// file, if the file contains a machine. Each later file has the next VMID.
const firstTemplate = 9001

// LoadHosts reads one host from each JSON file of a directory. A file contains a Host, or a
// machine in the format of `numaform topology collect`. For a machine, the file's base name
// is the host's name, and the host gets a template with the given name. Hosts without a
// region get the given region.
func LoadHosts(dir string, region string, template string) ([]Host, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("reading hosts in %s: %w", dir, err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("reading hosts in %s: no *.json file found: add one file per host", dir)
	}
	var hosts []Host
	for i, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading host: %w", err)
		}
		host, err := parseHost(data, bareTemplate(firstTemplate+i, template))
		if err != nil {
			return nil, fmt.Errorf("reading host %s: %w", file, err)
		}
		if host.Name == "" {
			host.Name = strings.TrimSuffix(filepath.Base(file), ".json")
		}
		if host.Region == "" {
			host.Region = region
		}
		hosts = append(hosts, host)
	}
	return hosts, nil
}

func parseHost(data []byte, template Template) (Host, error) {
	file := struct {
		Format *int `json:"format"`
		Host
	}{}
	if err := json.Unmarshal(data, &file); err != nil {
		return Host{}, fmt.Errorf("parsing json: %w", err)
	}
	if len(file.CPUs) == 0 {
		return Host{}, errors.New("cpus is empty: add at least one CPU")
	}
	if file.Format != nil {
		file.Templates = []Template{template}
	}
	return file.Host, nil
}

// bareTemplate returns a template like one that a user creates from a cloud image.
func bareTemplate(vmid int, name string) Template {
	return Template{
		VMID: vmid, Name: name, DiskInterface: "scsi0", DiskGiB: 30, Storage: "local-lvm",
		Options: map[string]string{
			"scsihw": "virtio-scsi-single", "ostype": "l26", "agent": "enabled=1", "serial0": "socket", "boot": "order=scsi0",
		},
	}
}
