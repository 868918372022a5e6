package pvesim

import (
	"regexp"
	"sync"
)

// propertyFormats returns the keys of the property strings, by format, whose keys Proxmox's
// schema does not list.
var propertyFormats = sync.OnceValue(func() map[string]map[string]*schema {
	text := func() *schema { return &schema{Type: "string", Optional: true} }
	flag := func() *schema { return &schema{Type: "boolean", Optional: true} }
	matches := func(pattern string) *schema {
		return &schema{Type: "string", Optional: true, pattern: regexp.MustCompile("^(?:" + pattern + ")$")}
	}
	first := func(s *schema) *schema { s.DefaultKey = true; return s }
	return map[string]map[string]*schema{
		"pve-vm-cpu-conf": {
			"cputype":         first(matches(`[a-zA-Z0-9._-]+`)),
			"reported-model":  matches(`[a-zA-Z0-9._-]+`),
			"hidden":          flag(),
			"hv-vendor-id":    matches(`[a-zA-Z0-9]{1,12}`),
			"flags":           matches(`[+-][a-zA-Z0-9\-_.]+(;[+-][a-zA-Z0-9\-_.]+)*`),
			"phys-bits":       matches(`\d+|host`),
			"guest-phys-bits": {Type: "integer", Optional: true},
		},
		// qemu-server 9.2.6, PVE/QemuServer.pm:145-161
		"pve-qm-watchdog": {
			"model":  first(&schema{Type: "string", Enum: []string{"i6300esb", "ib700"}, Optional: true}),
			"action": {Type: "string", Enum: []string{"reset", "shutdown", "poweroff", "pause", "debug", "none"}, Optional: true},
		},
		"pve-qm-boot": {
			"legacy": first(matches(`[acdn]{1,4}`)),
			"order":  matches(`[a-z]+\d+(;[a-z]+\d+)*`),
		},
		"pve-qm-ipconfig": {
			"ip":  matches(`dhcp|\d+\.\d+\.\d+\.\d+/\d+`),
			"gw":  {Type: "string", Format: "ipv4", Optional: true, Requires: "ip"},
			"ip6": matches(`auto|dhcp|[0-9a-fA-F:.]+/\d+`),
			"gw6": matches(`[0-9a-fA-F:.]+`),
		},
		"pve-qm-smbios1": {
			"uuid":         matches(`[a-fA-F0-9]{8}(?:-[a-fA-F0-9]{4}){3}-[a-fA-F0-9]{12}`),
			"version":      text(),
			"serial":       text(),
			"manufacturer": text(),
			"product":      text(),
			"sku":          text(),
			"family":       text(),
			"base64":       flag(),
		},
		"pve-qm-cicustom": {
			"meta":    {Type: "string", Format: "pve-volume-id", Optional: true},
			"network": {Type: "string", Format: "pve-volume-id", Optional: true},
			"user":    {Type: "string", Format: "pve-volume-id", Optional: true},
			"vendor":  {Type: "string", Format: "pve-volume-id", Optional: true},
		},
		"pve-qm-hostpci": {
			"host":          first(matches(pciAddress + `(;` + pciAddress + `)*`)),
			"mapping":       {Type: "string", Format: "pve-configid", Optional: true},
			"rombar":        flag(),
			"romfile":       matches(`[^,;]+`),
			"pcie":          flag(),
			"x-vga":         flag(),
			"legacy-igd":    flag(),
			"mdev":          matches(`[^/\.:]+`),
			"vendor-id":     matches(`0x[0-9a-fA-F]{4}`),
			"device-id":     matches(`0x[0-9a-fA-F]{4}`),
			"sub-vendor-id": matches(`0x[0-9a-fA-F]{4}`),
			"sub-device-id": matches(`0x[0-9a-fA-F]{4}`),
			"driver":        {Type: "string", Enum: []string{"vfio", "keep"}, Optional: true},
		},
		"pve-qm-ide": {
			"file":  first(&schema{Type: "string", Format: "pve-volume-id-or-qm-path"}),
			"media": {Type: "string", Enum: []string{"cdrom", "disk"}, Optional: true},
			"size":  {Type: "string", Format: "disk-size", Optional: true},
		},
	}
})
