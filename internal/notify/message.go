package notify

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Message is what a target gets.
type Message struct {
	Version   int     `json:"version"`
	ClusterID string  `json:"clusterID"`
	Text      string  `json:"text"`
	Notices   []Item  `json:"notifications"`
	Omitted   []Count `json:"omitted"`
}

// Item is a notification without secrets and control characters.
type Item struct {
	Kind    Kind      `json:"kind"`
	Reason  string    `json:"reason"`
	Object  string    `json:"object"`
	Message string    `json:"message"`
	Time    time.Time `json:"time"`
}

// Count is a number of notifications that do not fit into a message.
type Count struct {
	Kind   Kind   `json:"kind"`
	Reason string `json:"reason"`
	Count  int    `json:"count"`
}

// maxText limits the message of a notification in bytes.
const maxText = 700

// newMessage returns the message for a batch. The notifications of a kind are together.
func newMessage(config *Config, b *batch) *Message {
	m := &Message{Version: 1, ClusterID: config.ClusterID, Notices: []Item{}, Omitted: []Count{}}
	clean := func(text string, limit int) string { return plain(config.Redact(text), limit) }
	for _, kind := range Kinds() {
		for i := range b.notices {
			if notice := &b.notices[i]; notice.Kind == kind {
				m.Notices = append(m.Notices, Item{
					Kind: kind, Reason: clean(notice.Reason, 100), Object: clean(notice.Object, 300),
					Message: clean(notice.Message, maxText), Time: notice.Time.UTC().Truncate(time.Second),
				})
			}
		}
	}
	for at, count := range b.omitted {
		m.Omitted = append(m.Omitted, Count{Kind: at.Kind, Reason: clean(at.Reason, 100), Count: count})
	}
	slices.SortFunc(m.Omitted, func(a, b Count) int {
		return cmp.Or(b.Count-a.Count, cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Kind, b.Kind))
	})
	m.Text = m.text()
	return m
}

// TestMessage returns the message with which users test a target.
func TestMessage(clusterID string, now time.Time) *Message {
	m := &Message{Version: 1, ClusterID: clusterID, Notices: []Item{}, Omitted: []Count{}}
	m.Text = fmt.Sprintf("numaform %s: this is a test, sent at %s. Notifications reach this target.", clusterID, now.UTC().Format(time.RFC3339))
	return m
}

// Subject returns the subject of a mail. It contains no text of others.
func (m *Message) Subject() string {
	counts := map[Kind]int{}
	for i := range m.Notices {
		counts[m.Notices[i].Kind]++
	}
	for _, omitted := range m.Omitted {
		counts[omitted.Kind] += omitted.Count
	}
	var parts []string
	for _, kind := range Kinds() {
		if counts[kind] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[kind], kind))
		}
	}
	return fmt.Sprintf("numaform %s: %s", m.ClusterID, cmp.Or(strings.Join(parts, ", "), "test"))
}

// text returns the message for readers.
func (m *Message) text() string {
	var out strings.Builder
	out.WriteString(m.Subject() + "\n")
	var kind Kind
	for i := range m.Notices {
		item := &m.Notices[i]
		if item.Kind != kind {
			kind = item.Kind
			fmt.Fprintf(&out, "\n%s\n", strings.ToUpper(string(kind)))
		}
		fmt.Fprintf(&out, "- %s %s: %s: %s\n", item.Time.Format("15:04:05Z"), item.Object, item.Reason, item.Message)
	}
	if len(m.Omitted) > 0 {
		total := 0
		var parts []string
		for _, omitted := range m.Omitted {
			total += omitted.Count
			parts = append(parts, strings.TrimSpace(fmt.Sprintf("%d %s %s", omitted.Count, omitted.Kind, omitted.Reason)))
		}
		fmt.Fprintf(&out, "\nNot listed: %d (%s). To list them: kubectl get events -A\n", total, strings.Join(parts, ", "))
	}
	return out.String()
}

// plain returns a text in one line, without characters that control a terminal, a mail or
// the direction of text, and at most limit bytes long.
func plain(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsControl(r), unicode.IsSpace(r), unicode.Is(unicode.Zl, r), unicode.Is(unicode.Zp, r):
			return ' '
		case unicode.Is(unicode.Cf, r), unicode.Is(unicode.Co, r), r == unicode.ReplacementChar:
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "…"
	}
	return text
}

// mention matches the words that notify everyone in a room of Slack, Mattermost or Matrix.
var mention = regexp.MustCompile(`(?i)@(here|channel|all|everyone|room)`)

// unmentioned returns a text that mentions no user. A character without width separates @
// from its word.
func unmentioned(text string) string { return mention.ReplaceAllString(text, "@\u200b$1") }
