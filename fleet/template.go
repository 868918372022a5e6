package fleet

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/numaform/numaform/topology"
)

// Template is a VM template that numaform creates on a host from a disk image, for a
// ProxmoxTemplate.
type Template struct {
	// Of is the name of the ProxmoxTemplate.
	Of string `json:"of"`
	// Serial orders the templates of a ProxmoxTemplate: of those that are ready and that a
	// host can clone, the highest one is cloned.
	Serial int `json:"serial"`
	// Name is the template's name in Proxmox: see TemplateName.
	Name string          `json:"name"`
	VMID VMID            `json:"vmid"`
	Host topology.HostID `json:"host"`

	Image    TemplateImage    `json:"image"`
	Hardware TemplateHardware `json:"hardware"`

	Tags []string `json:"tags,omitempty"`
	Pool string   `json:"pool,omitempty"`
	// Module is the content hash of the module that the template's file calls; empty means
	// the module embedded in this numaform.
	Module string `json:"module"`
}

// TemplateImage is the disk image from which a template is created.
type TemplateImage struct {
	URL      string `json:"url"`
	Checksum string `json:"checksum"`
	// Algorithm is md5, sha1, sha224, sha256, sha384 or sha512.
	Algorithm string `json:"algorithm"`
	// Format is qcow2, raw or vmdk.
	Format string `json:"format"`
	// Storage is the storage that keeps the image. It has the content type import.
	Storage string `json:"storage"`
	// Insecure downloads the image without verifying the certificate of its server.
	Insecure bool `json:"insecure,omitempty"`
}

// TemplateHardware is the part of a template that its clones inherit. Another value requires
// another template.
type TemplateHardware struct {
	// Storage is the storage of the template's disks, and DiskGiB the size of the boot
	// disk.
	Storage string `json:"storage"`
	DiskGiB int64  `json:"disk_gib"`
	Cache   string `json:"cache,omitempty"`
	// NoDiscard keeps freed blocks of the guest allocated on the storage.
	NoDiscard bool `json:"no_discard,omitempty"`
	SSD       bool `json:"ssd,omitempty"`

	Machine    string    `json:"machine,omitempty"`
	BIOS       string    `json:"bios,omitempty"`
	SecureBoot bool      `json:"secure_boot,omitempty"`
	TPM        string    `json:"tpm,omitempty"`
	CPUType    string    `json:"cpu_type,omitempty"`
	CPUFlags   []string  `json:"cpu_flags,omitempty"`
	AgentType  string    `json:"agent_type,omitempty"`
	Trim       bool      `json:"trim,omitempty"`
	VGA        string    `json:"vga,omitempty"`
	VGAMiB     int64     `json:"vga_mib,omitempty"`
	Networks   []Network `json:"networks,omitempty"`
}

// templateHash is the number of hexadecimal digits of the hash in a template's name. The name
// is a DNS label, so that of a ProxmoxTemplate has at most 63 - 1 - 8 characters (CRD).
const templateHash = 8

// TemplateName returns the name of a template in Proxmox. It contains a hash of the image's
// content and of the hardware, so that another image or other hardware is another template.
func TemplateName(of string, image TemplateImage, hardware *TemplateHardware) (string, error) {
	content, err := json.Marshal(struct {
		Checksum, Algorithm, Format string
		Hardware                    *TemplateHardware
	}{strings.ToLower(image.Checksum), image.Algorithm, image.Format, hardware})
	if err != nil {
		return "", fmt.Errorf("deriving the name of a template of %s: %w", of, err)
	}
	sum := sha256.Sum256(content)
	return of + "-" + hex.EncodeToString(sum[:])[:templateHash], nil
}

// templateMarkerPattern matches the line in a template's description that identifies its
// owner.
var templateMarkerPattern = regexp.MustCompile(
	`^numaform-template/1 cluster=([a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?) template=([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?) serial=([1-9][0-9]{0,8})$`,
)

// TemplateMarker returns the line that identifies a template's owner, for example
//
//	numaform-template/1 cluster=prod template=debian-13 serial=2
func TemplateMarker(made topology.MadeFor) string {
	return fmt.Sprintf("numaform-template/1 cluster=%s template=%s serial=%d", made.ClusterID, made.Template, made.Serial)
}

// ParseTemplateMarker returns the owner in a template's description. It returns false if the
// description has no marker of a template, or several: the template is then unmanaged.
func ParseTemplateMarker(description string) (topology.MadeFor, bool) {
	var made topology.MadeFor
	found := 0
	for line := range strings.Lines(description) {
		line = strings.TrimRight(line, "\r\n")
		if !strings.HasPrefix(line, "numaform-template/") {
			continue
		}
		found++
		fields := templateMarkerPattern.FindStringSubmatch(line)
		if fields == nil {
			return topology.MadeFor{}, false
		}
		serial, _ := strconv.Atoi(fields[3]) // at most nine digits
		made = topology.MadeFor{ClusterID: fields[1], Template: fields[2], Serial: serial}
	}
	return made, found == 1
}

// MadeFor returns the owner of the template in its marker.
func (t *Template) MadeFor(clusterID string) topology.MadeFor {
	return topology.MadeFor{ClusterID: clusterID, Template: t.Of, Serial: t.Serial}
}

// ImageVolume returns the volume of the template's image.
func (t *Template) ImageVolume() string {
	return fmt.Sprintf("%s:import/template-%d.%s", t.Image.Storage, t.VMID, t.Image.Format)
}

// SortTemplates sorts templates by host and VMID.
func SortTemplates(templates []Template) {
	slices.SortFunc(templates, func(a, b Template) int {
		return cmp.Or(a.Host.Compare(b.Host), cmp.Compare(a.VMID, b.VMID))
	})
}
