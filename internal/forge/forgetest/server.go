package forgetest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/forge"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// Server is a contract server: it serves a Forge with the API of GitHub or GitLab, and a
// repository with git over http. A request that the forge's description does not have fails
// the test.
type Server struct {
	*Forge
	// URL is the address of the forge, and Remote the URL of the repository there.
	URL, Remote string

	t          testing.TB
	kind       forge.Kind
	repository string
	token      string
	git        http.Handler
	api        *http.ServeMux

	// mu guards the following.
	mu       sync.Mutex
	fault    func(http.ResponseWriter, *http.Request) bool
	requests []string
	// users are the users whose ID was requested.
	users []string
}

// Fault makes each later request go to answer first, which reports whether it has answered;
// nil ends this.
func (s *Server) Fault(answer func(http.ResponseWriter, *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = answer
}

// Requests returns the method and the path of each request to the API.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Serve serves a forge of a kind and the bare repository at a path until the test ends. The
// API accepts only the token, and git accepts it as a password.
func Serve(t testing.TB, kind forge.Kind, f *Forge, repository, token string) *Server {
	t.Helper()
	s := &Server{Forge: f, t: t, kind: kind, repository: repository, token: token, api: http.NewServeMux()}
	out, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	s.git = &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"), Root: "/ops/fleet.git", Stderr: io.Discard,
		Env: []string{
			"GIT_PROJECT_ROOT=" + repository, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=numaform", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
			"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=http.receivepack", "GIT_CONFIG_VALUE_0=true", "GIT_CONFIG_KEY_1=safe.directory", "GIT_CONFIG_VALUE_1=*",
		},
	}
	if kind == forge.GitHub {
		s.gitHub()
	} else {
		s.gitLab()
	}
	server := httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(server.Close)
	s.URL, s.Remote = server.URL, server.URL+"/ops/fleet.git"
	return s
}

// Client returns numaform's client of the server.
func (s *Server) Client() forge.Client {
	s.t.Helper()
	client, err := forge.New(forge.Config{Remote: s.Remote, Base: s.base, Kind: s.kind, URL: s.URL, Token: s.token})
	if err != nil {
		s.t.Fatal(err)
	}
	return client
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	fault := s.fault
	isGit := strings.HasPrefix(r.URL.Path, "/ops/fleet.git/")
	if !isGit {
		s.requests = append(s.requests, r.Method+" "+r.URL.EscapedPath())
	}
	s.mu.Unlock()
	if fault != nil && fault(w, r) {
		return
	}
	header, value := "Authorization", "Bearer "+s.token
	if s.kind == forge.GitLab {
		header, value = "Private-Token", s.token
	}
	_, password, _ := r.BasicAuth()
	switch {
	case isGit && password == s.token:
		s.git.ServeHTTP(w, r)
		return
	case isGit:
		w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	case r.Header.Get(header) != value:
		answer(w, http.StatusUnauthorized, map[string]any{"message": "Bad credentials"})
		return
	}

	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	fields := map[string]any{}
	if len(body) > 0 && body[0] == '[' { // GitHub also accepts a list of labels
		fields["labels"] = nil
	} else if len(body) > 0 {
		if err := json.Unmarshal(body, &fields); err != nil {
			s.t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
	}
	for _, problem := range Undescribed(s.kind, r, fields) {
		s.t.Error(problem)
	}
	if err := s.sync(); err != nil {
		s.t.Error(err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	s.api.ServeHTTP(w, r)
}

// sync makes the forge know the branches of the repository, and the repository the heads of
// the pull requests.
func (s *Server) sync() error {
	out, err := s.run("for-each-ref", "--format=%(refname) %(objectname)")
	if err != nil {
		return err
	}
	have := map[string]string{}
	for line := range strings.Lines(out) {
		name, sha, _ := strings.Cut(strings.TrimSpace(line), " ")
		have[name] = sha
		if branch, ok := strings.CutPrefix(name, "refs/heads/"); ok {
			s.Push(branch, sha)
		}
	}
	s.Forge.mu.Lock()
	defer s.Forge.mu.Unlock()
	for _, p := range s.pulls {
		name := fmt.Sprintf("refs/pull/%d/head", p.Number)
		if s.kind == forge.GitLab {
			name = fmt.Sprintf("refs/merge-requests/%d/head", p.Number)
		}
		if have[name] != p.HeadSHA && !p.Fork {
			if _, err := s.run("update-ref", name, p.HeadSHA); err != nil {
				return err
			}
		}
	}
	return nil
}

// run runs git in the repository.
func (s *Server) run(args ...string) (string, error) {
	command := exec.Command("git", args...)
	command.Dir = s.repository
	command.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=forge", "GIT_AUTHOR_EMAIL=forge@example",
		"GIT_COMMITTER_NAME=forge", "GIT_COMMITTER_EMAIL=forge@example")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w\n%s%s", strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}

// Squash merges a commit into the base branch as one commit, and returns that. It returns a
// ConflictError if both changed the same lines. It is a value for OnMerge.
func (s *Server) Squash(_, head string) (string, error) {
	base := "refs/heads/" + s.base
	tree, err := s.run("merge-tree", "--write-tree", base, head)
	if err != nil {
		return "", &forge.ConflictError{Forge: name, Doing: "merging", Reason: "the branch has conflicts"}
	}
	commit, err := s.run("commit-tree", tree, "-p", base, "-m", "squashed")
	if err == nil {
		_, err = s.run("update-ref", base, commit)
	}
	return commit, err
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// respond answers with a body, or with the status for an error of the forge.
func respond(w http.ResponseWriter, status int, body any, err error) {
	var limit *forge.RateLimitError
	switch {
	case err == nil:
		answer(w, status, body)
		return
	case errors.As(err, new(*forge.NotFoundError)):
		status = http.StatusNotFound
	case errors.As(err, new(*forge.RightsError)):
		status = http.StatusForbidden
	case errors.As(err, new(*forge.HeadError)):
		status = http.StatusConflict
	case errors.As(err, new(*forge.ConflictError)):
		status = http.StatusMethodNotAllowed
	case errors.As(err, &limit):
		w.Header().Set("Retry-After", strconv.Itoa(int(time.Until(limit.Reset).Seconds())))
		status = http.StatusTooManyRequests
	default:
		status = http.StatusBadGateway
	}
	answer(w, status, map[string]any{"message": err.Error()})
}

// numbered returns the pull request in the path of a request.
func (s *Server) numbered(r *http.Request) (*pull, error) {
	number, err := strconv.Atoi(r.PathValue("number"))
	if err != nil {
		return nil, &forge.NotFoundError{Forge: name, What: r.PathValue("number")}
	}
	s.Forge.mu.Lock()
	defer s.Forge.mu.Unlock()
	found, err := s.find(number)
	if err := cmp.Or(s.Forge.fault, err); err != nil {
		return nil, err
	}
	copied := *found
	copied.reviews, copied.versions = maps.Clone(found.reviews), slices.Clone(found.versions)
	return &copied, nil
}

// page returns a page of a list, and the number of the next page, or 0.
func page[T any](r *http.Request, size string, list []T) ([]T, int) {
	number, _ := strconv.Atoi(r.URL.Query().Get("page"))
	per, _ := strconv.Atoi(r.URL.Query().Get(size))
	number = max(number, 1)
	per = max(per, 1)
	start, end := min((number-1)*per, len(list)), min(number*per, len(list))
	if end == len(list) {
		return list[start:end], 0
	}
	return list[start:end], number + 1
}

// listed returns the pull requests that match, the newest first if descending.
func (s *Server) listed(descending bool, match func(*forge.PullRequest) bool) ([]forge.PullRequest, error) {
	s.Forge.mu.Lock()
	defer s.Forge.mu.Unlock()
	if s.Forge.fault != nil {
		return nil, s.Forge.fault
	}
	var list []forge.PullRequest
	for _, p := range s.pulls {
		if match(&p.PullRequest) {
			list = append(list, p.PullRequest)
		}
	}
	if descending {
		slices.Reverse(list)
	}
	return list, nil
}

// decode decodes the body of a request.
func decode[T any](s *Server, r *http.Request) (value T) {
	if err := json.NewDecoder(r.Body).Decode(&value); err != nil && !errors.Is(err, io.EOF) {
		s.t.Errorf("%s %s: %v", r.Method, r.URL, err)
	}
	return value
}

// edit changes a pull request as numaform.
func (s *Server) edit(r *http.Request, title, body *string, closes bool) (*pull, error) {
	found, err := s.numbered(r)
	if err != nil {
		return nil, err
	}
	if title != nil || body != nil {
		newTitle, newBody := found.Title, found.Body
		if title != nil {
			newTitle = *title
		}
		if body != nil {
			newBody = *body
		}
		if err := s.Edit(r.Context(), found.Number, newTitle, newBody); err != nil {
			return nil, err
		}
	}
	if closes {
		if err := s.Close(r.Context(), found.Number, ""); err != nil {
			return nil, err
		}
	}
	return s.numbered(r)
}

// comment adds a comment of numaform.
func (s *Server) comment(r *http.Request, body string) error {
	found, err := s.numbered(r)
	if err != nil {
		return err
	}
	s.Comment(found.Number, body)
	return nil
}
