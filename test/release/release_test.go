// Package release_test checks that a release is reproducible on different machines, and
// that its chart and signatures are valid.
package release_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numaform/numaform/internal/enginetest"
	"github.com/numaform/numaform/internal/testenv"
)

// version is the version of the tests' releases.
const version = "v1.2.3-rc.1"

// place is a simulated machine on which a release is built.
type place struct {
	umask, zone, user string
	// touched is the modification time of all files of the checkout.
	touched string
	// owner is the user ID that owns the checkout, if this process may change the owner.
	owner int
}

var (
	here  = place{umask: "022", zone: "UTC", user: "root", touched: "2026-01-02"}
	there = place{umask: "077", zone: "Asia/Tokyo", user: "anna", touched: "2001-09-09", owner: 65534}
)

// TestReleaseIsReproducible checks that a release packed from two paths, with different users,
// umasks, time zones and file times, has the same files, and that signatures and chart are
// valid. The keys are in testdata.
func TestReleaseIsReproducible(t *testing.T) {
	t.Parallel()
	programs := smallPrograms(t)
	dists := make([]string, 2)
	for i, at := range []place{here, there} {
		checkout := filepath.Join(t.TempDir(), strings.Repeat("x", i+1))
		at.check(t, checkout)
		copyTree(t, programs, filepath.Join(checkout, ".tools"))
		at.make(t, checkout, "release-pack")
		dists[i] = filepath.Join(checkout, "dist")
	}
	first := sums(t, dists[0])
	if diff := cmp.Diff(first, sums(t, dists[1])); diff != "" {
		t.Errorf("files and checksums (-here +there):\n%s", diff)
	}
	var names []string
	for name := range first {
		names = append(names, name)
	}
	slices.Sort(names)
	want, err := os.ReadFile("testdata/files.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), strings.Join(names, "\n")+"\n"); diff != "" {
		t.Errorf("the release has the files (-want +got):\n%s", diff)
	}
	if page := run(t, nil, dists[0], "tar", "-xzOf", "numaform_1.2.3-rc.1_linux_amd64.tar.gz", "man/man1/numaform.1"); string(page) != ".TH NUMAFORM 1\n" {
		t.Errorf("the archive's man page is %q", page)
	}
	checkSignature(t, dists[0])
	checkChart(t, dists[0])
}

// TestWholeReleaseIsReproducible checks that a release has the same files if it is built and
// packed twice, with real programs and empty build caches. It runs only in make nightly.
func TestWholeReleaseIsReproducible(t *testing.T) {
	t.Parallel()
	if !enginetest.EveryCase() {
		return // TestReleaseIsReproducible packs small programs
	}
	var seen []map[string]string
	for i, at := range []place{here, there} {
		checkout := filepath.Join(t.TempDir(), strings.Repeat("y", i+1))
		at.check(t, checkout)
		at.make(t, checkout, "release", "GOCACHE="+t.TempDir())
		seen = append(seen, sums(t, filepath.Join(checkout, "dist")))
	}
	if diff := cmp.Diff(seen[0], seen[1]); diff != "" {
		t.Errorf("files and checksums (-here +there):\n%s", diff)
	}
}

// smallPrograms returns a directory like .tools in which each program is replaced with a small
// one.
func smallPrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	write(t, filepath.Join(source, "go.mod"), "module example.com/program\n\ngo 1.26\n")
	write(t, filepath.Join(source, "main.go"), "package main\n\nfunc main() {}\n")
	tools := filepath.Join(dir, "tools")
	build := func(system, arch string, names ...string) {
		for _, name := range names {
			cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", filepath.Join(tools, name), ".")
			cmd.Dir = source
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOOS="+system, "GOARCH="+arch)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
	}
	for _, arch := range []string{"amd64", "arm64"} {
		image := "image/" + arch + "/"
		build("linux", arch, image+"numaform", image+"tofu", image+"terraform-provider-proxmox",
			"release/linux_"+arch+"/numaform", "release/linux_"+arch+"/numaform-agent")
		build("darwin", arch, "release/darwin_"+arch+"/numaform")
	}
	write(t, filepath.Join(tools, "release", "man", "numaform.1"), ".TH NUMAFORM 1\n")
	return tools
}

// check copies the files of the repository to checkout, including uncommitted changes.
func (p place) check(t *testing.T, checkout string) {
	t.Helper()
	list := exec.Command("git", "ls-files", "-co", "--exclude-standard", "-z")
	list.Dir = enginetest.ModuleRoot(t)
	names, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		from := filepath.Join(list.Dir, name)
		if info, err := os.Lstat(from); err == nil && info.Mode().IsRegular() {
			copyFile(t, from, filepath.Join(checkout, name))
		}
	}
}

// make runs a target of make in a checkout, with additional environment variables.
func (p place) make(t *testing.T, checkout, target string, variables ...string) {
	t.Helper()
	if os.Geteuid() == 0 && p.owner != 0 {
		run(t, nil, checkout, "chown", "-R", "65534:65534", ".")
	}
	run(t, nil, checkout, "find", ".", "-exec", "touch", "-d", p.touched, "{}", "+")
	env := append(os.Environ(), "TZ="+p.zone, "USER="+p.user, "LOGNAME="+p.user, "MAKEFLAGS=", "COSIGN_PASSWORD=test",
		"COSIGN_PRIVATE_KEY="+read(t, "testdata/cosign.key"), "APT_SIGNING_KEY="+read(t, "testdata/apt.key"))
	env = append(env, variables...)
	helm := filepath.Join(enginetest.ModuleRoot(t), ".tools", "bin", "helm")
	run(t, env, checkout, "sh", "-c", "umask "+p.umask+" && exec make "+target+" VERSION="+version+
		" RELEASE_COMMIT=0123456789abcdef0123456789abcdef01234567 SOURCE_DATE_EPOCH=1767225600 HELM="+helm)
}

// checkSignature verifies the checksums and their signature.
func checkSignature(t *testing.T, dist string) {
	t.Helper()
	block, _ := pem.Decode([]byte(read(t, "testdata/cosign.pub")))
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	text := read(t, filepath.Join(dist, "SHA256SUMS"))
	signature, err := base64.StdEncoding.DecodeString(read(t, filepath.Join(dist, "SHA256SUMS.sig")))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(text))
	if public, ok := key.(*ecdsa.PublicKey); !ok || !ecdsa.VerifyASN1(public, sum[:], signature) {
		t.Error("the signature of SHA256SUMS is not valid")
	}
	run(t, nil, dist, "sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")
}

// checkChart installs the packed chart with helm, and checks that it runs the published
// image.
func checkChart(t *testing.T, dist string) {
	t.Helper()
	tags := string(run(t, nil, dist, "tar", "-xOf", "numaform-image.tar", "index.json"))
	var index struct {
		Manifests []struct{ Annotations map[string]string }
	}
	if err := json.Unmarshal([]byte(tags), &index); err != nil {
		t.Fatal(err)
	}
	published := index.Manifests[0].Annotations["io.containerd.image.name"]

	cluster := testenv.ControlPlane(t)
	root := enginetest.ModuleRoot(t)
	helm := filepath.Join(root, ".tools", "bin", "helm")
	chart := filepath.Join(dist, "numaform-1.2.3-rc.1.tgz")
	values := filepath.Join(t.TempDir(), "values.yaml")
	write(t, values, `config:
  clusterID: prod
  clusters:
  - {region: region-1, url: "https://192.0.2.16:8006/api2/json", token_id: "numaform@pve!scaler", token_secret_file: token}
secret: {existing: proxmox}
networkPolicy: {apiServerCIDRs: [192.0.2.1/32], proxmoxCIDRs: [192.0.2.16/28]}
`)
	env := append(testenv.CleanEnv(), "KUBECONFIG="+cluster.Kubeconfig, "HOME="+t.TempDir())
	run(t, env, root, helm, "install", "numaform", chart, "--namespace", "numaform", "--create-namespace", "--values", values)
	if manifest := string(run(t, env, root, helm, "get", "manifest", "numaform", "--namespace", "numaform")); !strings.Contains(manifest, `image: "`+published+`"`) {
		t.Errorf("the chart does not run %s:\n%s", published, manifest)
	}
}

func run(t *testing.T, env []string, dir, program string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), program, args...)
	cmd.Dir, cmd.Env = dir, env
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", program, strings.Join(args, " "), err, out, said.String())
	}
	return out
}

// sums returns the checksums of all files of a directory.
func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		sum := sha256.Sum256([]byte(read(t, path)))
		found[name] = hex.EncodeToString(sum[:])
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, nil, ".", "cp", "-r", from, to)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	info, err := os.Stat(from)
	if err != nil {
		t.Fatal(err)
	}
	write(t, to, read(t, from))
	if err := os.Chmod(to, info.Mode()); err != nil {
		t.Fatal(err)
	}
}
