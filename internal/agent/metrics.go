package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/renameio/v2"

	"github.com/numaform/numaform/internal/agent/claim"
	"github.com/numaform/numaform/internal/logkey"
)

// MetricsFile is the name of the file in the directory of metrics.
const MetricsFile = "numaform_agent.prom"

// metrics records what was last written to the file for node_exporter's textfile collector.
type metrics struct {
	facts  string
	last   time.Time
	failed bool
}

// writeMetrics writes the file if a value changed, and periodically, because its
// timestamp shows that the agent is alive. It writes nothing if the directory does not
// exist: then the host has no node_exporter.
func (a *Agent) writeMetrics() {
	s := &a.state
	var pinned, putBack, governors, interrupts, failed int
	refused := map[claim.Reason]int{}
	for _, guest := range s.Guests {
		putBack += guest.PutBack
		if guest.Pins != nil {
			pinned++
		}
		if guest.Refused != nil {
			refused[guest.Refused.Reason]++
		}
	}
	for i := range s.Governors {
		governors += s.Governors[i].PutBack
	}
	for _, i := range s.Interrupts {
		interrupts += i.PutBack
	}
	if s.Problem != "" {
		failed = 1
	}

	var out bytes.Buffer
	one := func(name, help string, labels string, value int) {
		out.WriteString(gauge(name, help) + sample(name, labels, int64(value)))
	}
	one("numaform_agent_info", "Version and isolation of the running agent.",
		"isolation="+strconv.Quote(string(s.Isolation))+",version="+strconv.Quote(s.Version), 1)
	one("numaform_agent_online_cpus", "CPUs of the host that are online.", "", s.Online.Size())
	one("numaform_agent_pinned_cpus", "CPUs that a vCPU is pinned to.", "", s.Pinned.Size())
	one("numaform_agent_shared_cpus", "CPUs of guests without pins: neither pinned nor siblings of pinned CPUs.", "", s.Shared.Size())
	one("numaform_agent_pinned_guests", "Guests that are pinned.", "", pinned)
	one("numaform_agent_confined_groups", "Control groups whose CPUs the agent limits.", "", len(s.Confined))
	one("numaform_agent_intruders", "Guests without pins that may run on CPUs to which other guests are pinned, or on their siblings.", "", len(s.Intruders))
	one("numaform_agent_put_back", "Number of times that another program moved vCPUs of the running guests.", "", putBack)
	one("numaform_agent_governed_policies", "Frequency policies whose governor the agent set.", "", len(s.Governors))
	one("numaform_agent_governors_put_back", "Number of times that another program changed the governors that the agent set.", "", governors)
	one("numaform_agent_interrupts", "Interrupts of passed-through devices that the agent pins to the CPUs of their VM.", "", len(s.Interrupts))
	one("numaform_agent_interrupts_put_back", "Number of times that another program moved these interrupts.", "", interrupts)
	one("numaform_agent_round_failed", "1 if the last round failed.", "", failed)
	const name = "numaform_agent_refused_guests"
	out.WriteString(gauge(name, "Guests whose declared pins do not take effect, by reason."))
	for _, reason := range claim.Reasons() {
		out.WriteString(sample(name, "reason="+strconv.Quote(string(reason)), int64(refused[reason])))
	}

	facts := out.String()
	now := time.Now()
	if facts == a.metrics.facts && now.Sub(a.metrics.last) < heartbeat*time.Second {
		return
	}
	a.metrics.facts = facts
	a.metrics.last = now
	dir := a.Settings.MetricsDir
	if info, err := os.Stat(dir); dir == "" || errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return
	}
	text := facts + gauge("numaform_agent_last_round_timestamp_seconds", "Time of the last round of the agent.") +
		sample("numaform_agent_last_round_timestamp_seconds", "", a.Now().Unix())
	err := renameio.WriteFile(filepath.Join(dir, MetricsFile), []byte(text), 0o644)
	if err != nil && !a.metrics.failed {
		a.Log.Error("metrics not written", logkey.Message, err.Error())
	}
	a.metrics.failed = err != nil
}

func gauge(name, help string) string {
	return fmt.Sprintf("# HELP %s %s\n# TYPE %s gauge\n", name, help, name)
}

func sample(name, labels string, value int64) string {
	if labels != "" {
		labels = "{" + labels + "}"
	}
	return fmt.Sprintf("%s%s %d\n", name, labels, value)
}
