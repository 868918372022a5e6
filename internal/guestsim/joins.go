package guestsim

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/numaform/numaform/internal/simprogram"
)

// Documents are the content of a NoCloud seed. VendorData and NetworkConfig are optional.
type Documents struct {
	UserData, MetaData, NetworkConfig, VendorData []byte
}

// ReadSeed reads a seed's disc image as cloud-init does on Linux.
func ReadSeed(iso []byte) (Documents, error) {
	var documents Documents
	err := step("seed", iso, &documents)
	return documents, err
}

// Join is the data with which a kubelet joins the cluster.
type Join struct {
	// NodeName is the name of the future Node.
	NodeName string
	// Server is the URL of the API server, CA its certificate authority in PEM, and Token
	// the bootstrap token.
	Server string
	CA     []byte
	Token  string

	documents []byte
}

// NewJoin reads documents as a guest that starts with them does.
func NewJoin(documents Documents) (*Join, error) {
	text, err := json.Marshal(documents)
	if err != nil {
		return nil, err
	}
	join := &Join{documents: text}
	return join, step("join", text, join)
}

// step runs one step of a guest in the program.
func step(name string, in []byte, out any) error {
	path, err := simprogram.Path("guestsim")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(context.Background(), path, name) //nolint:gosec // one of ours
	cmd.Stdin = bytes.NewReader(in)
	answer, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return errors.New(string(bytes.TrimSpace(exit.Stderr)))
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(answer, out)
}

// Request is a request for a node's certificate.
type Request struct {
	// Name is the name of the CertificateSigningRequest.
	Name string

	cmd     *exec.Cmd
	stdin   io.Closer
	printed *bufio.Reader
}

// ErrDenied means that a certificate will never be issued.
var ErrDenied = errors.New("denied")

// RequestCertificate requests the certificate of a node with any name, using the join's
// token. Kubelet requests the certificate of its own node, but anyone who has the seed can
// request another node's. The caller must close the request.
func (j *Join) RequestCertificate(ctx context.Context, node string) (*Request, error) {
	path, err := simprogram.Path("guestsim")
	if err != nil {
		return nil, err
	}
	r := &Request{cmd: exec.CommandContext(context.WithoutCancel(ctx), path, "certificate", node)} //nolint:gosec // one of ours
	r.cmd.Stderr = os.Stderr
	stdin, err := r.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	r.stdin, r.printed = stdin, bufio.NewReader(stdout)
	if _, err := stdin.Write(j.documents); err != nil {
		r.Close()
		return nil, err
	}
	made, err := r.next(ctx)
	if err != nil {
		r.Close()
		return nil, err
	}
	r.Name = made.Name
	return r, nil
}

// Close ends the request's connections.
func (r *Request) Close() {
	_ = r.stdin.Close()
	_ = r.cmd.Wait() // the program printed its errors
}

type issued struct {
	Name   string
	Chain  [][]byte
	Key    []byte
	Denied bool
	Error  string
}

// next reads the next message of the program.
func (r *Request) next(ctx context.Context) (issued, error) {
	stop := context.AfterFunc(ctx, func() { _ = r.stdin.Close() })
	defer stop()
	var next issued
	line, err := r.printed.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &next)
	}
	switch {
	case ctx.Err() != nil:
		return next, ctx.Err()
	case err != nil:
		return next, err
	case next.Denied:
		return next, fmt.Errorf("%w: %s", ErrDenied, next.Error)
	case next.Error != "":
		return next, errors.New(next.Error)
	}
	return next, nil
}

// Wait waits until the certificate is issued and returns it with its key. The error wraps
// ErrDenied if the request was denied or failed.
func (r *Request) Wait(ctx context.Context) (tls.Certificate, error) {
	got, err := r.next(ctx)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := x509.ParsePKCS8PrivateKey(got.Key)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(got.Chain[0])
	return tls.Certificate{PrivateKey: key, Certificate: got.Chain, Leaf: leaf}, err
}
