package main

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// sboms writes an SPDX document for each archive, Debian package and image. The packages of a
// document are the modules that the Go linker recorded in the programs.
func (c *config) sboms() error {
	type artifact struct {
		name     string
		programs []string
	}
	var artifacts []artifact
	for _, platform := range platforms {
		dir := filepath.Join(c.programs, platform)
		artifacts = append(artifacts, artifact{c.archiveName("numaform", platform), []string{filepath.Join(dir, "numaform")}})
		arch, linux := strings.CutPrefix(platform, "linux_")
		if !linux {
			continue
		}
		agent := []string{filepath.Join(dir, "numaform-agent")}
		artifacts = append(artifacts, artifact{c.archiveName("numaform-agent", platform), agent})
		packages, err := filepath.Glob(filepath.Join(c.out, "numaform-agent_*_"+arch+".deb"))
		if err != nil || len(packages) != 1 {
			return fmt.Errorf("found %d Debian packages for %s, want one (%w)", len(packages), arch, err)
		}
		image := filepath.Join(c.image, arch)
		artifacts = append(
			artifacts,
			artifact{filepath.Base(packages[0]), agent},
			artifact{"numaform-image_" + c.version + "_" + platform, []string{
				filepath.Join(image, "numaform"), filepath.Join(image, "tofu"), filepath.Join(image, "terraform-provider-proxmox"),
			}},
		)
	}
	for _, a := range artifacts {
		document, err := c.document(a.name, a.programs)
		if err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		var text bytes.Buffer
		if err := json.Write(document, &text, json.Indent("  ")); err != nil {
			return err
		}
		if err := c.write("sbom/"+a.name+".spdx.json", text.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// noAssertion is SPDX's value for unknown.
const noAssertion = "NOASSERTION"

// document returns the SPDX document of an artifact that contains programs.
func (c *config) document(name string, programs []string) (*v2_3.Document, error) {
	document := &v2_3.Document{
		SPDXVersion:       v2_3.Version,
		DataLicense:       v2_3.DataLicense,
		SPDXIdentifier:    "DOCUMENT",
		DocumentName:      name,
		DocumentNamespace: "https://github.com/numaform/numaform/spdx/" + c.version + "/" + c.commit + "/" + name,
		CreationInfo: &v2_3.CreationInfo{
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "numaform-release"}},
			Created:  c.epoch.Format(time.RFC3339),
		},
		Packages: []*v2_3.Package{spdxPackage("artifact", name, c.version)},
	}
	relate := func(from, kind, to string) {
		document.Relationships = append(document.Relationships, &v2_3.Relationship{
			RefA: common.MakeDocElementID("", from), RefB: common.MakeDocElementID("", to), Relationship: kind,
		})
	}
	relate("DOCUMENT", common.TypeRelationshipDescribe, "artifact")
	known := map[string]bool{}
	add := func(path, version string) string {
		id := spdxID(path, version)
		if !known[id] {
			known[id] = true
			document.Packages = append(document.Packages, goPackage(id, path, version))
		}
		return id
	}
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return nil, err
		}
		main, version := mainModule(info)
		if version == "" {
			version = "v" + c.version
		}
		id := add(main, version)
		relate("artifact", common.TypeRelationshipContains, id)
		relate(id, common.TypeRelationshipDependsOn, add("stdlib", strings.TrimPrefix(info.GoVersion, "go")))
		for _, module := range info.Deps {
			if module.Replace != nil {
				module = module.Replace
			}
			if module.Path != main {
				relate(id, common.TypeRelationshipDependsOn, add(module.Path, module.Version))
			}
		}
	}
	return document, nil
}

// mainModule returns the module of a program's main package. For a program built from a
// pinned tool module, it is a dependency. The version is "" for programs of this
// repository.
func mainModule(info *debug.BuildInfo) (path, version string) {
	path = info.Main.Path
	for _, module := range info.Deps {
		if info.Path == module.Path || strings.HasPrefix(info.Path, module.Path+"/") {
			return module.Path, module.Version
		}
	}
	return path, ""
}

// notInID matches the characters that an SPDX identifier cannot contain.
var notInID = regexp.MustCompile(`[^A-Za-z0-9.]+`)

func spdxID(path, version string) string {
	return "go-" + notInID.ReplaceAllString(path+"-"+cmp.Or(version, "unknown"), "-")
}

func spdxPackage(id, name, version string) *v2_3.Package {
	return &v2_3.Package{
		PackageName:             name,
		PackageSPDXIdentifier:   common.ElementID(id),
		PackageVersion:          version,
		PackageDownloadLocation: noAssertion,
		PackageLicenseConcluded: noAssertion,
		PackageLicenseDeclared:  noAssertion,
		PackageCopyrightText:    noAssertion,
	}
}

// goPackage returns the SPDX package of a Go module.
func goPackage(id, path, version string) *v2_3.Package {
	module := spdxPackage(id, path, version)
	module.PackageExternalReferences = []*v2_3.PackageExternalReference{{
		Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: "pkg:golang/" + path + "@" + version,
	}}
	return module
}
