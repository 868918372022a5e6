package bench_test

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// requests counts requests by kind.
type requests map[string]int

func (r requests) total() int {
	total := 0
	for _, n := range r {
		total += n
	}
	return total
}

// String lists the kinds, the most frequent first.
func (r requests) String() string {
	kinds := slices.SortedFunc(maps.Keys(r), func(a, b string) int { return cmp.Or(r[b]-r[a], strings.Compare(a, b)) })
	var text strings.Builder
	for _, kind := range kinds {
		fmt.Fprintf(&text, "%6d %s\n", r[kind], kind)
	}
	return text.String()
}

// ownAgent is the User-Agent of numaform's own client of Proxmox.
const ownAgent = "numaform"

// kindOf returns a path in Proxmox without the names of hosts, guests, tasks and volumes.
func kindOf(path string) string {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		_, err := strconv.Atoi(part)
		if err == nil || (i > 0 && slices.Contains([]string{"nodes", "tasks", "content"}, parts[i-1])) {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, "/")
}

// toProxmox counts the requests to Proxmox in a period, by numaform and by the provider.
func (c *cluster) toProxmox(from, to time.Time) (own, provider requests) {
	own, provider = requests{}, requests{}
	for _, call := range c.sim.Calls() {
		if call.Time.Before(from) || call.Time.After(to) {
			continue
		}
		kind := call.Method + " " + kindOf(call.Path)
		if call.Agent == ownAgent {
			own[kind]++
		} else {
			provider[kind]++
		}
	}
	return own, provider
}

// auditEvent is a request in the audit log of an API server.
type auditEvent struct {
	Stage     string
	Verb      string
	UserAgent string
	User      struct{ Username string }
	ObjectRef struct{ Resource, Subresource string }
	// RequestReceivedTimestamp is the time at which the request arrived.
	RequestReceivedTimestamp time.Time
}

// toKubernetes counts the requests to Kubernetes in a period with the controller's
// credentials, which the controller and the engines' backend use.
func (c *cluster) toKubernetes(from, to time.Time) requests {
	c.b.Helper()
	file, err := os.Open(c.auditLog())
	if err != nil {
		c.b.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // only read
	counted := requests{}
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var event auditEvent
		if err := json.Unmarshal(scanner.Bytes(), &event); err != nil {
			continue // the last line is being written
		}
		// Count a watch when it begins, not when it ends.
		stage := "ResponseComplete"
		if event.Verb == "watch" {
			stage = "ResponseStarted"
		}
		at := event.RequestReceivedTimestamp
		if event.Stage != stage || event.User.Username != "system:serviceaccount:"+namespace+":numaform" || at.Before(from) || at.After(to) {
			continue
		}
		program, _, _ := strings.Cut(event.UserAgent, "/")
		kind := fmt.Sprintf("%s %s %s", program, event.Verb, event.ObjectRef.Resource)
		if event.ObjectRef.Subresource != "" {
			kind += "/" + event.ObjectRef.Subresource
		}
		counted[kind]++
	}
	if err := scanner.Err(); err != nil {
		c.b.Fatal(err)
	}
	return counted
}
