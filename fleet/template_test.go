package fleet_test

import (
	"strings"
	"testing"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// TestTemplateName checks which changes are another template.
func TestTemplateName(t *testing.T) {
	t.Parallel()
	image := fleet.TemplateImage{URL: "https://a/b", Checksum: "AB", Algorithm: "md5", Format: "raw", Storage: "local"}
	name := func(image fleet.TemplateImage, hardware fleet.TemplateHardware) string {
		got, err := fleet.TemplateName("debian", image, &hardware)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	was := name(image, fleet.TemplateHardware{DiskGiB: 10})
	if !strings.HasPrefix(was, "debian-") || len(was) != len("debian-01234567") {
		t.Errorf("name %q", was)
	}
	moved := fleet.TemplateImage{URL: "https://mirror/b", Checksum: "ab", Algorithm: "md5", Format: "raw", Storage: "nfs", Insecure: true}
	if got := name(moved, fleet.TemplateHardware{DiskGiB: 10}); got != was {
		t.Errorf("another URL or storage of the same image is another template: %s, not %s", got, was)
	}
	other := image
	other.Checksum = "cd"
	if name(other, fleet.TemplateHardware{DiskGiB: 10}) == was || name(image, fleet.TemplateHardware{DiskGiB: 11}) == was {
		t.Error("another image or other hardware is the same template")
	}
}

// TestTemplateMarker checks that markers are read back, and that other lines are none.
func TestTemplateMarker(t *testing.T) {
	t.Parallel()
	want := topology.MadeFor{ClusterID: "prod", Template: "debian-13", Serial: 2}
	line := fleet.TemplateMarker(want)
	if got, ok := fleet.ParseTemplateMarker("text\n" + line + "\r\n"); !ok || got != want {
		t.Errorf("read %+v, %v from %q", got, ok, line)
	}
	for _, text := range []string{"", line + "\n" + line, line + " x", strings.Replace(line, "/1", "/2", 1), strings.Replace(line, "=2", "=0", 1), " " + line} {
		if got, ok := fleet.ParseTemplateMarker(text); ok {
			t.Errorf("%q is the marker of %+v", text, got)
		}
	}
	if _, ok := fleet.ParseMarker(line); ok {
		t.Error("the marker of a template is also the marker of a VM")
	}
}
