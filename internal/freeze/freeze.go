// Package freeze computes when an operator's freeze windows forbid changes. It does not
// stop any change: package approval and the commands ask it. Start at Parse.
package freeze

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // the image and minimal machines have no time zones

	"github.com/robfig/cron/v3"
)

// Config configures a window: either Start and End, or Schedule and Duration.
type Config struct {
	// Name names the window in messages.
	Name string `yaml:"name"`
	// Start and End are times in RFC 3339, such as 2026-12-20T00:00:00+01:00.
	Start string `yaml:"start"`
	End   string `yaml:"end"`
	// Schedule is when the window starts, as a cron expression in TimeZone, and Duration
	// how long it lasts.
	Schedule string        `yaml:"schedule"`
	Duration time.Duration `yaml:"duration"`
	// TimeZone is the time zone of Schedule, such as Europe/Berlin; empty means UTC.
	TimeZone string `yaml:"time_zone"`
	// Directions are the directions of the changes that the window blocks, of Up and
	// Down; empty means both.
	Directions []string `yaml:"directions"`
}

// The directions of changes, as in ScalePlans.
const (
	Up   = "Up"
	Down = "Down"
)

// The limits of a window's duration.
const (
	shortest = time.Minute
	longest  = 366 * 24 * time.Hour
)

// Windows are freeze windows. The zero value has none.
type Windows []window

type window struct {
	name       string
	start, end time.Time
	// schedule is in zone, and wall is the same schedule without regard to a zone, in UTC.
	schedule, wall cron.Schedule
	zone           *time.Location
	duration       time.Duration
	directions     []string
}

// Active is a window that is in effect.
type Active struct {
	Name string
	// Until is when it ends.
	Until time.Time
}

// String names the window and its end.
func (a *Active) String() string {
	return fmt.Sprintf("freeze window %q until %s", a.Name, a.Until.UTC().Format(time.RFC3339))
}

// Parse returns the windows. Its error contains every mistake, each after the path of its
// window.
func Parse(path string, configs []Config) (Windows, error) {
	var windows Windows
	var mistakes []error
	for i := range configs {
		w, err := parse(&configs[i])
		if err == nil && slices.ContainsFunc(windows, func(other window) bool { return other.name == w.name }) {
			err = fmt.Errorf("duplicate name %q: rename one of the two windows", w.name)
		}
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("%s[%d]: %w", path, i, err))
			continue
		}
		windows = append(windows, w)
	}
	return windows, errors.Join(mistakes...)
}

func parse(c *Config) (window, error) {
	w := window{name: c.Name, duration: c.Duration, directions: c.Directions}
	once := c.Start != "" || c.End != ""
	repeated := c.Schedule != "" || c.Duration != 0 || c.TimeZone != ""
	if strings.TrimSpace(c.Name) == "" {
		return w, errors.New("name: must not be empty, because messages name the window")
	}
	for _, direction := range c.Directions {
		if direction != Up && direction != Down {
			return w, fmt.Errorf("directions: %q: must be Up or Down", direction)
		}
	}
	if once == repeated {
		return w, errors.New("set either start and end, or schedule and duration")
	}
	set := w.parseRepeated
	if once {
		set = w.parseOnce
	}
	err := set(c)
	return w, err
}

// parseOnce sets the bounds of a window that occurs once.
func (w *window) parseOnce(c *Config) (err error) {
	for _, bound := range []struct {
		key, value string
		to         *time.Time
	}{{"start", c.Start, &w.start}, {"end", c.End, &w.end}} {
		if *bound.to, err = time.Parse(time.RFC3339, bound.value); err != nil {
			return fmt.Errorf("%s: %q: must be a time such as 2026-12-20T00:00:00+01:00", bound.key, bound.value)
		}
	}
	if !w.start.Before(w.end) {
		return fmt.Errorf("end: %s: must be after start", c.End)
	}
	return nil
}

// parseRepeated sets the schedule of a window that occurs again and again.
func (w *window) parseRepeated(c *Config) (err error) {
	if c.Duration < shortest || c.Duration > longest {
		return fmt.Errorf("duration: %s: must be from %s to %s", c.Duration, shortest, longest)
	}
	if w.zone, err = time.LoadLocation(c.TimeZone); err != nil || c.TimeZone == "Local" {
		return fmt.Errorf("time_zone: %q: must be a name such as Europe/Berlin", c.TimeZone)
	}
	// cron.ParseStandard accepts a time zone in the schedule, and intervals that have no
	// fixed start.
	if strings.Contains(c.Schedule, "=") || strings.HasPrefix(c.Schedule, "@every") {
		return fmt.Errorf("schedule: %q: must be five fields such as \"0 18 * * 5\": use time_zone for a time zone", c.Schedule)
	}
	if w.schedule, err = cron.ParseStandard("CRON_TZ=" + cmp.Or(c.TimeZone, "UTC") + " " + c.Schedule); err != nil {
		return fmt.Errorf("schedule: %q: must be five fields such as \"0 18 * * 5\": %w", c.Schedule, err)
	}
	if w.wall, err = cron.ParseStandard("CRON_TZ=UTC " + c.Schedule); err != nil {
		return fmt.Errorf("schedule: %q: %w", c.Schedule, err)
	}
	if w.schedule.Next(time.Now()).IsZero() {
		return fmt.Errorf("schedule: %q: never happens: correct the day or the month", c.Schedule)
	}
	return nil
}

// longestGap is longer than the time by which clocks are moved when summer time begins.
const longestGap = 3 * time.Hour

// next returns the first start of a repeated window after a time, or zero. cron has no start
// at a time that the clocks skip when summer time begins: the window then starts as long after
// midnight as on other days.
func (w *window) next(after time.Time) time.Time {
	next := w.schedule.Next(after)
	wall := inZone(after.In(w.zone), time.UTC).Add(-longestGap)
	for {
		if wall = w.wall.Next(wall); wall.IsZero() {
			return next
		}
		start := inZone(wall, w.zone)
		if !inZone(start, time.UTC).Equal(wall) { // the clocks never show it
			_, offset := start.Add(-longestGap).Zone()
			start = wall.Add(-time.Duration(offset) * time.Second)
		}
		if !start.After(after) {
			continue
		}
		if next.IsZero() || start.Before(next) {
			return start
		}
		return next
	}
}

// inZone returns the time at which the clocks of a zone show what t shows.
func inZone(t time.Time, zone *time.Location) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), zone)
}

// maxChained limits how many overlapping occurrences of a schedule one Active combines.
const maxChained = 100

// until returns when a window ends that is in effect, or zero if it is not.
func (w *window) until(now time.Time) time.Time {
	if w.schedule == nil {
		if now.Before(w.start) || !now.Before(w.end) {
			return time.Time{}
		}
		return w.end
	}
	start := w.next(now.Add(-w.duration))
	if start.IsZero() || start.After(now) {
		return time.Time{}
	}
	end := start.Add(w.duration)
	for range maxChained {
		next := w.next(start)
		if next.IsZero() || next.After(end) {
			break
		}
		start, end = next, next.Add(w.duration)
	}
	return end
}

// Active returns the window that blocks changes in a direction and ends last, or nil.
func (ws Windows) Active(now time.Time, direction string) *Active {
	var last *Active
	for i := range ws {
		w := &ws[i]
		if len(w.directions) > 0 && !slices.Contains(w.directions, direction) {
			continue
		}
		if until := w.until(now); until.After(now) && (last == nil || until.After(last.Until)) {
			last = &Active{Name: w.name, Until: until}
		}
	}
	return last
}
