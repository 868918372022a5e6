// Command release packs the programs, image and chart of a release into a directory:
// archives, an apt repository, a krew manifest, the chart as an OCI artifact, SBOMs,
// provenance, checksums and signatures. The same inputs give the same bytes: it does not
// use the clock, the user or file times, and its signatures are deterministic. It does not
// build programs: make release does.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// config is the input of a release.
type config struct {
	// root is the root directory of the repository.
	root string
	// programs contains a directory of numaform's programs for each platform, such as
	// linux_amd64, and the directory man with the man pages. image contains a directory of
	// the image's programs for each architecture.
	programs, image string
	// chart is the packed chart.
	chart string
	// version is a semantic version without v.
	version string
	// commit is the commit that the release is built from, epoch its time.
	commit string
	epoch  time.Time
	// builder is the URI of the build system, for the provenance.
	builder string
	// out is the directory with the image and the Debian packages, which receives the rest.
	out string
	// signer signs the release; nil leaves it unsigned.
	signer *signer
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) > 0 && args[0] == "publish" {
		return publish(args[1:])
	}
	c, err := parse(args)
	if err != nil {
		return err
	}
	if c.signer, err = signerFromEnvironment(os.Getenv); err != nil {
		return err
	}
	return c.pack()
}

func parse(args []string) (*config, error) {
	c := &config{}
	var epoch int64
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&c.root, "root", "", "root directory of the repository")
	flags.StringVar(&c.programs, "programs", "", "directory with a directory of programs for each platform")
	flags.StringVar(&c.image, "image", "", "directory with a directory of the image's programs for each architecture")
	flags.StringVar(&c.chart, "chart", "", "the packed chart")
	flags.StringVar(&c.version, "version", "", "semantic version, without v")
	flags.StringVar(&c.commit, "commit", "", "commit that is released")
	flags.StringVar(&c.builder, "builder", "", "URI that identifies the builder")
	flags.StringVar(&c.out, "out", "", "directory of the release")
	flags.Int64Var(&epoch, "epoch", -1, "time of the commit, in seconds since 1970")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	for _, value := range []string{c.root, c.programs, c.image, c.chart, c.version, c.commit, c.builder, c.out} {
		if value == "" {
			return nil, errors.New("every flag is required: run make release")
		}
	}
	if epoch < 0 || flags.NArg() > 0 {
		return nil, errors.New("-epoch is required, and arguments are not allowed: run make release")
	}
	c.epoch = time.Unix(epoch, 0).UTC()
	return c, nil
}

// pack writes the release. Later steps include the files of earlier steps.
func (c *config) pack() error {
	for _, step := range []struct {
		doing string
		do    func() error
	}{
		{"packing archives", c.archives},
		{"packing the chart", c.packChart},
		{"signing the image", func() error { return c.signLayout(filepath.Join(c.out, imageFile)) }},
		{"signing the chart", func() error { return c.signLayout(filepath.Join(c.out, chartFile)) }},
		{"writing the krew manifest", c.krew},
		{"writing the apt repository", c.apt},
		{"writing SBOMs", c.sboms},
		{"writing provenance", c.provenance},
		{"writing checksums", c.checksums},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.doing, err)
		}
	}
	if c.signer == nil {
		fmt.Fprintln(os.Stderr, "release: UNSIGNED: COSIGN_PRIVATE_KEY is not set")
	}
	if c.signer == nil || c.signer.apt == nil {
		fmt.Fprintln(os.Stderr, "release: the apt repository is UNSIGNED: APT_SIGNING_KEY is not set")
	}
	return nil
}

// Names of files in a release.
const (
	imageFile      = "numaform-image.tar"
	chartFile      = "numaform-chart.tar"
	checksumsFile  = "SHA256SUMS"
	provenanceFile = "provenance.intoto.json"
)

// files returns the paths of the files of the release so far, relative to its directory and
// sorted.
func (c *config) files() ([]string, error) {
	var names []string
	err := filepath.WalkDir(c.out, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(c.out, path)
		names = append(names, filepath.ToSlash(name))
		return err
	})
	slices.Sort(names)
	return names, err
}

// checksums writes the checksums of all files. With a signer, it also writes the signature
// of the checksums, which thus covers the whole release, and the public key.
func (c *config) checksums() error {
	names, err := c.files()
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, name := range names {
		sum, err := sha256Of(filepath.Join(c.out, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%s  %s\n", sum, name)
	}
	if err := c.write(checksumsFile, []byte(text.String())); err != nil || c.signer == nil {
		return err
	}
	signature, err := c.signer.blob([]byte(text.String()))
	if err != nil {
		return err
	}
	return errors.Join(c.write(checksumsFile+".sig", signature), c.write("cosign.pub", c.signer.public))
}

// write writes a file of the release, with mode 0644. name is relative to the directory of
// the release; write creates missing parent directories.
func (c *config) write(name string, content []byte) error {
	path := filepath.Join(c.out, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, content, 0o644); err != nil { //nolint:gosec // a release is public
		return err
	}
	return os.Chmod(path, 0o644) // regardless of the umask
}
