package statesim_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/numaform/numaform/test/sim/statesim"
)

func TestServer(t *testing.T) {
	t.Parallel()
	server := statesim.New()
	listening := httptest.NewServer(server)
	t.Cleanup(listening.Close)
	for _, step := range []struct {
		method, body string
		refuse       []string
		want         int
	}{
		{"GET", "", nil, http.StatusNoContent},
		{"LOCK", `{"ID":"a"}`, nil, http.StatusOK},
		{"LOCK", `{"ID":"b"}`, nil, http.StatusLocked},
		{"POST", "state", []string{"POST"}, http.StatusInternalServerError},
		{"POST", "state", nil, http.StatusOK},
		{"UNLOCK", `{"ID":"b"}`, nil, http.StatusConflict},
		{"UNLOCK", "", nil, http.StatusOK},
		{"GET", "", nil, http.StatusOK},
		{"PATCH", "", nil, http.StatusMethodNotAllowed},
	} {
		server.Refuse(step.refuse...)
		request, err := http.NewRequestWithContext(t.Context(), step.method, listening.URL+"/a", strings.NewReader(step.body))
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if err := response.Body.Close(); err != nil {
			t.Error(err)
		}
		if response.StatusCode != step.want {
			t.Errorf("%s %s: status %d, want %d", step.method, step.body, response.StatusCode, step.want)
		}
	}
	if string(server.States()["/a"]) != "state" || len(server.Locks()) != 0 || server.Taken() != 1 {
		t.Errorf("states %v, locks %v, taken %d", server.States(), server.Locks(), server.Taken())
	}
}

func TestDemand(t *testing.T) {
	t.Parallel()
	server := statesim.New()
	server.Demand("ann", "secret")
	for password, want := range map[string]int{"secret": http.StatusNoContent, "wrong": http.StatusUnauthorized, "": http.StatusUnauthorized} {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/a", nil)
		request.SetBasicAuth("ann", password)
		answer := httptest.NewRecorder()
		server.ServeHTTP(answer, request)
		if answer.Code != want {
			t.Errorf("password %q: status %d, want %d", password, answer.Code, want)
		}
	}
}
