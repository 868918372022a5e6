package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// publish pushes the image and the chart of a release to a registry, with their signatures.
// It uses the credentials of `docker login`, `helm registry login` and similar commands.
func publish(args []string) error {
	flags := flag.NewFlagSet("release publish", flag.ContinueOnError)
	dir := flags.String("out", "", "directory of the release")
	image := flags.String("image", "", "repository of the image")
	chart := flags.String("chart", "", "repository of the chart")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *dir == "" || *image == "" || *chart == "" {
		return errors.New("-out, -image and -chart are required: run make publish")
	}
	for _, push := range []struct{ file, repository string }{{imageFile, *image}, {chartFile, *chart}} {
		if err := pushLayout(filepath.Join(*dir, push.file), push.repository); err != nil {
			return fmt.Errorf("publishing %s: %w", push.file, err)
		}
	}
	return nil
}

// untagged matches the versions of builds from commits without a tag (git describe appends the
// number of commits since the last tag and the commit's hash) and from modified checkouts.
var untagged = regexp.MustCompile(`^0\.0\.0-|-[0-9]+-g[0-9a-f]+$|dirty$`)

// pushLayout pushes every manifest of a layout under its tag. It returns an error for a
// tag that is not a release's version.
func pushLayout(file, repository string) (err error) {
	dir, err := os.MkdirTemp("", "numaform-release-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := unpackLayout(file, dir); err != nil {
		return err
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	for _, found := range manifest.Manifests {
		tag := found.Annotations[refName]
		if untagged.MatchString(tag) {
			return fmt.Errorf("%s is not a version: publish from a clean checkout of a tag", tag)
		}
		to, err := name.NewTag(repository + ":" + tag)
		if err != nil {
			return err
		}
		if found.MediaType.IsIndex() {
			images, err := index.ImageIndex(found.Digest)
			if err != nil {
				return err
			}
			err = remote.WriteIndex(to, images, remote.WithAuthFromKeychain(authn.DefaultKeychain))
			if err != nil {
				return err
			}
		} else {
			image, err := index.Image(found.Digest)
			if err != nil {
				return err
			}
			if err := remote.Write(to, image, remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
				return err
			}
		}
		fmt.Printf("%s@%s\n", to, found.Digest)
	}
	return nil
}
