package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"path/filepath"
	"strconv"

	provenance "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

// repository is the URL of the source repository.
const repository = "https://github.com/numaform/numaform"

// provenance writes an in-toto statement with SLSA provenance for every file so far, and
// with a signer also a signed envelope of it. The statement contains no time and no ID of a
// run, so that a rebuild of the commit gives the same statement.
func (c *config) provenance() error {
	names, err := c.files()
	if err != nil {
		return err
	}
	statement := &intoto.Statement{Type: intoto.StatementTypeUri, PredicateType: "https://slsa.dev/provenance/v1"}
	for _, name := range names {
		sum, err := sha256Of(filepath.Join(c.out, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		statement.Subject = append(statement.Subject, &intoto.ResourceDescriptor{Name: name, Digest: map[string]string{"sha256": sum}})
	}

	built, err := buildinfo.ReadFile(filepath.Join(c.programs, platforms[0], "numaform"))
	if err != nil {
		return err
	}
	external, err := structpb.NewStruct(map[string]any{"repository": repository, "commit": c.commit, "version": c.version, "target": "make release"})
	if err != nil {
		return err
	}
	internal, err := structpb.NewStruct(map[string]any{"SOURCE_DATE_EPOCH": strconv.FormatInt(c.epoch.Unix(), 10)})
	if err != nil {
		return err
	}
	dependencies := []*intoto.ResourceDescriptor{
		{Uri: "git+" + repository, Digest: map[string]string{"gitCommit": c.commit}},
		{Uri: "pkg:golang/toolchain@" + built.GoVersion},
	}
	for _, program := range []string{"tofu", "terraform-provider-proxmox"} {
		info, err := buildinfo.ReadFile(filepath.Join(c.image, "amd64", program))
		if err != nil {
			return err
		}
		path, version := mainModule(info)
		dependencies = append(dependencies, &intoto.ResourceDescriptor{Uri: "pkg:golang/" + path + "@" + version})
	}
	predicate := &provenance.Provenance{
		BuildDefinition: &provenance.BuildDefinition{
			BuildType:            repository + "/blob/main/docs/releasing.md#build-type",
			ExternalParameters:   external,
			InternalParameters:   internal,
			ResolvedDependencies: dependencies,
		},
		RunDetails: &provenance.RunDetails{Builder: &provenance.Builder{Id: c.builder}},
	}
	text, err := protojson.Marshal(predicate)
	if err != nil {
		return err
	}
	statement.Predicate = &structpb.Struct{}
	if err := protojson.Unmarshal(text, statement.Predicate); err != nil {
		return err
	}
	if text, err = protojson.Marshal(statement); err != nil {
		return err
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil { // protojson adds spaces at random
		return err
	}
	if err := c.write(provenanceFile, append(compact.Bytes(), '\n')); err != nil || c.signer == nil {
		return err
	}
	envelope, err := c.signer.envelope(compact.Bytes())
	if err != nil {
		return err
	}
	signed, err := json.Marshal(envelope)
	if err != nil {
		return err
	}
	return c.write("provenance.dsse.json", append(signed, '\n'))
}
