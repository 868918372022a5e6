package bootstrap_test

import (
	"strings"
	"testing"

	"github.com/numaform/numaform/internal/bootstrap"
)

// TestWorkIsBounded checks that expensive templates are rejected, or rendered within the
// budget.
func TestWorkIsBounded(t *testing.T) {
	t.Parallel()
	const tooMuch = "exceeds its time limit here"
	script := func(text string) string { return "#!\n" + text }
	for name, c := range map[string]struct{ text, want string }{
		"regexFind":               {large + `{{ range 9999 }}{{ $y := regexFind "(x*)*y" $x }}{{ end }}`, tooMuch},
		"regexFindString":         {large + `{{ range 9999 }}{{ $y := regexFindString "(((a|b)*(c|d)*)*)*$" $x 0 }}{{ end }}`, tooMuch},
		"many instructions":       {large + `{{ regexFind "(.{0,100}){9}x" $x }}`, tooMuch},
		"too many instructions":   {large + `{{ regexFind "` + strings.Repeat("a{1000}", 30) + `" $x }}`, "function regexFind: invalid arguments"},
		"long expression":         {large + `{{ regexFind (printf "%s%s" $x $x) $x }}`, "function regexFind: invalid arguments"},
		"each match to the end":   {large + `{{ regexReplaceAll "(?s).*y|a" $x "" }}`, tooMuch},
		"many groups":             {large + `{{ range 99 }}{{ $y := regexFindString "` + strings.Repeat("(.)", 300) + `$" $x 1 }}{{ end }}`, tooMuch},
		"many expressions":        {script(`{{ range $i, $x := list ` + strings.Repeat(`"(.{0,1000})" "(\\pL{0,100})" `, 20) + `}}{{ range $j := 400 }}{{ $y := regexFind (printf "%s%d%d" $x $i $j) "" }}{{ end }}{{ end }}`), tooMuch},
		"calls in loops":          {large + `{{ range 9999 }}` + strings.Repeat(`{{ $y := sha256sum $x }}`, 5000) + `{{ end }}`, tooMuch},
		"nodes in loops":          {script(`{{ $x := 1 }}{{ range 9999 }}` + strings.Repeat(`{{ $x = $x }}`, 9999) + `{{ end }}`), tooMuch},
		"comparisons":             {large + `{{ range 9999 }}{{ if or ` + strings.Repeat(`(eq $x $x "a") `, 999) + `}}{{ end }}{{ end }}`, tooMuch},
		"YAML":                    {large + `{{ range 9999 }}{{ $y := toYaml (list $x $x $x) }}{{ end }}`, tooMuch},
		"indented lines":          {large + `{{ indent 256 (replace "a" "\n" $x) }}`, "function indent: invalid arguments"},
		"far indented lines":      {large + `{{ $y := replace "abcdefgh" "\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n" $x }}{{ nindent 256 $y }}`, "function nindent: invalid arguments"},
		"many wide verbs":         {large + `{{ printf (replace "abcdefgh" "%999d" $x) 1 }}`, "function printf: invalid arguments"},
		"branches":                {script(`{{ range 9999 }}` + strings.Repeat(`{{ if true }}{{ with 1 }}{{ end }}{{ else }}{{ end }}`, 4000) + `{{ end }}`), tooMuch},
		"work that is given":      {script(`{{ numaformStep 0 -99999999999 }}`), tooMuch},
		"rounds that are given":   {script(`{{ numaformStep -99999 0 }}`), "exceeds 10000 loop iterations"},
		"a template that is long": {script(strings.Repeat("{{/* x */}}", 40<<10)), "its template exceeds 262144 bytes"},
		"parentheses":             {script("{{ " + strings.Repeat("(", 250<<10)), "line 2 of the template"},
		"open branches":           {script(strings.Repeat("{{if 1}}", 30<<10)), "line 2 of the template"},
		"deep branches":           {script(strings.Repeat("{{if 1}}", 10<<10) + strings.Repeat("{{end}}", 10<<10)), ""},
		"a use as it is meant":    {script(`{{ range 200 }}{{ regexReplaceAll "[^a-z0-9]+" $.Metadata.Hostname "-" }}{{ toYaml $.Kubernetes.Labels | indent 4 }}{{ end }}`), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			templates, err := bootstrap.TemplatesOf(map[string][]byte{"user-data": []byte(c.text)})
			if err != nil {
				t.Fatal(err)
			}
			_, err = bootstrap.Render(templates, someValues(t))
			if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %.300v\nwant %s", err, c.want)
			}
		})
	}
}

// TestWorkIsCounted checks that twice the text, the expression or the iterations costs at
// least 1.7 times as much, and that the default user-data costs at most 1/100 of the
// budget.
func TestWorkIsCounted(t *testing.T) {
	t.Parallel()
	spent := func(text string) int {
		t.Helper()
		units, err := bootstrap.Spent(text, someValues(t))
		if err != nil {
			t.Fatal(err)
		}
		return units
	}
	for name, write := range map[string]func(times int) string{
		"text of a match": func(times int) string { return `{{ regexFind "[a-y]+z" "` + strings.Repeat("a", 16<<10*times) + `" }}` },
		"groups of a match": func(times int) string {
			return `{{ regexFindString "` + strings.Repeat("(a)?", 100*times) + `" "` + strings.Repeat("b", 64) + `" 0 }}`
		},
		"matches": func(times int) string {
			return `{{ $y := regexReplaceAll "a+b" "` + strings.Repeat("ab", 400*times) + `" "" }}`
		},
		"bytes of a hash": func(times int) string { return `{{ sha256sum "` + strings.Repeat("a", 64<<10*times) + `" }}` },
		"rounds": func(times int) string {
			return `{{ $x := 1 }}{{ range 1000 }}` + strings.Repeat(`{{ $x = $x }}`, 10*times) + `{{ end }}`
		},
		"values of YAML": func(times int) string { return `{{ $y := toYaml (list ` + strings.Repeat(`"a" `, 1000*times) + `) }}` },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			once, twice := spent(write(1)), spent(write(2))
			if twice < once*17/10 {
				t.Errorf("twice as much takes %d, once %d", twice, once)
			}
		})
	}
	if units := spent(bootstrap.Defaults()[bootstrap.UserData]); units == 0 || units > bootstrap.MaxWork/100 {
		t.Errorf("the default user-data takes %d of %d", units, bootstrap.MaxWork)
	}
}
