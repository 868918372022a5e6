package forge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"k8s.io/utils/clock"
)

const (
	// requestTimeout is the longest time of one request.
	requestTimeout = 30 * time.Second
	// maxAnswer is the largest answer: 100 pull requests with a body of 64 KiB each.
	maxAnswer = 16 << 20
	// maxReason is the longest text of a forge in an error, in characters.
	maxReason = 300
	// pageSize is the number of entries of a page. Gitea's default limit is 50.
	pageSize = 50
)

// connection is the part of a client that all kinds share.
type connection struct {
	// name is the repository in errors, such as github.com/owner/name.
	name string
	// base is the branch of the pull requests.
	base  string
	token string
	http  *http.Client
	clock clock.PassiveClock
}

// noRedirect makes a redirect an answer like any other, so that the token is sent only to
// the configured address.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// transport returns an answerError for each answer other than a success, and bounds the
// size of answers, for all clients alike.
type transport struct{ inner http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.inner.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode < 300 {
		response.Body = &bounded{ReadCloser: response.Body, left: maxAnswer}
		return response, nil
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	err = errors.Join(err, response.Body.Close())
	if err != nil {
		text = nil // the status remains
	}
	return nil, &answerError{status: response.StatusCode, header: response.Header, reason: reason(text)}
}

// bounded is the body of an answer that returns an error after a number of bytes.
type bounded struct {
	io.ReadCloser
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left+1)])
	if b.left -= n; b.left < 0 {
		return 0, fmt.Errorf("the answer is larger than %d bytes", maxAnswer)
	}
	return n, err
}

// answerError is an answer other than a success.
type answerError struct {
	status int
	header http.Header
	reason string
}

func (e *answerError) Error() string {
	status := fmt.Sprintf("%d %s", e.status, http.StatusText(e.status))
	if e.reason == "" {
		return status
	}
	return status + ": " + e.reason
}

// reason returns the text of an answer that is not a success, as one printable line: the
// messages in its JSON, or the text itself unless it is a page.
func reason(text []byte) string {
	var answer struct {
		Message any `json:"message"`
		Error   any `json:"error"`
		Errors  any `json:"errors"`
	}
	said := string(text)
	if json.Unmarshal(text, &answer) == nil {
		var list []string
		for _, part := range []any{answer.Message, answer.Error, answer.Errors} {
			list = append(list, messages(part)...)
		}
		said = strings.Join(list, ": ")
	} else if bytes.HasPrefix(bytes.TrimSpace(text), []byte("<")) {
		said = ""
	}
	said = strings.Join(strings.FieldsFunc(said, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
	return shorten(said, maxReason)
}

// messages returns the texts in a value of a forge's answer: GitHub has a list of objects
// with a message, GitLab a map of lists.
func messages(value any) []string {
	switch value := value.(type) {
	case string:
		return []string{value}
	case []any:
		var list []string
		for _, entry := range value {
			list = append(list, messages(entry)...)
		}
		return list
	case map[string]any:
		if found, ok := value["message"]; ok {
			return messages(found)
		}
		if field, ok := value["field"].(string); ok {
			return []string{fmt.Sprint(field, " ", value["code"])}
		}
		var list []string
		for _, name := range sortedKeys(value) {
			list = append(list, name+" "+strings.Join(messages(value[name]), ", "))
		}
		return list
	}
	return nil
}

// shorten cuts a text to a number of characters.
func shorten(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return string(runes[:most-1]) + "…"
}

// failed converts an error of a request into one of this package. what is the object of the
// request, such as pull request 7; doing is the operation.
func (c *connection) failed(doing, what string, err error) error {
	if err == nil {
		return nil
	}
	var answer *answerError
	if !errors.As(err, &answer) {
		if errors.Is(err, context.Canceled) {
			return fmt.Errorf("%s: %s: %w", c.name, doing, err)
		}
		return &UnavailableError{Forge: c.name, Doing: doing, Err: err}
	}
	if reset, limited := answer.rateLimit(c.clock.Now()); limited {
		return &RateLimitError{Forge: c.name, Reset: reset}
	}
	switch answer.status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		to := ""
		if location, err := url.Parse(answer.header.Get("Location")); err == nil {
			to = reason([]byte(location.Host + location.Path))
		}
		return &MovedError{Forge: c.name, To: to}
	case http.StatusUnauthorized, http.StatusForbidden:
		return &RightsError{Forge: c.name, Doing: doing, Token: answer.status == http.StatusUnauthorized, Reason: answer.Error()}
	case http.StatusNotFound, http.StatusGone:
		return &NotFoundError{Forge: c.name, What: what}
	case http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusConflict,
		http.StatusPreconditionFailed, http.StatusUnprocessableEntity, http.StatusLocked:
		return &ConflictError{Forge: c.name, Doing: doing, Reason: answer.Error()}
	}
	return &UnavailableError{Forge: c.name, Doing: doing, Err: answer}
}

// rateLimit reports whether the forge refused a request because of its rate, and until when.
// The headers contain the forge's times, so they are compared with the forge's own Date.
func (e *answerError) rateLimit(now time.Time) (reset time.Time, limited bool) {
	// GitHub also answers 403, with one of two headers.
	refused := e.status == http.StatusForbidden &&
		(e.header.Get("X-Ratelimit-Remaining") == "0" || e.header.Get("Retry-After") != "")
	if e.status != http.StatusTooManyRequests && !refused {
		return time.Time{}, false
	}
	if seconds, err := strconv.Atoi(e.header.Get("Retry-After")); err == nil && seconds >= 0 {
		return now.Add(bound(time.Duration(seconds) * time.Second)), true
	}
	theirs, err := http.ParseTime(e.header.Get("Date"))
	if err != nil {
		theirs = now
	}
	for _, name := range []string{"X-Ratelimit-Reset", "Ratelimit-Reset"} {
		if at, err := strconv.ParseInt(e.header.Get(name), 10, 64); err == nil {
			return now.Add(bound(time.Unix(at, 0).Sub(theirs))), true
		}
	}
	return time.Time{}, true
}

// bound limits the time that a forge can make numaform wait: GitHub counts per hour.
func bound(wait time.Duration) time.Duration { return min(max(wait, 0), time.Hour) }

// checkText returns the error of a pull request that the forge would refuse, or would
// cut.
func (c *connection) checkText(title, body string) error {
	switch {
	case strings.TrimSpace(title) == "" || len([]rune(title)) > MaxTitle:
		return fmt.Errorf("%s: the title of a pull request has %d characters: it must have 1 to %d", c.name, len([]rune(title)), MaxTitle)
	case len(body) > MaxBody:
		return fmt.Errorf("%s: the body of a pull request has %d bytes: it must have at most %d", c.name, len(body), MaxBody)
	}
	return nil
}
