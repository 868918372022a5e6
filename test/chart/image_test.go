package chart_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/sumdb/dirhash"
)

// packer builds the program that packs the image, once.
var packer = sync.OnceValues(func() (string, error) {
	path := filepath.Join(scratch, "image")
	return path, goBuild(filepath.Join(root, "tools", "image"), path, runtime.GOARCH, ".")
})

// goBuild builds a static program.
func goBuild(dir, to, arch, pkg string) error {
	cmd := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", to, pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOOS=linux", "GOARCH="+arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w: %s", pkg, err, out)
	}
	return nil
}

// someVersion is the provider's version in fake images.
const someVersion = "1.2.3"

// imageDir returns a directory with a small program for each program of the image.
func imageDir(t *testing.T, archs ...string) string {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	write(t, filepath.Join(source, "go.mod"), "module example.com/program\n\ngo 1.26\n")
	write(t, filepath.Join(source, "main.go"), "package main\n\nfunc main() {}\n")
	for _, arch := range archs {
		for _, name := range []string{"tofu", "terraform-provider-proxmox", "numaform"} {
			if err := goBuild(source, filepath.Join(dir, arch, name), arch, "."); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(t, filepath.Join(dir, "licenses", "opentofu", "LICENSE"), "MPL\n")
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// packImage runs the packer and returns the path of the tar file.
func packImage(dir, archs, providerVersion string) (string, error) {
	program, err := packer()
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, "image.tar")
	cmd := exec.CommandContext(context.Background(), program, "-dir", dir, "-archs", archs, "-licenses", filepath.Join(dir, "licenses"),
		"-provider-version", providerVersion, "-version", "v9.9.9", "-out", out)
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", errors.New(string(text))
	}
	return out, nil
}

func TestImageIsReproducible(t *testing.T) {
	t.Parallel()
	dir := imageDir(t, "amd64", "arm64")
	var sums [2]string
	for i := range sums {
		path, err := packImage(dir, "amd64 arm64", someVersion)
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(content)
		sums[i] = hex.EncodeToString(sum[:])
	}
	if sums[0] != sums[1] {
		t.Errorf("two runs give %s and %s", sums[0], sums[1])
	}
}

// descriptor names a blob of an OCI layout.
type descriptor struct {
	Digest      string
	Annotations map[string]string
	Platform    struct{ Architecture, OS string }
}

// layoutOf reads the files of an OCI layout from its tar.
func layoutOf(t *testing.T, path string) map[string][]byte {
	t.Helper()
	opened, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close() //nolint:errcheck // only read
	files := map[string][]byte{}
	archive := tar.NewReader(opened)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
}

// blob decodes a JSON blob and verifies its digest.
func blob(t *testing.T, files map[string][]byte, digest string, into any) {
	t.Helper()
	content := files["blobs/"+strings.Replace(digest, ":", "/", 1)]
	if sum := sha256.Sum256(content); digest != "sha256:"+hex.EncodeToString(sum[:]) {
		t.Fatalf("blob %s is missing or has another digest", digest)
	}
	if err := json.Unmarshal(content, into); err != nil {
		t.Fatal(err)
	}
}

// entry is a file's metadata in a layer.
type entry struct {
	Mode    int64
	UID     int
	content []byte
}

// layersOf reads the files in all layers of a manifest, in order, and checks that none has
// a modification time.
func layersOf(t *testing.T, files map[string][]byte, layers []descriptor) map[string]entry {
	t.Helper()
	tree := map[string]entry{}
	for _, layer := range layers {
		unzipped, err := gzip.NewReader(bytes.NewReader(files["blobs/"+strings.Replace(layer.Digest, ":", "/", 1)]))
		if err != nil {
			t.Fatal(err)
		}
		archive := tar.NewReader(unzipped)
		for {
			header, err := archive.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(archive)
			if err != nil {
				t.Fatal(err)
			}
			if !header.ModTime.IsZero() && header.ModTime.Unix() != 0 {
				t.Errorf("%s has a time: %s", header.Name, header.ModTime)
			}
			tree[strings.TrimSuffix(header.Name, "/")] = entry{header.Mode, header.Uid, content}
		}
	}
	return tree
}

func TestImageOfEachArchitecture(t *testing.T) {
	t.Parallel()
	path, err := packImage(imageDir(t, "amd64", "arm64"), "amd64 arm64", someVersion)
	if err != nil {
		t.Fatal(err)
	}
	files := layoutOf(t, path)
	var top, index struct{ Manifests []descriptor }
	if err := json.Unmarshal(files["index.json"], &top); err != nil {
		t.Fatal(err)
	}
	if got := top.Manifests[0].Annotations["io.containerd.image.name"]; got != "ghcr.io/numaform/numaform:v9.9.9" {
		t.Errorf("the image is named %q", got)
	}
	blob(t, files, top.Manifests[0].Digest, &index)
	var archs []string
	for _, platform := range index.Manifests {
		arch := platform.Platform.Architecture
		archs = append(archs, platform.Platform.OS+"/"+arch)
		checkPlatform(t, files, platform.Digest, arch)
	}
	if diff := cmp.Diff([]string{"linux/amd64", "linux/arm64"}, archs); diff != "" {
		t.Errorf("architectures (-want +got):\n%s", diff)
	}
}

func checkPlatform(t *testing.T, files map[string][]byte, digest, arch string) {
	t.Helper()
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	blob(t, files, digest, &manifest)
	var config struct {
		Architecture string
		Config       struct {
			User       string
			Entrypoint []string
		}
	}
	blob(t, files, manifest.Config.Digest, &config)
	if config.Architecture != arch || config.Config.User != "65532:65532" || config.Config.Entrypoint[0] != "/usr/local/bin/numaform" {
		t.Errorf("%s: config = %+v", arch, config)
	}
	tree := layersOf(t, files, manifest.Layers)
	got := map[string]entry{}
	for name, e := range tree {
		got[name] = entry{Mode: e.Mode, UID: e.UID}
	}
	dir, program, plain := entry{Mode: 0o755}, entry{Mode: 0o755}, entry{Mode: 0o644}
	mirror := "usr/share/terraform/plugins/registry.opentofu.org/bpg/proxmox"
	want := map[string]entry{
		"etc": dir, "etc/group": plain, "etc/numaform": dir, "etc/passwd": plain, "etc/ssl": dir, "etc/ssl/certs": dir,
		"etc/ssl/certs/ca-certificates.crt": plain, "tmp": {Mode: 0o1777},
		"usr": dir, "usr/local": dir, "usr/local/bin": dir, "usr/local/bin/numaform": program, "usr/local/bin/tofu": program,
		"usr/share": dir, "usr/share/numaform": dir, "usr/share/numaform/providers.json": plain, "usr/share/licenses": dir, "usr/share/licenses/opentofu": dir, "usr/share/licenses/opentofu/LICENSE": plain,
		"usr/share/terraform": dir, "usr/share/terraform/plugins": dir, "usr/share/terraform/plugins/registry.opentofu.org": dir,
		"usr/share/terraform/plugins/registry.opentofu.org/bpg": dir, mirror: dir, mirror + "/" + someVersion: dir,
		mirror + "/" + someVersion + "/linux_" + arch:                                                 dir,
		mirror + "/" + someVersion + "/linux_" + arch + "/terraform-provider-proxmox_v" + someVersion: program,
		"var": dir, "var/lib": dir, "var/lib/numaform": {Mode: 0o755, UID: 65532},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(entry{})); diff != "" {
		t.Errorf("%s: files (-want +got):\n%s", arch, diff)
	}
	carriesProvider(t, tree, mirror, arch)
	if pool := x509.NewCertPool(); !pool.AppendCertsFromPEM(tree["etc/ssl/certs/ca-certificates.crt"].content) {
		t.Errorf("%s: no CA certificates", arch)
	}
}

// carriesProvider checks that the image describes its provider by the same hash as the
// engines' lock files.
func carriesProvider(t *testing.T, tree map[string]entry, mirror, arch string) {
	t.Helper()
	name := "terraform-provider-proxmox_v" + someVersion
	hash, err := dirhash.Hash1([]string{name}, func(name string) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(tree[mirror+"/"+someVersion+"/linux_"+arch+"/"+name].content)), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var carried struct{ Providers []map[string]string }
	if err := json.Unmarshal(tree["usr/share/numaform/providers.json"].content, &carried); err != nil {
		t.Fatal(err)
	}
	want := []map[string]string{{"address": "registry.opentofu.org/bpg/proxmox", "version": someVersion, "platform": "linux_" + arch, "hash": hash}}
	if diff := cmp.Diff(want, carried.Providers); diff != "" {
		t.Errorf("%s: description of the image's provider (-want +got):\n%s", arch, diff)
	}
}

func TestImageRefusesPrograms(t *testing.T) {
	t.Parallel()
	own, foreign := runtime.GOARCH, "arm64"
	if own == foreign {
		foreign = "amd64"
	}
	tests := []struct {
		name  string
		spoil func(dir, tofu string) error
		want  string
	}{
		{"a missing one", func(_, tofu string) error { return os.Remove(tofu) }, "build it with make image"},
		{"one for another architecture", func(dir, tofu string) error {
			return goBuild(filepath.Join(dir, "source"), tofu, foreign, ".")
		}, "tofu is for EM_"},
		{"one that needs a loader", func(_, tofu string) error {
			return errors.Join(os.Remove(tofu), os.Symlink("/bin/sh", tofu))
		}, "needs a dynamic loader"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := imageDir(t, own)
			if err := tt.spoil(dir, filepath.Join(dir, own, "tofu")); err != nil {
				t.Fatal(err)
			}
			if _, err := packImage(dir, own, someVersion); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want it to contain %q", err, tt.want)
			}
		})
	}
}
