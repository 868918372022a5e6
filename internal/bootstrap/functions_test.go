package bootstrap_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/numaform/numaform/internal/bootstrap"
)

// calls lists calls of each function with their results.
func calls() map[string][][2]string {
	return map[string][][2]string{
		"add":                 {{`{{ add 1 2 3 }} {{ add 1 .Resources.CPU }} {{ add .Resources.MemoryMiB -1 }}`, "6 5 8191"}},
		"atoi":                {{`{{ atoi "2001" }} {{ atoi " -7\n" }}`, "2001 -7"}},
		"b64dec":              {{`{{ b64dec "aGVsbG8=" }}`, "hello"}},
		"b64enc":              {{`{{ b64enc "hello" }}`, "aGVsbG8="}},
		"bootstrapKubeconfig": {{`{{ bootstrapKubeconfig .Kubernetes | contains "token: abcdef.0123456789abcdef" }}`, "true"}},
		"cidrhost": {
			{`{{ cidrhost "192.168.1.5/24" }}`, "192.168.1.5"},
			{`{{ cidrhost "192.168.1.5/24" 15 }}`, "192.168.1.15"},
			{`{{ cidrhost "192.168.1.5/24" -2 }}`, "192.168.1.254"},
			{`{{ cidrhost "10.0.0.0/8" 65536 }}`, "10.1.0.0"},
			{`{{ cidrhost "2001:db8::/32" 255 }}`, "2001:db8::ff"},
			{`{{ cidrhost "10.0.0.7/32" 0 }}`, "10.0.0.7"},
		},
		"cidrslaac": {
			{`{{ "2001:db8:1::/64" | cidrslaac "00:1A:2B:3C:4D:5E" }}`, "2001:db8:1:0:21a:2bff:fe3c:4d5e/64"},
			{`{{ cidrslaac "00-1a-2b-3c-4d-5e" "2001:db8:1:2:3::/80" }}`, "2001:db8:1:2:3:2bff:fe3c:4d5e/80"},
			{`{{ cidrslaac "02:00:00:00:00:01" "fd00::/60" }}`, "fd00::ff:fe00:1/60"},
			{`{{ cidrslaac "ff:ff:ff:ff:ff:ff" "fd00::/70" }}`, "fd00::1ff:ffff:feff:ffff/70"},
		},
		"coalesce":        {{`{{ coalesce "" "a" "b" }}`, "a"}},
		"contains":        {{`{{ "hello" | contains "ell" }}`, "true"}, {`{{ contains "x" "hello" }}`, "false"}},
		"default":         {{`{{ "" | default "a" }}`, "a"}, {`{{ "b" | default "a" }}`, "b"}, {`{{ get .Values "none" | default "a" }}`, "a"}},
		"dict":            {{`{{ (dict "a" 1).a }}`, "1"}},
		"empty":           {{`{{ empty "" }} {{ empty "a" }}`, "true false"}},
		"get":             {{`{{ get .Values "Key" }}`, "value"}, {`{{ get .Values "none" }}`, ""}},
		"getValue":        {{`{{ getValue "ds=nocloud;i=1234" "i" }}`, "1234"}, {`{{ getValue "a=1; b=2=3" "b" }}`, "2=3"}, {`{{ getValue "a" "a" }}`, ""}},
		"hasKey":          {{`{{ hasKey .Values "Key" }} {{ hasKey .Values "none" }}`, "true false"}},
		"hasPrefix":       {{`{{ "hello" | hasPrefix "he" }}`, "true"}},
		"hasSuffix":       {{`{{ "hello" | hasSuffix "he" }}`, "false"}},
		"hasTag":          {{`{{ hasTag .Metadata.Tags "blue" }} {{ hasTag .Metadata.Tags "red" }} {{ hasTag (list "a") "a" }}`, "true false true"}},
		"indent":          {{`{{ indent 2 "a\nb" }}`, "  a\n  b"}},
		"join":            {{`{{ .Metadata.Tags | join "," }}`, "blue,team-a"}},
		"kubeletFlags":    {{`{{ kubeletFlags .Kubernetes.KubeletArgs | trim | hasPrefix "KUBELET_KUBEADM_ARGS=\"--hostname-override=" }}`, "true"}},
		"list":            {{`{{ list "a" 1 }}`, "[a 1]"}},
		"lower":           {{`{{ lower "ABC" }}`, "abc"}},
		"networkConfigV1": {{`{{ (networkConfigV1 .Network).version }}`, "1"}},
		"networkConfig":   {{`{{ (networkConfig .Network).version }}`, "2"}},
		"nindent":         {{`{{ nindent 2 "a" }}`, "\n  a"}},
		"pairs": {
			{`{{ pairs "=" (dict "b" 1 "a" "x") }}`, "a=x,b=1"},
			{`{{ .Kubernetes.KubeletConfiguration.evictionHard | pairs "<" }}`, "memory.available<100Mi,nodefs.available<10%"},
		},
		"quote":           {{`{{ quote "a\"b" }}`, `"a\"b"`}},
		"regexFind":       {{`{{ regexFind "[a-z][1-9]" "abcd1234" }}`, "d1"}},
		"regexFindString": {{`{{ regexFindString "^type-([a-z0-9]+)-(.*)$" "type-metal1-asz" 1 }}`, "metal1"}, {`{{ regexFindString "a" "b" 0 }}{{ regexFindString "a" "a" 7 }}`, ""}},
		"regexReplaceAll": {{`{{ regexReplaceAll "a(x*)b" "-ab-axxb-" "${1}W" }}`, "-W-xxW-"}},
		"replace":         {{`{{ "a b c" | replace " " "-" }}`, "a-b-c"}},
		"sha256sum":       {{`{{ sha256sum "" }}`, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}},
		"split":           {{`{{ "a,b" | split "," }}`, "[a b]"}, {`{{ index (split "," "a,b") 1 }}`, "b"}},
		"sub": {
			{`{{ sub 7 2 1 }} {{ sub 1 2 }}`, "4 -1"},
			{`{{ sub (atoi .Metadata.InstanceID) 1900 | cidrhost "192.168.1.0/24" }}`, "192.168.1.101"},
		},
		"ternary":      {{`{{ true | ternary "yes" "no" }}`, "yes"}},
		"toJson":       {{`{{ toJson (list "a\nb" 1) }}`, `["a\nb",1]`}},
		"toPrettyJson": {{`{{ toPrettyJson (list 1) }}`, "[\n  1\n]"}},
		"toPrettyYaml": {{`{{ dict "a" (dict "b" 1) | toPrettyYaml }}`, "a:\n    b: 1"}},
		"toYaml":       {{`{{ dict "a" (dict "b" "yes: no") | toYaml }}`, "a:\n  b: 'yes: no'"}},
		"toYamlPretty": {{`{{ dict "a" (dict "b" 1) | toYamlPretty }}`, "a:\n  b: 1"}},
		"trim":         {{`{{ trim "  a " }}`, "a"}},
		"trimPrefix":   {{`{{ "abc" | trimPrefix "a" }}`, "bc"}},
		"trimSuffix":   {{`{{ "abc" | trimSuffix "c" }}`, "ab"}},
		"upper":        {{`{{ upper "abc" }}`, "ABC"}},
	}
}

func TestFunctions(t *testing.T) {
	t.Parallel()
	values := someValues(t)
	values.Values = map[string]any{"Key": "value"}
	for name, cases := range calls() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, c := range cases {
				got := render(t, withUserData("#!\n"+c[0]), values)[bootstrap.UserData]
				if diff := cmp.Diff("#!\n"+c[1], string(got)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", c[0], diff)
				}
			}
		})
	}
}

// TestFunctionsAreThese checks that no other functions exist, in particular none that read
// the environment, the clock or the network, or generate random numbers and keys.
func TestFunctionsAreThese(t *testing.T) {
	t.Parallel()
	functions := bootstrap.Functions()
	if diff := cmp.Diff(slices.Sorted(maps.Keys(calls())), slices.Sorted(maps.Keys(functions))); diff != "" {
		t.Errorf("functions (-tested +existing):\n%s", diff)
	}
	for _, name := range []string{"env", "expandenv", "now", "date", "randAlphaNum", "uuidv4", "genCA", "getHostByName", "htpasswd", "repeat", "until"} {
		if _, err := template.New("").Funcs(functions).Parse("{{ " + name + " }}"); err == nil {
			t.Errorf("templates can call %s", name)
		}
	}
	documented, err := readDoc()
	if err != nil {
		t.Fatal(err)
	}
	for name := range functions {
		if !strings.Contains(documented, "| `"+name+"` |") {
			t.Errorf("docs/join.md does not describe %s", name)
		}
	}
}

// TestBadCalls checks that the error names the function and repeats no argument.
func TestBadCalls(t *testing.T) {
	t.Parallel()
	for _, call := range []string{
		`atoi "geheim"`, `atoi ""`, `add "geheim" 1`, `sub 1 nil`, `b64dec "geheim!"`, `cidrhost "geheim"`, `cidrhost "10.0.0.0/24" 256`, `cidrhost "10.0.0.0/24" -257`, `cidrhost "10.0.0.0/24" 1 2`,
		`cidrslaac "geheim" "fd00::/64"`, `cidrslaac "0:0:0:0:0:geheim" "fd00::/64"`, `cidrslaac "00:1a:2b:3c:4d:5e" "10.0.0.0/8"`,
		`hasTag "geheim" "geheim"`, `regexFind "geheim(" ""`, `regexFindString "geheim(" "" 0`, `kubeletFlags (split " " "--a=\"geheim")`,
		`index (list "geheim") 2`,
	} {
		_, err := bootstrap.Render(withUserData("#!\n\n{{ "+call+" }}"), someValues(t))
		name, _, _ := strings.Cut(call, " ")
		if err == nil || !strings.Contains(err.Error(), "user-data, line 3 of the template: <"+name) {
			t.Errorf("%s: %v", call, err)
		}
		if err != nil && strings.Contains(strings.SplitN(err.Error(), ">", 2)[1], "geheim") {
			t.Errorf("%s: the error repeats an argument: %v", call, err)
		}
	}
}

// TestYAMLReadsTheSame checks that every short string of characters that have a meaning at
// the beginning or the end of a line survives encoding and decoding.
func TestYAMLReadsTheSame(t *testing.T) {
	t.Parallel()
	functions := bootstrap.Functions()
	for _, name := range []string{"toYaml", "toPrettyYaml"} {
		write, ok := functions[name].(func(any) (string, error))
		if !ok {
			t.Fatalf("%s is %T", name, functions[name])
		}
		var check func(text string, more int)
		check = func(text string, more int) {
			want := map[string]any{"list": []any{text, 7}, "map": map[string]any{"key": text}}
			written, err := write(want)
			if err != nil {
				t.Fatalf("%s of %q: %v", name, text, err)
			}
			var got map[string]any
			if err := yaml.Unmarshal([]byte(written+"\n"), &got); err != nil {
				t.Fatalf("%s of %q: %v:\n%s", name, text, err, written)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("%s of %q (-want +got):\n%s", name, text, diff)
			}
			for _, next := range " \t\n\r#:-a" {
				if more > 0 {
					check(text+string(next), more-1)
				}
			}
		}
		check("", 4)
		if written, err := write(map[string]any{"a\nb": 1}); err == nil {
			t.Errorf("%s wrote a key of two lines: %s", name, written)
		}
	}
}
