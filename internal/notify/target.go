package notify

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/mail"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The types of targets.
const (
	Webhook = "webhook"
	Slack   = "slack"
	Matrix  = "matrix"
	Mail    = "mail"
)

// The encryption of connections to a mail server.
const (
	StartTLS = "starttls"
	Implicit = "implicit"
	NoTLS    = "none"
)

// MaxTargets limits the number of targets, because a ConfigMap stores what each one got.
const MaxTargets = 10

// Target is where notifications are sent, as numaform.yaml configures it. Files with secrets
// are read for each message, so that a secret can be rotated.
type Target struct {
	// Name identifies the target in logs.
	Name string `yaml:"name"`
	Type string `yaml:"type"`
	// Kinds are the kinds of notifications that the target gets; empty means all.
	Kinds []string `yaml:"kinds"`
	// URL is the URL of a webhook, which is a secret, or of a Matrix server.
	URL     string `yaml:"url"`
	URLFile string `yaml:"url_file"`
	// CAFile contains CA certificates to trust instead of the system's.
	CAFile string `yaml:"ca_file"`
	// Token is the access token for Matrix, or the bearer token for a webhook.
	Token     string `yaml:"token"`
	TokenFile string `yaml:"token_file"`
	// Room is the ID of a Matrix room.
	Room string `yaml:"room"`
	// Server is the HOST:PORT of a mail server, and TLS its encryption.
	Server       string   `yaml:"server"`
	TLS          string   `yaml:"tls"`
	Username     string   `yaml:"username"`
	Password     string   `yaml:"password"`
	PasswordFile string   `yaml:"password_file"`
	From         string   `yaml:"from"`
	To           []string `yaml:"to"`
}

var (
	targetName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)
	room       = regexp.MustCompile(`^![^\s/?#]{1,254}$`)
)

// Check returns all mistakes in a target. It reads no files.
func (t *Target) Check() []error {
	var mistakes []error
	wrong := func(format string, values ...any) { mistakes = append(mistakes, fmt.Errorf(format, values...)) }
	if !targetName.MatchString(t.Name) {
		wrong("name %q: must be 1 to 32 characters of a-z, 0-9 and -, beginning and ending with a letter or digit", t.Name)
	}
	for _, kind := range t.Kinds {
		if !slices.Contains(Kinds(), Kind(kind)) {
			wrong("kinds: %q: must be one of %s", kind, join(Kinds()))
		}
	}
	types := []string{Webhook, Slack, Matrix, Mail}
	if !slices.Contains(types, t.Type) {
		wrong("type %q: must be one of %s", t.Type, join(types))
		return mistakes
	}
	mistakes = append(mistakes, t.checkKeys()...)
	if t.URL != "" && t.URLFile == "" && t.Type != Mail {
		if err := t.checkURL(t.URL); err != nil {
			mistakes = append(mistakes, err)
		}
	}
	if t.Room != "" && !room.MatchString(t.Room) {
		wrong("room %q: must be the ID of a room, such as !abc:example.org: the settings of the room show it; an alias, which begins with #, is not enough", t.Room)
	}
	if t.Type == Mail {
		mistakes = append(mistakes, t.checkMail()...)
	}
	return mistakes
}

// checkKeys returns an error for each key that is missing, or has no effect on the type.
func (t *Target) checkKeys() []error {
	var mistakes []error
	for _, key := range []struct {
		name     string
		set      bool
		types    []string
		required bool
	}{
		{"url or url_file", t.URL != "" || t.URLFile != "", []string{Webhook, Slack, Matrix}, true},
		{"token or token_file", t.Token != "" || t.TokenFile != "", []string{Matrix}, t.Type != Webhook},
		{"room", t.Room != "", []string{Matrix}, true},
		{"server", t.Server != "", []string{Mail}, true},
		{"tls", t.TLS != "", []string{Mail}, false},
		{"username", t.Username != "", []string{Mail}, false},
		{"password or password_file", t.Password != "" || t.PasswordFile != "", []string{Mail}, t.Username != ""},
		{"from", t.From != "", []string{Mail}, true},
		{"to", len(t.To) > 0, []string{Mail}, true},
	} {
		applies := slices.Contains(key.types, t.Type) || t.Type == Webhook && strings.HasPrefix(key.name, "token")
		switch {
		case applies && key.required && !key.set:
			mistakes = append(mistakes, fmt.Errorf("%s: must be set for the type %s", key.name, t.Type))
		case !applies && key.set:
			mistakes = append(mistakes, fmt.Errorf("%s: has no effect on the type %s: remove it", key.name, t.Type))
		}
	}
	return mistakes
}

func (t *Target) checkMail() []error {
	var mistakes []error
	wrong := func(format string, values ...any) { mistakes = append(mistakes, fmt.Errorf(format, values...)) }
	if _, _, err := t.server(); t.Server != "" && err != nil {
		wrong("server %q: must be HOST:PORT, such as mail.example.org:587", t.Server)
	}
	if !slices.Contains([]string{"", StartTLS, Implicit, NoTLS}, t.TLS) {
		wrong("tls %q: must be %s, %s or %s", t.TLS, StartTLS, Implicit, NoTLS)
	}
	if t.TLS == NoTLS && t.Username != "" {
		wrong("tls %q: would send the password unencrypted: set it to %s or %s, or remove username", t.TLS, StartTLS, Implicit)
	}
	if t.Username == "" && (t.Password != "" || t.PasswordFile != "") {
		wrong("username: must be set with a password")
	}
	for i, address := range append([]string{t.From}, t.To...) {
		key := "from"
		if i > 0 {
			key = fmt.Sprintf("to[%d]", i-1)
		}
		parsed, err := mail.ParseAddress(address)
		if address != "" && (err != nil || parsed.Address != address) || address == "" && i > 0 {
			wrong("%s %q: must be a mail address without a name, such as ops@example.org", key, address)
		}
	}
	return mistakes
}

// server returns the host and port of the mail server.
func (t *Target) server() (host string, port int, err error) {
	host, text, err := net.SplitHostPort(t.Server)
	if err != nil {
		return "", 0, err
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil || number == 0 || host == "" {
		return "", 0, errors.New("no host or port")
	}
	return host, int(number), nil
}

// checkURL returns an error without the URL, because it may contain a token.
func (t *Target) checkURL(text string) error {
	parsed, err := url.Parse(text)
	plainAllowed := t.Type == Webhook && t.Token == "" && t.TokenFile == ""
	switch {
	case err != nil || parsed.Host == "" || parsed.Scheme != "https" && parsed.Scheme != "http":
		return errors.New("url: must be a URL such as https://HOST/PATH (the value may be a secret and is not shown)")
	case parsed.User != nil:
		return errors.New("url: must not contain a user or password: remove them; for a webhook, set token_file")
	case parsed.Scheme == "http" && !plainAllowed:
		return errors.New("url: must begin with https://, because it is sent with a secret")
	case t.Type == Matrix && (parsed.RawQuery != "" || parsed.Fragment != ""):
		return errors.New("url: must be the URL of the Matrix server, such as https://matrix.example.org, without a query")
	}
	return nil
}

// Secrets returns the values of the target that must not appear in a text. A file that
// cannot be read has none.
func (t *Target) Secrets() []string {
	var secrets []string
	pairs := [][2]string{{t.Token, t.TokenFile}, {t.Password, t.PasswordFile}}
	if t.Type != Matrix {
		pairs = append(pairs, [2]string{t.URL, t.URLFile})
	}
	for _, pair := range pairs {
		value, err := secretOf("", pair[0], pair[1])
		if err != nil {
			continue
		}
		secrets = append(secrets, value)
		if parsed, err := url.Parse(value); err == nil && len(parsed.Path) > 12 {
			secrets = append(secrets, parsed.Path) // a server may repeat it
		}
	}
	return slices.DeleteFunc(secrets, func(secret string) bool { return secret == "" })
}

// SecretFiles returns the files with secrets.
func (t *Target) SecretFiles() []string {
	return slices.DeleteFunc([]string{t.URLFile, t.TokenFile, t.PasswordFile}, func(path string) bool { return path == "" })
}

// maxSecret limits the size of a file with a secret.
const maxSecret = 16 << 10

// secretOf returns a secret from its value or its file.
func secretOf(key, value, path string) (string, error) {
	if path == "" {
		return value, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("reading %s_file: %w: correct the path, or create the file", key, err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	content, err := io.ReadAll(io.LimitReader(file, maxSecret))
	if err != nil {
		return "", fmt.Errorf("reading %s_file: %w", key, err)
	}
	text := strings.TrimSpace(string(content))
	if text == "" || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", fmt.Errorf("reading %s_file: %s: must contain one line", key, path)
	}
	return text, nil
}

// Send sends a message. The error contains no secret.
func (t *Target) Send(ctx context.Context, m *Message, redact func(string) string) error {
	return t.clean(t.deliver(ctx, m), redact)
}

// Probe checks whether the target can be reached with its secrets, without sending a
// message: for Matrix and mail, it logs in. The error contains no secret.
func (t *Target) Probe(ctx context.Context, redact func(string) string) error {
	return t.clean(t.probe(ctx), redact)
}

// clean returns an error without secrets. Its text may come from a server.
func (t *Target) clean(err error, redact func(string) string) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	for _, secret := range t.Secrets() {
		text = strings.ReplaceAll(text, secret, "…")
	}
	return errors.New(plain(redact(text), maxText))
}

func (t *Target) deliver(ctx context.Context, m *Message) error {
	if t.Type == Mail {
		return t.sendMail(ctx, m)
	}
	address, err := t.address()
	if err != nil {
		return err
	}
	token, err := secretOf("token", t.Token, t.TokenFile)
	if err != nil {
		return err
	}
	switch t.Type {
	case Slack:
		// Slack reads <!channel> and links in a text, unless &, < and > are escaped.
		text := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(unmentioned(m.Text))
		return t.request(ctx, http.MethodPost, address, "", map[string]any{
			"text": text, "parse": "none", "link_names": false, "unfurl_links": false, "unfurl_media": false,
		})
	case Matrix:
		content := map[string]any{"msgtype": "m.notice", "body": unmentioned(m.Text), "m.mentions": map[string]any{}}
		// The server ignores a second request with the same transaction.
		sum := sha256.Sum256([]byte(m.Text))
		path := "/_matrix/client/v3/rooms/" + url.PathEscape(t.Room) + "/send/m.room.message/" + hex.EncodeToString(sum[:16])
		return t.request(ctx, http.MethodPut, strings.TrimSuffix(address, "/")+path, token, content)
	}
	shown := *m
	shown.Text = unmentioned(m.Text)
	return t.request(ctx, http.MethodPost, address, token, shown)
}

func (t *Target) probe(ctx context.Context) error {
	if t.Type == Mail {
		return t.probeMail(ctx)
	}
	address, err := t.address()
	if err != nil {
		return err
	}
	token, err := secretOf("token", t.Token, t.TokenFile)
	if err != nil {
		return err
	}
	if t.Type == Matrix {
		return t.request(ctx, http.MethodGet, strings.TrimSuffix(address, "/")+"/_matrix/client/v3/account/whoami", token, nil)
	}
	return t.dial(ctx, address)
}

// address returns the URL of the target.
func (t *Target) address() (string, error) {
	address, err := secretOf("url", t.URL, t.URLFile)
	if err != nil {
		return "", err
	}
	return address, t.checkURL(address)
}

// dial connects to the server of a URL and checks its certificate.
func (t *Target) dial(ctx context.Context, address string) error {
	parsed, err := url.Parse(address)
	if err != nil {
		return errors.New("the URL is invalid")
	}
	if proxy, err := http.ProxyFromEnvironment(&http.Request{URL: parsed}); err == nil && proxy != nil {
		return nil // only the proxy can reach it
	}
	port := parsed.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[parsed.Scheme]
	}
	trust, err := t.trust(parsed.Hostname())
	if err != nil {
		return err
	}
	server := net.JoinHostPort(parsed.Hostname(), port)
	var connection net.Conn
	if parsed.Scheme == "http" {
		connection, err = new(net.Dialer).DialContext(ctx, "tcp", server)
	} else {
		connection, err = (&tls.Dialer{Config: trust}).DialContext(ctx, "tcp", server)
	}
	if err != nil {
		return err
	}
	return connection.Close()
}

// trust returns the TLS configuration for a server.
func (t *Target) trust(server string) (*tls.Config, error) {
	config := &tls.Config{ServerName: server, MinVersion: tls.VersionTLS12}
	if t.CAFile == "" {
		return config, nil
	}
	content, err := os.ReadFile(t.CAFile)
	if err != nil {
		return nil, fmt.Errorf("reading ca_file: %w: correct the path", err)
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(content) {
		return nil, fmt.Errorf("reading ca_file: %s contains no certificate in PEM", t.CAFile)
	}
	return config, nil
}

// slackCode and matrixCode match the codes of errors. No other text of a response is
// reported.
var (
	slackCode  = regexp.MustCompile(`^[a-z_]{1,40}$`)
	matrixCode = regexp.MustCompile(`^M_[A-Z_]{1,40}$`)
)

// request sends a request and checks the response. It follows no redirects, which could
// lead a token to another server.
func (t *Target) request(ctx context.Context, method, address, token string, content any) error {
	trust, err := t.trust("")
	if err != nil {
		return err
	}
	body, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("encoding the message: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return errors.New("the URL is invalid") // the error contains it
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "numaform")
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: trust, DisableKeepAlives: true, ForceAttemptHTTP2: true, MaxResponseHeaderBytes: 64 << 10}
	defer transport.CloseIdleConnections()
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err // without the URL
		}
		return fmt.Errorf("sending the request: %w", err)
	}
	defer response.Body.Close()                                    //nolint:errcheck // it was only read
	answer, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10)) // only for the code of an error
	if response.StatusCode >= 200 && response.StatusCode < 300 {
		return nil
	}
	code := string(bytes.TrimSpace(answer))
	pattern := slackCode
	if t.Type == Matrix {
		var problem struct {
			Code string `json:"errcode"`
		}
		_ = json.Unmarshal(answer, &problem) // another server may respond
		code, pattern = problem.Code, matrixCode
	}
	if !pattern.MatchString(code) {
		code = ""
	}
	return fmt.Errorf("the server responded with status %d%s: %s", response.StatusCode, strings.TrimRight(" "+code, " "), fixFor(response.StatusCode))
}

// fixFor returns the hint for a status.
func fixFor(status int) string {
	switch {
	case status >= 300 && status < 400:
		return "set the URL to which it redirects"
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return "check the token, and whether its user may write there"
	case status == http.StatusNotFound || status == http.StatusGone:
		return "check the URL, or create a new one"
	case status == http.StatusTooManyRequests:
		return "numaform retries later"
	case status >= 500:
		return "check the server; numaform retries later"
	}
	return "check the URL and the type of the target"
}

func join[T ~string](list []T) string {
	texts := make([]string, len(list))
	for i := range list {
		texts[i] = string(list[i])
	}
	return strings.Join(texts, ", ")
}
