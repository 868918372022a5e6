package guestsim

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// file is a file written by cloud-init.
type file struct {
	content string
	mode    fs.FileMode
}

// cloudConfig contains the simulated keys of a #cloud-config.
type cloudConfig struct {
	files    map[string]file
	commands [][]string
}

// writeFile is an entry of write_files.
type writeFile struct {
	Path        string    `yaml:"path"`
	Content     *string   `yaml:"content"`
	Encoding    string    `yaml:"encoding"`
	Owner       string    `yaml:"owner"`
	Permissions yaml.Node `yaml:"permissions"`
	Append      bool      `yaml:"append"`
	Defer       bool      `yaml:"defer"`
}

// otherKeys returns the keys of a #cloud-config that guests accept and ignore, because they
// do not affect how a node joins:
// https://docs.cloud-init.io/en/latest/reference/modules.html.
func otherKeys() []string {
	return []string{
		"apt", "apt_pipelining", "bootcmd", "byobu_by_default", "ca_certs", "chpasswd", "create_hostname_file", "device_aliases",
		"disable_ec2_metadata", "disable_root", "disable_root_opts", "disk_setup", "final_message", "fqdn", "fs_setup", "groups",
		"growpart", "hostname", "keyboard", "locale", "locale_configfile", "manage_etc_hosts", "manage_resolv_conf", "merge_how",
		"merge_type", "mount_default_fields", "mounts", "no_ssh_fingerprints", "ntp", "output", "package_reboot_if_required",
		"package_update", "package_upgrade", "packages", "password", "phone_home", "power_state", "prefer_fqdn_over_hostname",
		"preserve_hostname", "random_seed", "reporting", "resize_rootfs", "resolv_conf", "rsyslog", "snap", "ssh", "ssh_authorized_keys",
		"ssh_deletekeys", "ssh_genkeytypes", "ssh_import_id", "ssh_keys", "ssh_publish_hostkeys", "ssh_pwauth", "ssh_quiet_keygen",
		"swap", "system_info", "timezone", "updates", "user", "users", "vendor_data", "wireguard", "yum_repos", "zypper",
	}
}

// parseCloudConfig merges user-data and vendor-data. Keys of user-data take precedence.
func parseCloudConfig(userData, vendorData []byte) (cloudConfig, error) {
	keys, err := topLevel("user-data", userData)
	if err != nil {
		return cloudConfig{}, err
	}
	if len(bytes.TrimSpace(vendorData)) > 0 {
		below, err := topLevel("vendor-data", vendorData)
		if err != nil {
			return cloudConfig{}, err
		}
		for key, node := range below {
			if _, said := keys[key]; !said {
				keys[key] = node
			}
		}
	}
	config := cloudConfig{files: map[string]file{}}
	files, commands := keys["write_files"], keys["runcmd"]
	return config, errors.Join(config.addFiles(&files), config.addCommands(&commands))
}

// topLevel returns the top-level keys of a document. Unknown keys are errors.
func topLevel(name string, document []byte) (map[string]yaml.Node, error) {
	first, _, _ := strings.Cut(string(document), "\n")
	if strings.TrimSpace(first) != "#cloud-config" {
		return nil, fmt.Errorf("reading %s: its first line is %q, not #cloud-config", name, first)
	}
	keys := map[string]yaml.Node{}
	if err := yaml.Unmarshal(document, &keys); err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	known := append(otherKeys(), "write_files", "runcmd")
	for key := range keys {
		if !slices.Contains(known, key) {
			return nil, fmt.Errorf("reading %s: unknown key %q", name, key)
		}
	}
	return keys, nil
}

func (c *cloudConfig) addFiles(node *yaml.Node) error {
	if node.IsZero() {
		return nil
	}
	if node.Kind != yaml.SequenceNode {
		return errors.New("reading write_files: must be a list")
	}
	for i, entry := range node.Content {
		text, err := yaml.Marshal(entry)
		if err != nil {
			return fmt.Errorf("reading write_files[%d]: %w", i, err)
		}
		var wanted writeFile
		decoder := yaml.NewDecoder(bytes.NewReader(text))
		decoder.KnownFields(true)
		if err := decoder.Decode(&wanted); err != nil {
			return fmt.Errorf("reading write_files[%d]: %w", i, err)
		}
		if err := c.addFile(wanted); err != nil {
			return fmt.Errorf("reading write_files[%d] (%s): %w", i, wanted.Path, err)
		}
	}
	return nil
}

func (c *cloudConfig) addFile(wanted writeFile) error {
	if !path.IsAbs(wanted.Path) {
		return errors.New("path must be absolute")
	}
	content, err := wanted.decoded()
	if err != nil {
		return err
	}
	mode, err := wanted.mode()
	if err != nil {
		return err
	}
	if wanted.Append {
		content = c.files[wanted.Path].content + content
	}
	c.files[wanted.Path] = file{content: content, mode: mode}
	return nil
}

// decoded returns the content to write to the disk.
func (w writeFile) decoded() (string, error) {
	if w.Content == nil {
		return "", nil
	}
	encoding := strings.ReplaceAll(strings.ReplaceAll(strings.ToLower(w.Encoding), "gzip", "gz"), "base64", "b64")
	content := []byte(*w.Content)
	var err error
	switch encoding {
	case "", "text/plain":
		return *w.Content, nil
	case "b64", "gz+b64":
		// Python's decoder, which the real cloud-init uses, skips white space.
		if content, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(*w.Content), "")); err != nil {
			return "", err
		}
	case "gz":
	default:
		return "", fmt.Errorf("unknown encoding %q", w.Encoding)
	}
	if encoding == "b64" {
		return string(content), nil
	}
	reader, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		return "", err
	}
	content, err = io.ReadAll(reader)
	return string(content), err
}

// mode returns the permissions. Text is parsed as octal; a number keeps its YAML value.
func (w writeFile) mode() (fs.FileMode, error) {
	if w.Permissions.IsZero() || w.Permissions.Tag == "!!null" {
		return 0o644, nil
	}
	if w.Permissions.Tag == "!!str" {
		bits, err := strconv.ParseUint(w.Permissions.Value, 8, 12)
		if err != nil {
			return 0, fmt.Errorf("permissions: %w", err)
		}
		return fs.FileMode(bits), nil
	}
	var number uint32
	if err := w.Permissions.Decode(&number); err != nil {
		return 0, fmt.Errorf("permissions: %w", err)
	}
	return fs.FileMode(number), nil
}

// addCommands adds the entries of runcmd: each is a shell command line or a list of words.
func (c *cloudConfig) addCommands(node *yaml.Node) error {
	if node.IsZero() {
		return nil
	}
	if node.Kind != yaml.SequenceNode {
		return errors.New("reading runcmd: must be a list")
	}
	for i, entry := range node.Content {
		var words []string
		if entry.Kind == yaml.ScalarNode {
			words = strings.Fields(entry.Value)
		} else if err := entry.Decode(&words); err != nil {
			return fmt.Errorf("reading runcmd[%d]: %w", i, err)
		}
		c.commands = append(c.commands, words)
	}
	return nil
}
