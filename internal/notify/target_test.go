package notify_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"mime/quotedprintable"
	"net"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/notify"
	"github.com/numaform/numaform/internal/redact"
)

// token is in all secrets of these tests, and may be in no error.
const token = "s3cr3t-of-the-target"

// hostile is text of someone who can create pods.
const hostile = "pod x/y\r\nBcc: victim@example.org\r\n\r\n.\r\nQUIT <!channel> <@U123> <http://evil|ok> & @here @Channel @all @everyone @room \u202egnp.exe\u2066 \x1b[31m \u200b\u2028z"

// written returns the path of a file with the content.
func written(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// authority returns a file with the certificate of a server.
func authority(t *testing.T, server *httptest.Server) string {
	t.Helper()
	return written(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
}

// call is a request that a server got.
type call struct {
	method, path, authorization string
	body                        []byte
}

// server starts a server with TLS that records requests and responds with status and body.
func server(t *testing.T, status int, body string, calls *[]call) *httptest.Server {
	t.Helper()
	var mu sync.Mutex
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, _ := io.ReadAll(r.Body)
		mu.Lock()
		*calls = append(*calls, call{r.Method, r.URL.EscapedPath(), r.Header.Get("Authorization"), content})
		mu.Unlock()
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	return s
}

// message returns a message with one notification.
func message(t *testing.T, text string) *notify.Message {
	t.Helper()
	var got *notify.Message
	c := config()
	redactor := redact.New(nil)
	redactor.Learn("planted-secret")
	c.Redact = redactor.Text
	n := notify.New(c)
	n.Replace(func(_ context.Context, _ string, m *notify.Message) error { got = m; return nil })
	n.Publish(notify.Notice{Kind: notify.Failed, Reason: "VMFailed", Object: "NodePool " + text, Message: text, Key: "1"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n.Run(ctx)
	return got
}

func same(text string) string { return text }

func TestWebhook(t *testing.T) {
	t.Parallel()
	var calls []call
	s := server(t, http.StatusNoContent, "", &calls)
	target := notify.Target{Name: "hook", Type: notify.Webhook, URLFile: written(t, s.URL+"/hook/"+token+"\n"), Token: token, CAFile: authority(t, s)}
	if err := errors.Join(target.Check()...); err != nil {
		t.Fatal(err)
	}
	if err := target.Send(t.Context(), message(t, hostile), same); err != nil {
		t.Fatal(err)
	}
	if len(calls) != 1 || calls[0].method != http.MethodPost || calls[0].path != "/hook/"+token || calls[0].authorization != "Bearer "+token {
		t.Fatalf("got %+v", calls)
	}
	var got notify.Message
	if err := json.Unmarshal(calls[0].body, &got); err != nil || got.Version != 1 || got.ClusterID != "prod" || len(got.Notices) != 1 || got.Omitted == nil {
		t.Errorf("got %s, %v", calls[0].body, err)
	}
	if item := got.Notices[0]; item.Kind != notify.Failed || item.Reason != "VMFailed" || strings.ContainsAny(item.Message+item.Object, "\r\n\x1b\u202e\u2066\u200b\u2028") {
		t.Errorf("got %+v", item)
	}
}

func TestSlack(t *testing.T) {
	t.Parallel()
	var calls []call
	s := server(t, http.StatusOK, "ok", &calls)
	target := notify.Target{Name: "chat", Type: notify.Slack, URL: s.URL + "/services/T0/B0/" + token, CAFile: authority(t, s)}
	if err := target.Send(t.Context(), message(t, hostile), same); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Text  string `json:"text"`
		Parse string `json:"parse"`
	}
	if err := json.Unmarshal(calls[0].body, &got); err != nil || got.Parse != "none" {
		t.Fatalf("got %s, %v", calls[0].body, err)
	}
	for _, forbidden := range []string{"<", ">", "@here", "@Channel", "@all", "@everyone", "\r", "\x1b", "\u202e"} {
		if strings.Contains(got.Text, forbidden) {
			t.Errorf("the message contains %q: %q", forbidden, got.Text)
		}
	}
	if !strings.Contains(got.Text, "&lt;!channel&gt; &lt;@U123&gt;") || !strings.Contains(got.Text, "@\u200bhere") {
		t.Errorf("got %q", got.Text)
	}
}

func TestMatrix(t *testing.T) {
	t.Parallel()
	var calls []call
	s := server(t, http.StatusOK, `{"event_id":"$1"}`, &calls)
	target := notify.Target{Name: "room", Type: notify.Matrix, URL: s.URL + "/", TokenFile: written(t, token), Room: "!a/b:example.org", CAFile: authority(t, s)}
	if len(target.Check()) == 0 {
		t.Error("a room with / was accepted")
	}
	target.Room = "!ab:example.org"
	if err := errors.Join(target.Check()...); err != nil {
		t.Fatal(err)
	}
	m := message(t, hostile)
	for range 2 {
		if err := target.Send(t.Context(), m, same); err != nil {
			t.Fatal(err)
		}
	}
	path := "/_matrix/client/v3/rooms/%21ab:example.org/send/m.room.message/"
	if c := calls[0]; c.method != http.MethodPut || !strings.HasPrefix(c.path, path) || c.authorization != "Bearer "+token || c.path != calls[1].path {
		t.Errorf("got %s %s and %s, want PUT %s… twice with the same transaction", c.method, c.path, calls[1].path, path)
	}
	var got struct {
		Body     string          `json:"body"`
		Type     string          `json:"msgtype"`
		Mentions json.RawMessage `json:"m.mentions"`
	}
	if err := json.Unmarshal(calls[0].body, &got); err != nil || got.Type != "m.notice" || string(got.Mentions) != "{}" || strings.Contains(got.Body, "@room") {
		t.Errorf("got %s, %v", calls[0].body, err)
	}
	if err := target.Probe(t.Context(), same); err != nil || calls[2].method != http.MethodGet || calls[2].path != "/_matrix/client/v3/account/whoami" {
		t.Errorf("got %v, %+v", err, calls[2])
	}
}

// TestNoSecretInMessages checks that secrets in the text of an error do not leave numaform.
func TestNoSecretInMessages(t *testing.T) {
	t.Parallel()
	m := message(t, "cloning: planted-secret refused; root@pam!numaform=12345678-1234-1234-1234-123456789abc, https://hooks.slack.com/services/T000/B000/XXXXXXXX "+
		"Authorization: Bearer abcdefgh12345678 syt_bm90aWZ5_abcdefgh_1x2y3z password=hunter22")
	for _, secret := range []string{"planted-secret", "123456789abc", "B000", "abcdefgh", "hunter22"} {
		if content, err := json.Marshal(m); err != nil || strings.Contains(string(content), secret) {
			t.Errorf("the message contains %s: %s", secret, content)
		}
	}
	if subject := message(t, hostile).Subject(); subject != "numaform prod: 1 failed" {
		t.Errorf("got the subject %q", subject)
	}
}

// TestErrorsHaveNoSecret checks the errors of targets that do not work.
func TestErrorsHaveNoSecret(t *testing.T) {
	t.Parallel()
	var calls, stolen []call
	echo := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, "%s %s %s", r.URL, r.Header.Get("Authorization"), "\x1b]0;title\a"+token)
	}))
	t.Cleanup(echo.Close)
	other := server(t, http.StatusOK, "", &stolen)
	redirect := httptest.NewTLSServer(http.RedirectHandler(other.URL+"/"+token, http.StatusTemporaryRedirect))
	t.Cleanup(redirect.Close)
	gone := server(t, http.StatusNotFound, "no_service", &calls)
	matrix := server(t, http.StatusForbidden, `{"errcode":"M_FORBIDDEN","error":"`+token+`"}`, &calls)
	down, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = down.Close()

	hook := func(url string) notify.Target {
		return notify.Target{Name: "hook", Type: notify.Webhook, URL: url + "/" + token, Token: token, CAFile: authority(t, echo)}
	}
	missing, unknown, empty := hook(echo.URL), hook(echo.URL), hook(echo.URL)
	missing.URL, missing.URLFile = "", "/nonexistent/url"
	unknown.CAFile = ""
	empty.URL, empty.URLFile = "", written(t, token+"\nsecond line")
	slack := hook(gone.URL)
	slack.Type, slack.Token = notify.Slack, ""
	room := notify.Target{Name: "room", Type: notify.Matrix, URL: matrix.URL, Token: token, Room: "!a:b", CAFile: authority(t, matrix)}
	for _, test := range []struct {
		name   string
		target notify.Target
		want   string
	}{
		{"echoes the request", hook(echo.URL), "the server responded with status 403: check the token"},
		{"redirects", hook(redirect.URL), "status 307: set the URL to which it redirects"},
		{"gone", slack, "status 404 no_service: check the URL"},
		{"forbidden", room, "status 403 M_FORBIDDEN: check the token"},
		{"down", hook("https://" + down.Addr().String()), "connection refused"},
		{"no host", hook("https://" + token + ".invalid"), "sending the request"},
		{"unknown authority", unknown, "certificate signed by unknown authority"},
		{"no file", missing, "reading url_file: open /nonexistent/url: no such file or directory"},
		{"two lines", empty, "must contain one line"},
		{"no URL", hook("::" + token), "url: must be a URL"},
		{"control characters", hook("https://a\x00" + token), "url: must be a URL"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := test.target.Send(t.Context(), message(t, "x"), same)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), token) || strings.ContainsAny(err.Error(), "\x1b\a\n") {
				t.Errorf("got %q, want %q and no secret", err, test.want)
			}
		})
	}
	t.Cleanup(func() {
		if len(stolen) > 0 {
			t.Errorf("the redirect was followed, with the token: %+v", stolen)
		}
	})
}

// TestSlowServers checks that a server that never responds, or that responds slowly enough to
// look alive, holds an attempt only until its context ends.
func TestSlowServers(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer func() { _ = connection.Close() }()
				_, _ = io.WriteString(connection, "220-")
				_, _ = io.Copy(io.Discard, connection) // until the client gives up
			})
		}
	})
	t.Cleanup(func() { _ = listener.Close(); serving.Wait() })
	address := listener.Addr().String()
	for _, target := range []notify.Target{
		{Name: "hook", Type: notify.Webhook, URL: "https://" + address},
		{Name: "plain", Type: notify.Webhook, URL: "http://" + address},
		{Name: "mail", Type: notify.Mail, Server: address, From: "a@example.org", To: []string{"b@example.org"}},
		{Name: "mails", Type: notify.Mail, Server: address, TLS: notify.Implicit, From: "a@example.org", To: []string{"b@example.org"}},
	} {
		t.Run(target.Name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			begin := time.Now()
			if err := target.Send(ctx, message(t, "x"), same); err == nil {
				t.Error("got no error")
			}
			if took := time.Since(begin); took > 10*time.Second {
				t.Errorf("the attempt took %s", took)
			}
		})
	}
}

// letter is a mail that a server got.
type letter struct {
	from string
	to   []string
	data string
	auth string
	tls  bool
}

// mailServer starts a mail server. It offers STARTTLS if starttls is set, and encrypts
// from the start if implicit is set.
func mailServer(t *testing.T, starttls, implicit bool, letters chan<- letter) (address, ca string) {
	t.Helper()
	web := httptest.NewTLSServer(nil)
	t.Cleanup(web.Close)
	secure := &tls.Config{Certificates: web.TLS.Certificates}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if implicit {
		listener = tls.NewListener(listener, secure)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { converse(connection, starttls, implicit, secure, letters) })
		}
	})
	t.Cleanup(func() { _ = listener.Close(); serving.Wait() })
	return listener.Addr().String(), authority(t, web)
}

func converse(connection net.Conn, starttls, encrypted bool, secure *tls.Config, letters chan<- letter) {
	defer func() { _ = connection.Close() }()
	in := bufio.NewReader(connection)
	say := func(line string) { _, _ = io.WriteString(connection, line+"\r\n") }
	var got letter
	got.tls = encrypted
	say("220 test")
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		verb := strings.ToUpper(strings.Fields(line + " x")[0])
		switch verb {
		case "EHLO":
			say("250-test")
			if starttls && !got.tls {
				say("250-STARTTLS")
			}
			say("250-AUTH PLAIN LOGIN")
			say("250 8BITMIME")
		case "STARTTLS":
			say("220 go")
			connection = tls.Server(connection, secure)
			in, got.tls = bufio.NewReader(connection), true
		case "AUTH":
			got.auth = strings.TrimSpace(line)
			decoded, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(got.auth, "AUTH PLAIN "))
			if !strings.HasSuffix(string(decoded), token) {
				say("535 wrong password " + string(decoded))
				continue
			}
			say("235 ok")
		case "MAIL":
			got.from = strings.TrimSpace(line)
			say("250 ok")
		case "RCPT":
			got.to = append(got.to, strings.TrimSpace(line))
			say("250 ok")
		case "DATA":
			say("354 go")
			for {
				text, err := in.ReadString('\n')
				if err != nil {
					return
				}
				if text == ".\r\n" {
					break
				}
				got.data += text
			}
			letters <- got
			say("250 ok")
		case "QUIT":
			say("221 bye")
			return
		default:
			say("250 ok")
		}
	}
}

func TestMail(t *testing.T) {
	t.Parallel()
	for _, implicit := range []bool{false, true} {
		letters := make(chan letter, 10)
		address, ca := mailServer(t, true, implicit, letters)
		target := notify.Target{
			Name: "mail", Type: notify.Mail, Server: address, CAFile: ca, Username: "numaform", PasswordFile: written(t, token),
			From: "numaform@example.org", To: []string{"ops@example.org", "boss@example.org"},
		}
		if implicit {
			target.TLS = notify.Implicit
		}
		if err := errors.Join(target.Check()...); err != nil {
			t.Fatal(err)
		}
		if err := target.Probe(t.Context(), same); err != nil {
			t.Fatalf("implicit %v: %v", implicit, err)
		}
		if err := target.Send(t.Context(), message(t, hostile+" .\r\n.\r\nMAIL FROM:<x>"), same); err != nil {
			t.Fatalf("implicit %v: %v", implicit, err)
		}
		got := <-letters
		if !got.tls || got.auth == "" || !strings.HasPrefix(got.from, "MAIL FROM:<numaform@example.org>") || len(got.to) != 2 {
			t.Errorf("got %+v", got)
		}
		parsed, err := mail.ReadMessage(strings.NewReader(got.data))
		if err != nil {
			t.Fatal(err)
		}
		if h := parsed.Header; h.Get("Bcc") != "" || h.Get("Subject") != "numaform prod: 1 failed" || h.Get("Auto-Submitted") != "auto-generated" || h.Get("Message-Id") == "" {
			t.Errorf("got the headers %v", parsed.Header)
		}
		body, err := io.ReadAll(quotedprintable.NewReader(parsed.Body))
		if err != nil || !strings.Contains(string(body), "pod x/y Bcc: victim@example.org . QUIT") || strings.ContainsAny(string(body), "\x1b\u202e") {
			t.Errorf("got %q, %v", body, err)
		}
		if len(letters) != 0 {
			t.Error("more than one mail was sent")
		}
	}
}

// TestMailRefuses checks that no password and no mail leaves unencrypted, and what the errors
// say.
func TestMailRefuses(t *testing.T) {
	t.Parallel()
	letters := make(chan letter, 10)
	bare, ca := mailServer(t, false, false, letters)
	good, goodCA := mailServer(t, true, false, letters)
	target := func(server, ca, mode, password string) notify.Target {
		return notify.Target{
			Name: "mail", Type: notify.Mail, Server: server, CAFile: ca, TLS: mode, Username: "numaform", Password: password,
			From: "numaform@example.org", To: []string{"ops@example.org"},
		}
	}
	_, port, _ := net.SplitHostPort(good)
	for _, test := range []struct {
		name   string
		target notify.Target
		want   string
	}{
		{"no STARTTLS", target(bare, ca, "", token), "STARTTLS"},
		{"unknown authority", target(good, "", "", token), "certificate signed by unknown authority"},
		{"other name", target("localhost:"+port, goodCA, "", token), "certificate is valid for"},
		{"wrong password", target(good, goodCA, "", "wrong-"+token+"-no"), "535"},
		{"TLS to a server without", target(bare, ca, notify.Implicit, token), "tls: first record does not look like a TLS handshake"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for _, try := range []func(context.Context) error{
				func(ctx context.Context) error { return test.target.Send(ctx, message(t, "x"), same) },
				func(ctx context.Context) error { return test.target.Probe(ctx, same) },
			} {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				err := try(ctx)
				cancel()
				if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), token) {
					t.Errorf("got %q, want %q and no secret", err, test.want)
				}
			}
		})
	}
	t.Cleanup(func() {
		if len(letters) > 0 {
			t.Errorf("a mail was sent: %+v", <-letters)
		}
	})

	open := notify.Target{Name: "mail", Type: notify.Mail, Server: bare, TLS: notify.NoTLS, From: "a@example.org", To: []string{"b@example.org"}}
	own := make(chan letter, 1)
	open.Server, _ = mailServer(t, false, false, own)
	if err := open.Send(t.Context(), message(t, "x"), same); err != nil || len(own) != 1 {
		t.Errorf("a server without encryption, as configured: %v", err)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	hook := notify.Target{Name: "a", Type: notify.Webhook, URL: "http://bot.chat.svc/hook"}
	room := notify.Target{Name: "a", Type: notify.Matrix, URL: "https://m.example.org", Token: token, Room: "!a:b"}
	post := notify.Target{Name: "a", Type: notify.Mail, Server: "mail.example.org:587", From: "a@example.org", To: []string{"b@example.org"}}
	with := func(t notify.Target, change func(*notify.Target)) notify.Target {
		t.To = slices.Clone(t.To)
		change(&t)
		return t
	}
	for _, test := range []struct {
		target notify.Target
		want   string
	}{
		{hook, ""},
		{room, ""},
		{post, ""},
		{with(hook, func(t *notify.Target) { t.Name = "A b" }), `name "A b": must be 1 to 32 characters`},
		{with(hook, func(t *notify.Target) { t.Type = "teams" }), `type "teams": must be one of webhook, slack, matrix, mail`},
		{with(hook, func(t *notify.Target) { t.Kinds = []string{"all"} }), `kinds: "all": must be one of waiting, denied, failed`},
		{with(hook, func(t *notify.Target) { t.URL = "" }), "url or url_file: must be set for the type webhook"},
		{with(hook, func(t *notify.Target) { t.Token = token }), "url: must begin with https://, because it is sent with a secret"},
		{with(hook, func(t *notify.Target) { t.URL = "https://u:" + token + "@h/" }), "url: must not contain a user or password"},
		{with(hook, func(t *notify.Target) { t.URL = "ftp://" + token }), "url: must be a URL such as"},
		{with(hook, func(t *notify.Target) { t.Room = "!a:b" }), "room: has no effect on the type webhook: remove it"},
		{with(hook, func(t *notify.Target) { t.Type = notify.Slack }), "url: must begin with https://"},
		{with(room, func(t *notify.Target) { t.URL = "https://m.example.org/?access_token=" + token }), "url: must be the URL of the Matrix server"},
		{with(room, func(t *notify.Target) { t.Room = "#ops:example.org" }), "an alias, which begins with #, is not enough"},
		{with(room, func(t *notify.Target) { t.Token = "" }), "token or token_file: must be set for the type matrix"},
		{with(post, func(t *notify.Target) { t.Server = "mail.example.org" }), `server "mail.example.org": must be HOST:PORT`},
		{with(post, func(t *notify.Target) { t.TLS = "ssl" }), `tls "ssl": must be starttls, implicit or none`},
		{with(post, func(t *notify.Target) { t.TLS, t.Username, t.Password = "none", "u", token }), "would send the password unencrypted"},
		{with(post, func(t *notify.Target) { t.Password = token }), "username: must be set with a password"},
		{with(post, func(t *notify.Target) { t.Username = "u" }), "password or password_file: must be set for the type mail"},
		{with(post, func(t *notify.Target) { t.To[0] = "b@example.org\r\nBcc: c@example.org" }), "to[0]"},
		{with(post, func(t *notify.Target) { t.From = "Ops <a@example.org>" }), "from \"Ops <a@example.org>\": must be a mail address without a name"},
	} {
		err := errors.Join(test.target.Check()...)
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%+v: %v", test.target, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), token)):
			t.Errorf("got %v, want %q and no secret", err, test.want)
		}
	}
}
