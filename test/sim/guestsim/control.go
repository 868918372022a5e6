package guestsim

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/numaform/numaform/test/sim/control"
	"github.com/numaform/numaform/test/sim/pvesim"
)

// HookedConfig is a Config in JSON.
type HookedConfig struct {
	Cluster Login
	// BakedInURL and CloudProviderURL are hooks that replace Config.BakedIn and
	// Config.CloudProviderID. The former may return null.
	BakedInURL, CloudProviderURL            string
	Boot, Ready, PodStart, Retry, Heartbeat time.Duration
	// PodStop is how long each deleted pod takes to terminate; 0 means the default of
	// Config.PodStop.
	PodStop time.Duration
}

// Login contains the credentials for a cluster: a certificate or a token. CA, Certificate
// and Key are PEM-encoded.
type Login struct {
	Server               string
	CA, Certificate, Key []byte
	Token, Impersonate   string
	QPS                  float32
	Burst                int
}

func (l *Login) config() *rest.Config {
	return &rest.Config{
		Host: l.Server, BearerToken: l.Token, QPS: l.QPS, Burst: l.Burst, Impersonate: rest.ImpersonationConfig{UserName: l.Impersonate},
		TLSClientConfig: rest.TLSClientConfig{CAData: l.CA, CertData: l.Certificate, KeyData: l.Key},
	}
}

func (c *HookedConfig) config(ctx context.Context) Config {
	cfg := Config{
		Cluster: c.Cluster.config(), Boot: c.Boot, Ready: c.Ready, PodStart: c.PodStart, Retry: c.Retry, Heartbeat: c.Heartbeat,
	}
	if c.BakedInURL != "" {
		cfg.BakedIn = func(vm pvesim.GuestState) (Documents, bool) {
			var documents *Documents
			if err := control.Ask(ctx, c.BakedInURL, vm, &documents); err != nil || documents == nil {
				return Documents{}, false
			}
			return *documents, true
		}
	}
	if c.CloudProviderURL != "" {
		cfg.CloudProviderID = func(vm pvesim.GuestState) string {
			var id string
			_ = control.Ask(ctx, c.CloudProviderURL, vm, &id) // without a response, the node remains uninitialized
			return id
		}
	}
	if c.PodStop != 0 {
		cfg.PodStop = func(*corev1.Pod) time.Duration { return c.PodStop }
	}
	return cfg
}

// Run runs guests for the parent process: see control.Run.
func Run(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	life := &life{}
	defer func() { err = errors.Join(err, life.end()) }()
	return control.Run(ctx, in, out, func(ctx context.Context, cfg HookedConfig) (http.Handler, error) {
		guests, err := New(cfg.config(ctx))
		if err != nil {
			return nil, err
		}
		life.ctx, life.guests = ctx, guests
		return life.handler(), nil
	})
}

// life is the state of the guests between control requests.
type life struct {
	ctx    context.Context //nolint:containedctx // the program's lifetime
	guests *Guests
	cancel context.CancelFunc
	done   chan error
}

func (l *life) handler() http.Handler {
	g := l.guests
	mux := http.NewServeMux()
	mux.Handle("POST /start", control.Set(func(*http.Request, struct{}) error { return l.begin() }))
	mux.Handle("POST /stop", control.Set(func(*http.Request, struct{}) error { return l.end() }))
	mux.Handle("POST /power", control.Set(func(_ *http.Request, event pvesim.PowerEvent) error { g.Power(event); return nil }))
	mux.Handle("GET /problems", control.Get(func(*http.Request) []ToldProblem { return told(g.Problems()) }))
	mux.Handle("PUT /vms/{vm}/fault", control.Set(func(r *http.Request, fault Fault) error { g.SetFault(r.PathValue("vm"), fault); return nil }))
	mux.Handle("PUT /vms/{vm}/kubelet", control.Set(func(r *http.Request, runs bool) error {
		if runs {
			return g.StartKubelet(r.PathValue("vm"))
		}
		return g.StopKubelet(r.PathValue("vm"))
	}))
	return mux
}

func (l *life) begin() error {
	if l.done != nil {
		return errors.New("the guests were already started")
	}
	ctx, cancel := context.WithCancel(l.ctx)
	l.cancel, l.done = cancel, make(chan error, 1)
	go func() { l.done <- l.guests.Run(ctx) }()
	return nil
}

// end stops the guests, waits until they end, and returns the error of Guests.Run.
func (l *life) end() error {
	if l.done == nil {
		return nil
	}
	l.cancel()
	err := <-l.done
	l.done <- nil
	return err
}

// ToldProblem is a Problem in JSON.
type ToldProblem struct {
	VM   string
	VMID int
	Step Step
	Text string
}

func told(problems []Problem) []ToldProblem {
	all := []ToldProblem{}
	for _, p := range problems {
		all = append(all, ToldProblem{VM: p.VM, VMID: p.VMID, Step: p.Step, Text: p.Err.Error()})
	}
	return all
}

// Issued is one of the two outputs of RequestFor: the first contains the request's name,
// the second the certificate chain and its key, or an error.
type Issued struct {
	Name  string   `json:"name,omitempty"`
	Chain [][]byte `json:"chain,omitempty"`
	// Key is in PKCS #8.
	Key []byte `json:"key,omitempty"`
	// Denied is set if the error is ErrDenied.
	Denied bool   `json:"denied,omitempty"`
	Error  string `json:"error,omitempty"`
}

// RequestFor reads Documents, requests the certificate of a node with them, and prints an
// Issued when the request is created and another when the certificate is issued or an error
// ends the wait.
func RequestFor(ctx context.Context, node string, in io.Reader, out io.Writer) error {
	var documents Documents
	if err := json.NewDecoder(in).Decode(&documents); err != nil {
		return fmt.Errorf("reading documents: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, in) // the caller closes it to stop waiting
	}()
	printed := json.NewEncoder(out)
	issued, err := requestFor(ctx, node, documents, func(name string) error { return printed.Encode(Issued{Name: name}) })
	if err != nil {
		issued = Issued{Error: err.Error(), Denied: errors.Is(err, ErrDenied)}
	}
	return printed.Encode(issued)
}

func requestFor(ctx context.Context, node string, documents Documents, made func(name string) error) (Issued, error) {
	join, err := NewJoin(documents)
	if err != nil {
		return Issued{}, err
	}
	request, err := join.RequestCertificate(ctx, node)
	if err != nil {
		return Issued{}, err
	}
	defer request.Close()
	if err := made(request.Name); err != nil {
		return Issued{}, err
	}
	certificate, err := request.Wait(ctx)
	if err != nil {
		return Issued{}, err
	}
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	return Issued{Chain: certificate.Certificate, Key: key}, err
}
