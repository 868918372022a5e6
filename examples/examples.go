// Package examples embeds the example configurations, so that the demo and the tests use
// exactly the files that a reader finds here.
package examples

import (
	"embed"
	"io/fs"
	"slices"
)

//go:embed quickstart homelab-k3s
var files embed.FS

//go:embed manifests/numaform.yaml
var manifests []byte

// Quickstart returns the files of three hosts with two NodePools and 40 pods.
func Quickstart() fs.FS { return sub("quickstart") }

// HomelabK3s returns the files of one small host with a k3s template.
func HomelabK3s() fs.FS { return sub("homelab-k3s") }

// Manifests returns the objects that the chart installs.
func Manifests() []byte { return slices.Clone(manifests) }

func sub(name string) fs.FS {
	dir, err := fs.Sub(files, name)
	if err != nil {
		panic(err) // the name is one of the two above
	}
	return dir
}
