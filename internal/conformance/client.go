package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Login is a token, or a user with a password.
type Login struct {
	TokenID, TokenSecret string
	Username, Password   string
}

// answer is a response from Proxmox.
type answer struct {
	status int
	reason string
	data   any // numbers are json.Number
	errors map[string]string
	meta   map[string]any
}

// maxAnswer is the maximum number of bytes read from a response.
const maxAnswer = 64 << 20

// send sends one request with a credential; nil means none.
func (r *run) send(ctx context.Context, s *Step, as http.Header) (*answer, error) {
	method, path, _ := strings.Cut(s.Request, " ")
	values := url.Values{}
	for key, value := range s.Params {
		values.Set(key, value)
	}
	var body io.Reader
	header := http.Header{"User-Agent": {"numaform-conformance"}}
	switch {
	case s.File != nil:
		text := &bytes.Buffer{}
		form := multipart.NewWriter(text)
		var errs []error
		for key, value := range s.Params {
			errs = append(errs, form.WriteField(key, value))
		}
		part, err := form.CreateFormFile("filename", s.File.Name)
		if err == nil {
			_, err = io.WriteString(part, s.File.Text)
		}
		if err := errors.Join(append(errs, err, form.Close())...); err != nil {
			return nil, fmt.Errorf("encoding an upload: %w", err)
		}
		body = text
		header.Set("Content-Type", form.FormDataContentType())
	case method == http.MethodPost || method == http.MethodPut:
		body = strings.NewReader(values.Encode())
		header.Set("Content-Type", "application/x-www-form-urlencoded")
	case len(values) > 0:
		path += "?" + values.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, body)
	if err != nil {
		return nil, fmt.Errorf("creating request %s: %w", s.Request, err)
	}
	req.Header = header
	for key, texts := range as {
		req.Header[key] = texts
	}
	for key, text := range s.Header {
		req.Header.Set(key, text)
	}
	response, err := r.cfg.Client.Do(req)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok { // it would repeat the address
			err = failed.Err
		}
		return nil, fmt.Errorf("sending %s: %w", s.Request, err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("reading the response to %s: %w", s.Request, err)
	}

	_, reason, _ := strings.Cut(response.Status, " ")
	got := &answer{status: response.StatusCode, reason: reason, meta: map[string]any{}}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if decoder.Decode(&got.meta) != nil { // errors of the web server itself are not JSON
		got.meta = map[string]any{}
		return got, nil
	}
	got.data = got.meta["data"]
	if reported, ok := got.meta["errors"].(map[string]any); ok {
		got.errors = map[string]string{}
		for name, value := range reported {
			got.errors[name] = textOf(value)
		}
	}
	return got, nil
}

// header returns the HTTP headers that authenticate a login. For a login with a password,
// it requests a ticket.
func (r *run) header(ctx context.Context, login *Login) (http.Header, error) {
	if login.TokenID != "" {
		return http.Header{"Authorization": {"PVEAPIToken=" + login.TokenID + "=" + login.TokenSecret}}, nil
	}
	got, err := r.send(ctx, &Step{
		Request: "POST /access/ticket", Params: map[string]string{"username": login.Username, "password": login.Password},
	}, nil)
	if err != nil {
		return nil, err
	}
	ticket, _ := got.data.(map[string]any)
	if got.status != http.StatusOK || ticket["ticket"] == nil {
		return nil, fmt.Errorf("logging in as %s: %d %s: check this user's password", login.Username, got.status, got.reason)
	}
	return http.Header{
		"Cookie":              {"PVEAuthCookie=" + url.QueryEscape(textOf(ticket["ticket"]))},
		"Csrfpreventiontoken": {textOf(ticket["CSRFPreventionToken"])},
	}, nil
}

// Initial and maximum interval between two status queries of a task.
const (
	taskPause    = 20 * time.Millisecond
	maxTaskPause = time.Second
)

// await waits until a task has ended and returns its exit status.
func (r *run) await(ctx context.Context, upid string, as http.Header) (string, error) {
	host := upidPart(upid, 1)
	step := &Step{Request: "GET /nodes/" + host + "/tasks/" + url.PathEscape(upid) + "/status"}
	for pause := taskPause; ; pause = min(2*pause, maxTaskPause) {
		got, err := r.send(ctx, step, as)
		if err != nil {
			return "", err
		}
		status, _ := got.data.(map[string]any)
		switch {
		case got.status != http.StatusOK:
			return "", fmt.Errorf("reading the task's status from host %s: %d %s", host, got.status, got.reason)
		case textOf(status["status"]) == "stopped":
			return textOf(status["exitstatus"]), nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return "", fmt.Errorf("waiting for a task: %w", context.Cause(ctx))
		}
	}
}

// upidPart returns a part of a UPID: 1 is the host, 5 the type. It returns "" if the text
// is not a UPID.
func upidPart(upid string, part int) string {
	parts := strings.Split(upid, ":")
	if len(parts) != 9 || parts[0] != "UPID" {
		return ""
	}
	return parts[part]
}
