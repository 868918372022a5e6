package freeze_test

import (
	"strings"
	"testing"
	"time"

	"github.com/numaform/numaform/internal/freeze"
)

func TestActive(t *testing.T) {
	t.Parallel()
	windows, err := freeze.Parse("freeze", []freeze.Config{
		{Name: "holidays", Start: "2026-12-20T00:00:00+01:00", End: "2027-01-03T00:00:00+01:00"},
		// Friday 18:00 to Monday 06:00 in Berlin.
		{Name: "weekend", Schedule: "0 18 * * 5", Duration: 60 * time.Hour, TimeZone: "Europe/Berlin"},
		{Name: "night", Schedule: "0 22 * * *", Duration: 8 * time.Hour, Directions: []string{freeze.Down}},
		{Name: "overlapping", Schedule: "0 12 24 6 *", Duration: time.Hour},
		{Name: "chained", Schedule: "30 12 24 6 *", Duration: time.Hour},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ at, direction, want string }{
		{"2026-12-19T22:59:59Z", freeze.Down, `freeze window "weekend" until 2026-12-21T05:00:00Z`}, // a Saturday
		{"2026-12-17T20:00:00Z", freeze.Up, ""},
		{"2026-12-17T20:00:00Z", freeze.Down, ""},
		{"2026-12-22T12:00:00Z", freeze.Up, `freeze window "holidays" until 2027-01-02T23:00:00Z`},
		{"2027-01-01T20:00:00Z", freeze.Up, `freeze window "weekend" until 2027-01-04T05:00:00Z`}, // ends later than the holidays
		{"2027-01-04T04:59:59Z", freeze.Up, `freeze window "weekend" until 2027-01-04T05:00:00Z`},
		{"2027-01-04T05:00:00Z", freeze.Up, ""},
		{"2027-01-05T22:00:00Z", freeze.Up, ""},
		{"2027-01-05T22:00:00Z", freeze.Down, `freeze window "night" until 2027-01-06T06:00:00Z`},
		{"2027-01-05T21:59:59Z", freeze.Down, ""},
		// 18:00 in Berlin is 16:00 UTC in summer and 17:00 UTC in winter.
		{"2026-07-03T15:59:59Z", freeze.Up, ""},
		{"2026-07-03T16:00:00Z", freeze.Up, `freeze window "weekend" until 2026-07-06T04:00:00Z`},
		{"2026-06-24T12:45:00Z", freeze.Up, `freeze window "chained" until 2026-06-24T13:30:00Z`},
	} {
		at, err := time.Parse(time.RFC3339, test.at)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if active := windows.Active(at, test.direction); active != nil {
			got = active.String()
		}
		if got != test.want {
			t.Errorf("%s %s: got %q, want %q", test.at, test.direction, got, test.want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		config freeze.Config
		want   string
	}{
		{freeze.Config{}, "name: must not be empty"},
		{freeze.Config{Name: "a"}, "either start and end, or schedule and duration"},
		{freeze.Config{Name: "a", Start: "2026-12-20T00:00:00Z", Schedule: "0 0 * * *"}, "either start and end"},
		{freeze.Config{Name: "a", Start: "2026-12-20", End: "2026-12-21T00:00:00Z"}, `start: "2026-12-20"`},
		{freeze.Config{Name: "a", Start: "2026-12-20T00:00:00Z"}, `end: ""`},
		{freeze.Config{Name: "a", Start: "2026-12-20T00:00:00Z", End: "2026-12-20T00:00:00Z"}, "must be after start"},
		{freeze.Config{Name: "a", Schedule: "0 0 * * *"}, "duration: 0s: must be from 1m0s"},
		{freeze.Config{Name: "a", Schedule: "0 0 * * *", Duration: 9000 * time.Hour}, "duration"},
		{freeze.Config{Name: "a", Schedule: "0 0 * *", Duration: time.Hour}, `schedule: "0 0 * *"`},
		{freeze.Config{Name: "a", Schedule: "0 0 31 2 *", Duration: time.Hour}, "never happens"},
		{freeze.Config{Name: "a", Schedule: "@every 1h", Duration: time.Hour}, "schedule"},
		{freeze.Config{Name: "a", Schedule: "TZ=UTC 0 0 * * *", Duration: time.Hour}, "use time_zone"},
		{freeze.Config{Name: "a", Schedule: "0 0 * * *", Duration: time.Hour, TimeZone: "Berlin"}, "Europe/Berlin"},
		{freeze.Config{Name: "a", Schedule: "0 0 * * *", Duration: time.Hour, Directions: []string{"Left"}}, `directions: "Left"`},
	} {
		if _, err := freeze.Parse("approval.freeze", []freeze.Config{test.config}); err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "approval.freeze[0]: ") {
			t.Errorf("%+v: got error %v, want one with %q", test.config, err, test.want)
		}
	}
	twice := freeze.Config{Name: "a", Schedule: "0 0 * * *", Duration: time.Hour}
	if _, err := freeze.Parse("approval.freeze", []freeze.Config{twice, twice}); err == nil || !strings.Contains(err.Error(), "[1]: duplicate name") {
		t.Errorf("got error %v for a duplicate name", err)
	}
}

// TestSkippedStart checks windows whose start does not exist on the day on which summer time
// begins: they last as long as on other days, and begin when the clocks are moved, or as long
// after that as the minutes of the start.
func TestSkippedStart(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		config                    freeze.Config
		before, start, end, after string
	}{
		{
			freeze.Config{Schedule: "30 2 * * *", Duration: 4 * time.Hour, TimeZone: "Europe/Berlin"},
			"2026-03-29T01:29:59Z", "2026-03-29T01:30:00Z", "2026-03-29T05:29:59Z", "2026-03-29T05:30:00Z",
		},
		{
			freeze.Config{Schedule: "0 0 * * 0", Duration: 24 * time.Hour, TimeZone: "America/Santiago"},
			"2026-09-06T03:59:59Z", "2026-09-06T04:00:00Z", "2026-09-07T03:59:59Z", "2026-09-07T04:00:00Z",
		},
		// On the day on which it ends, 02:30 happens twice.
		{
			freeze.Config{Schedule: "30 2 * * *", Duration: 4 * time.Hour, TimeZone: "Europe/Berlin"},
			"2026-10-25T00:29:59Z", "2026-10-25T00:30:00Z", "2026-10-25T05:29:59Z", "2026-10-25T05:30:00Z",
		},
	} {
		test.config.Name = "window"
		windows, err := freeze.Parse("freeze", []freeze.Config{test.config})
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range map[string]bool{test.before: false, test.start: true, test.end: true, test.after: false} {
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				t.Fatal(err)
			}
			if active := windows.Active(at, freeze.Up); (active != nil) != want {
				t.Errorf("%s %s at %s: %v, want active %t", test.config.Schedule, test.config.TimeZone, text, active, want)
			}
		}
	}
}
