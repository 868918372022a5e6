package conformance_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/pvesim"
)

func newRequest(t *testing.T, url string) (*http.Request, error) {
	t.Helper()
	return http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
}

func postAsRoot(t *testing.T, server *pvesim.Server, up *http.Client, path string, form url.Values) (int, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL()+"/api2/json"+path, strings.NewReader(form.Encode()))
	if err != nil {
		return 0, err
	}
	req.Header = rootHeader(t, server.URL(), up)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := up.Do(req)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); {
		if time.Now().After(deadline) {
			t.Fatal("waited too long")
		}
		<-time.After(10 * time.Millisecond)
	}
}
