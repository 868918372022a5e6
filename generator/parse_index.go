package generator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/numaform/numaform/fleet"
)

// parseIndex reads fleet.json.
func (p *parser) parseIndex() error {
	var content index
	if err := p.readJSON(fleetFile, &content, func() int { return content.FormatVersion }); err != nil {
		return err
	}
	p.fleet.ClusterID, p.fleet.Backend = content.ClusterID, content.Backend
	for _, r := range content.Regions {
		p.fleet.Regions = append(p.fleet.Regions, fleet.Region{Name: r.Name, Endpoint: r.Endpoint, Insecure: r.Insecure})
	}
	return nil
}

// readJSON reads one file: first its format version, then every field.
func (p *parser) readJSON(name string, into any, format func() int) error {
	content, ok := p.files[name]
	if !ok {
		return &ParseError{File: name, Problem: "is missing", Mend: mendRestore}
	}
	if err := json.Unmarshal(content, into); err == nil && format() != FormatVersion {
		return formatError(name, 0, format())
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	if err == nil {
		if _, err = decoder.Token(); errors.Is(err, io.EOF) {
			return nil
		}
		err = errors.New("holds more than one JSON value")
	}
	return &ParseError{File: name, Line: errorLine(err, content), Problem: err.Error(), Mend: mendRestore, Err: err}
}

// errorLine returns the line of a JSON error, or 0 if the error has none.
func errorLine(err error, content []byte) int {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	var offset int64
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &kind):
		offset = kind.Offset
	default:
		return 0
	}
	return 1 + bytes.Count(content[:min(int(offset), len(content))], []byte("\n"))
}

func formatError(name string, line, format int) error {
	if format > FormatVersion {
		return &ParseError{
			File: name, Line: line, Mend: mendUpgrade,
			Problem: fmt.Sprintf("has format %d, and this numaform reads up to %d", format, FormatVersion),
		}
	}
	return &ParseError{
		File: name, Line: line, Mend: mendRestore,
		Problem: fmt.Sprintf("has no format that ever was (%d)", format),
	}
}
