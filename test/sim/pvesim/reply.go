package pvesim

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"
)

// apiError is an error response. Its message is the reason in the status line, and is also
// in the body.
type apiError struct {
	code    int
	message string
	// params are the errors of single parameters.
	params map[string]string
	// bare is set for responses of the web server itself, which have no JSON body.
	bare bool
}

func (e *apiError) Error() string { return e.message }

// dief returns the result of Perl's die in an API method: a 500 with that text.
func dief(format string, args ...any) *apiError {
	return &apiError{code: http.StatusInternalServerError, message: fmt.Sprintf(format, args...)}
}

// permissionError returns a 403; what is a path with privileges, or empty.
func permissionError(what string) *apiError {
	message := "Permission check failed"
	if what != "" {
		message += " (" + what + ")"
	}
	return &apiError{code: http.StatusForbidden, message: message}
}

// paramError returns a 400 about parameters.
func paramError(params map[string]string) *apiError {
	return &apiError{code: http.StatusBadRequest, message: "Parameter verification failed.", params: params}
}

// oneParamError returns a 400 about one parameter.
func oneParamError(name, format string, args ...any) *apiError {
	return paramError(map[string]string{name: fmt.Sprintf(format, args...)})
}

// firstError runs the checks in order and returns the first error.
func firstError(checks ...func() *apiError) *apiError {
	for _, check := range checks {
		if e := check(); e != nil {
			return e
		}
	}
	return nil
}

// withMeta is a result with members besides data in the response.
type withMeta struct {
	data any
	meta map[string]any
}

// preRendered is a result that is already JSON.
type preRendered []byte

// writeData sends a 200 with the data.
func (s *Server) writeData(w http.ResponseWriter, data any) {
	body, err := encodeData(data)
	if err != nil {
		s.writeError(w, dief("encoding answer: %v", err))
		return
	}
	header := w.Header()
	maps.Copy(header, commonHeader(s.cfg.Clock.Now()))
	header.Set("Content-Type", "application/json;charset=UTF-8")
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body) //nolint:gosec // JSON, and declared as such
}

func encodeData(data any) ([]byte, error) {
	if raw, ok := data.(preRendered); ok {
		return append(append([]byte(`{"data":`), raw...), '}'), nil
	}
	body := map[string]any{"data": data}
	if with, ok := data.(withMeta); ok {
		body = map[string]any{"data": with.data}
		maps.Copy(body, with.meta)
	}
	return json.Marshal(body)
}

func commonHeader(now time.Time) http.Header {
	date := now.UTC().Format(http.TimeFormat)
	return http.Header{
		"Cache-Control": {"max-age=0"},
		"Date":          {date},
		"Expires":       {date},
		"Pragma":        {"no-cache"},
		"Server":        {"pve-api-daemon/3.0"},
	}
}

// writeError sends the error's text as the reason phrase, which net/http does not support,
// and closes the connection as Proxmox does.
func (s *Server) writeError(w http.ResponseWriter, e *apiError) {
	reason, _, _ := strings.Cut(e.message, "\n")
	var body []byte
	header := commonHeader(s.cfg.Clock.Now())
	header.Set("Connection", "close")
	if !e.bare {
		content := map[string]any{"data": nil, "message": e.message + "\n"}
		if len(e.params) > 0 {
			content["errors"] = e.params
		}
		body, _ = json.Marshal(content)
		header.Set("Content-Type", "application/json;charset=UTF-8")
		header.Set("Content-Length", fmt.Sprint(len(body)))
	}
	conn, buffer, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, reason, e.code)
		return
	}
	_, _ = fmt.Fprintf(buffer, "HTTP/1.1 %d %s\r\n", e.code, reason)
	_ = header.Write(buffer)
	_, _ = buffer.WriteString("\r\n")
	_, _ = buffer.Write(body)
	_ = buffer.Flush()
	_ = conn.Close()
}

// dropConnection closes the connection without a response.
func dropConnection(w http.ResponseWriter) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close()
	}
}
