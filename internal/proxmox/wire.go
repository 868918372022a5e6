package proxmox

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// number is a JSON number that Proxmox may send as a string or a Boolean.
type number float64

var errNoNumber = errors.New("must be a number")

// UnmarshalJSON decodes 2, "2", true and null.
func (n *number) UnmarshalJSON(data []byte) error {
	text := strings.Trim(string(data), `"`)
	switch text {
	case "true":
		*n = 1
		return nil
	case "false", "null", "":
		*n = 0
		return nil
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return errNoNumber
	}
	*n = number(value)
	return nil
}

func (n number) mib() int64 { return int64(n) >> 20 }

// values is an object whose values are decoded as text. Lists and objects in it remain
// JSON.
type values map[string]string

// UnmarshalJSON decodes numbers, strings and Booleans alike.
func (v *values) UnmarshalJSON(data []byte) error {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	*v = make(values, len(raw))
	for key, value := range raw {
		var text string
		if json.Unmarshal(value, &text) != nil {
			text = string(value)
		}
		(*v)[key] = text
	}
	return nil
}

// is reports whether an option is enabled.
func (v values) is(key string) bool { return v[key] == "1" || v[key] == "true" }

// mostCount is the largest number of cores or sockets. Proxmox stores any number, even if the
// guest cannot start with it.
const mostCount = 1 << 16

// count returns the non-negative integer at key, at most mostCount, or fallback if the key is
// missing, empty or null.
func (v values) count(key string, fallback int) (int, error) {
	text, ok := v[key]
	if !ok || text == "" || text == "null" {
		return fallback, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil && !errors.Is(err, strconv.ErrRange) || n < 0 {
		return 0, fmt.Errorf("%s %.64q: must be a non-negative integer", key, text)
	}
	return min(n, mostCount), nil
}

// member is an element of /cluster/status: the cluster itself or a host.
type member struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	Online  number `json:"online"`
	Quorate number `json:"quorate"`
}

// States of guests and hosts in lists.
const (
	statusRunning = "running"
	statusStopped = "stopped"
	nodeOnline    = "online"
)

// hostStatus is the part of /nodes/{node}/status that this package reads.
type hostStatus struct {
	CPUInfo struct {
		Model   string `json:"model"`
		Sockets number `json:"sockets"`
		Cores   number `json:"cores"`
		CPUs    number `json:"cpus"`
	} `json:"cpuinfo"`
	Memory struct {
		Total number `json:"total"`
	} `json:"memory"`
	Kernel struct {
		Machine string `json:"machine"`
	} `json:"current-kernel"`
	PVEVersion string `json:"pveversion"`
}

// list splits a Proxmox list, whose separators are commas, semicolons or spaces, and
// sorts it. It returns nil for an empty list.
func list(text string) []string {
	fields := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(",; ", r) })
	if len(fields) == 0 {
		return nil
	}
	slices.Sort(fields)
	return fields
}
