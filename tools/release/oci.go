package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

// Media types of a chart: helm.sh/helm pkg/registry.
const (
	helmConfig = "application/vnd.cncf.helm.config.v1+json"
	helmLayer  = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// refName is the annotation that contains the tag of a manifest in a layout.
const refName = "org.opencontainers.image.ref.name"

// packChart repacks the chart, because helm writes the current time into it, and also packs
// it as an OCI artifact.
func (c *config) packChart() error {
	packed, err := os.ReadFile(c.chart)
	if err != nil {
		return err
	}
	entries, err := untarGzip(packed)
	if err != nil {
		return fmt.Errorf("reading %s: %w", c.chart, err)
	}
	if packed, err = tarGzip(entries, c.epoch); err != nil {
		return err
	}
	if err := c.write("numaform-"+c.version+".tgz", packed); err != nil {
		return err
	}

	var metadata []byte
	for _, e := range entries {
		if e.name == "numaform/Chart.yaml" {
			metadata, err = yaml.YAMLToJSON(e.content)
		}
	}
	if err != nil || metadata == nil {
		return fmt.Errorf("%s: parsing Chart.yaml: %w", c.chart, err)
	}
	chart, err := newArtifact(metadata, helmConfig, static.NewLayer(packed, helmLayer))
	if err != nil {
		return err
	}
	return inLayout(filepath.Join(c.out, chartFile), false, func(to layout.Path) error {
		// A tag cannot contain a plus sign; helm writes an underscore.
		return to.AppendImage(chart, layout.WithAnnotations(map[string]string{refName: strings.ReplaceAll(c.version, "+", "_")}))
	})
}

// artifact is an OCI artifact whose config is not an image config.
type artifact struct {
	manifest, config []byte
	layer            v1.Layer
}

func newArtifact(config []byte, configType types.MediaType, layer v1.Layer) (v1.Image, error) {
	content, err := partial.Descriptor(layer)
	if err != nil {
		return nil, err
	}
	hash, size, err := v1.SHA256(bytes.NewReader(config))
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2,
		MediaType:     types.OCIManifestSchema1,
		Config:        v1.Descriptor{MediaType: configType, Digest: hash, Size: size},
		Layers:        []v1.Descriptor{*content},
	})
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(&artifact{manifest: manifest, config: config, layer: layer})
}

// MediaType implements partial.CompressedImageCore.
func (a *artifact) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// RawManifest implements partial.CompressedImageCore.
func (a *artifact) RawManifest() ([]byte, error) { return a.manifest, nil }

// RawConfigFile implements partial.CompressedImageCore.
func (a *artifact) RawConfigFile() ([]byte, error) { return a.config, nil }

// LayerByDigest implements partial.CompressedImageCore.
func (a *artifact) LayerByDigest(v1.Hash) (partial.CompressedLayer, error) { return a.layer, nil }

// Names of cosign's signatures of images: cosign specs/SIGNATURE_SPEC.md.
const (
	cosignPayload   = "application/vnd.dev.cosign.simplesigning.v1+json"
	cosignSignature = "dev.cosignproject.cosign/signature"
	cosignKind      = "kind"
)

// simpleSigning is the signed payload. It names the digest only, so that the signature is
// valid for every name of the image.
type simpleSigning struct {
	Critical struct {
		Identity struct {
			Reference string `json:"docker-reference"`
		} `json:"identity"`
		Image struct {
			Digest string `json:"docker-manifest-digest"`
		} `json:"image"`
		Type string `json:"type"`
	} `json:"critical"`
	Optional map[string]string `json:"optional"`
}

// signLayout adds cosign's signature of the only manifest in a layout, as cosign save does.
// Without a signer, it does nothing.
func (c *config) signLayout(file string) error {
	if c.signer == nil {
		return nil
	}
	return inLayout(file, true, func(at layout.Path) error {
		index, err := at.ImageIndex()
		if err != nil {
			return err
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			return err
		}
		if len(manifest.Manifests) != 1 {
			return fmt.Errorf("%s has %d manifests, want one: run make release", file, len(manifest.Manifests))
		}
		signed := manifest.Manifests[0]
		payload := simpleSigning{}
		payload.Critical.Image.Digest = signed.Digest.String()
		payload.Critical.Type = "cosign container image signature"
		text, err := json.Marshal(payload)
		if err != nil {
			return err
		}
		signature, err := c.signer.sign(text)
		if err != nil {
			return err
		}
		image, err := mutate.Append(
			mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON),
			mutate.Addendum{
				Layer:       static.NewLayer(text, cosignPayload),
				Annotations: map[string]string{cosignSignature: base64.StdEncoding.EncodeToString(signature)},
			},
		)
		if err != nil {
			return err
		}

		annotations := signed.Annotations
		annotations[cosignKind] = "dev.cosignproject.cosign/image"
		if signed.MediaType.IsIndex() {
			annotations[cosignKind] = "dev.cosignproject.cosign/imageIndex"
		}
		if err := at.RemoveDescriptors(func(d v1.Descriptor) bool { return d.Digest == signed.Digest }); err != nil {
			return err
		}
		signed.Annotations = annotations
		if err := at.AppendDescriptor(signed); err != nil {
			return err
		}
		return at.AppendImage(image, layout.WithAnnotations(map[string]string{
			cosignKind: "dev.cosignproject.cosign/sigs",
			refName:    signatureTag(signed.Digest),
		}))
	})
}

// signatureTag returns the tag under which cosign finds the signature of a digest.
func signatureTag(digest v1.Hash) string { return digest.Algorithm + "-" + digest.Hex + ".sig" }

// inLayout unpacks the OCI layout in a tar file, calls do with it, and packs it again. If
// exists is false, the layout starts empty. If do returns an error, the file does not
// change.
func inLayout(file string, exists bool, do func(layout.Path) error) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(file), ".layout-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	at := layout.Path(dir)
	if exists {
		err = unpackLayout(file, dir)
	} else {
		at, err = layout.Write(dir, empty.Index)
	}
	if err == nil {
		err = do(at)
	}
	if err != nil {
		return err
	}
	return packLayout(dir, file)
}

// unpackLayout unpacks the tar file of a layout into dir.
func unpackLayout(file, dir string) error {
	opened, err := os.Open(file)
	if err != nil {
		return err
	}
	defer opened.Close() //nolint:errcheck // only read
	archive := tar.NewReader(opened)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading %s: %w", file, err)
		}
		if !filepath.IsLocal(header.Name) {
			return fmt.Errorf("reading %s: path %s is outside the archive", file, header.Name)
		}
		path := filepath.Join(dir, header.Name)
		if header.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(path, 0o755); err != nil {
				return err
			}
			continue
		}
		if err := unpackFile(path, archive); err != nil {
			return err
		}
	}
}

func unpackFile(path string, from io.Reader) error {
	to, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

// packLayout packs a directory into a tar file, without times and owners.
func packLayout(dir, file string) error {
	to, err := os.Create(file)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(to)
	err = filepath.WalkDir(dir, func(path string, found fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if found.IsDir() {
			return archive.WriteHeader(&tar.Header{Format: tar.FormatUSTAR, Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755})
		}
		info, err := found.Info()
		if err != nil {
			return err
		}
		if err := archive.WriteHeader(&tar.Header{Format: tar.FormatUSTAR, Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: info.Size()}); err != nil {
			return err
		}
		from, err := os.Open(path)
		if err != nil {
			return err
		}
		_, err = io.Copy(archive, from)
		return errors.Join(err, from.Close())
	})
	return errors.Join(err, archive.Close(), to.Close(), os.Chmod(file, 0o644)) //nolint:gosec // a release is public
}

// digestOf returns the SHA-256 of a text, in hex.
func digestOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
