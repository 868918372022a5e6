package bootstrap

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"text/template"
)

// maxDocument is the maximum size of a document in bytes, far more than joining requires.
const maxDocument = 256 << 10

// DocumentError reports a problem in a template or in its result. It never contains a value.
type DocumentError struct {
	// Document is the name of the document, such as user-data.
	Document string
	// Line is the line in the template, or in the result if Rendered is set. 0 means the
	// whole document.
	Line     int
	Rendered bool
	Problem  string
}

func (e *DocumentError) Error() string {
	where := e.Document
	switch {
	case e.Line > 0 && e.Rendered:
		where += fmt.Sprintf(", line %d of the result", e.Line)
	case e.Line > 0:
		where += fmt.Sprintf(", line %d of the template", e.Line)
	}
	return fmt.Sprintf("rendering %s: %s", where, e.Problem)
}

// UnknownKeyError reports a key in a template Secret that is not the name of a template.
type UnknownKeyError struct{ Key string }

func (e *UnknownKeyError) Error() string {
	return fmt.Sprintf("reading templates: unknown key %q: must be %s, %s, %s, %s or %s: rename or remove it",
		e.Key, UserData, MetaData, NetworkConfig, VendorData, JoinCommand)
}

// TemplatesOf returns the templates in the data of a Secret, and Defaults for missing ones.
// It returns an *UnknownKeyError for any other key.
func TemplatesOf(secret map[string][]byte) (Templates, error) {
	templates := Defaults()
	for _, key := range sortedKeys(secret) {
		switch key {
		case UserData, MetaData, NetworkConfig, VendorData, JoinCommand:
			templates[key] = string(secret[key])
		default:
			return nil, &UnknownKeyError{Key: key}
		}
	}
	return templates, nil
}

// Render renders templates and checks the documents. It omits empty documents. Each error is
// a *DocumentError.
func Render(templates Templates, values Values) (Documents, error) {
	documents := Documents{}
	for _, part := range []struct {
		name  string
		check func(document, text string) error
	}{
		{name: UserData, check: checkUserData},
		{name: MetaData, check: checkMetaData},
		{name: NetworkConfig, check: checkNetworkConfig},
		{name: VendorData, check: checkVendorData},
	} {
		text, err := execute(part.name, templates[part.name], values, newWork())
		if err == nil {
			err = part.check(part.name, text)
		}
		if err != nil {
			return nil, err
		}
		if text != "" {
			documents[part.name] = []byte(text)
		}
	}
	return documents, nil
}

// maxCommand is the maximum size in bytes of the input of a guest command in Proxmox.
const maxCommand = 64 << 10

// RenderCommand renders the command that the guest agent runs to join. An empty or too long
// command is an error. Each error is a *DocumentError.
func RenderCommand(templates Templates, values Values) (string, error) {
	text, err := execute(JoinCommand, templates[JoinCommand], values, newWork())
	switch {
	case err != nil:
		return "", err
	case strings.TrimSpace(text) == "":
		return "", &DocumentError{Document: JoinCommand, Problem: "must not be empty: set this key in the Secret of templatesRef to the script that joins the node"}
	case len(text) > maxCommand:
		return "", &DocumentError{Document: JoinCommand, Problem: fmt.Sprintf("exceeds %d bytes: shorten it, or download parts of it at boot", maxCommand)}
	}
	return text, nil
}

// execute runs a template within the remaining budget.
func execute(name, text string, values Values, left *work) (string, error) {
	if len(text) > maxDocument {
		return "", &DocumentError{Document: name, Problem: fmt.Sprintf("its template exceeds %d bytes: shorten it, or download parts of it at boot", maxDocument)}
	}
	functions := bounded(left)
	parsed, err := template.New(name).Funcs(functions).Option("missingkey=error").Parse(text)
	if err == nil {
		separatorLast(parsed)
		err = count(parsed, functions)
	}
	if err != nil {
		return "", explain(name, err)
	}
	out := &limited{left: maxDocument}
	err = parsed.Execute(out, values)
	if err == nil {
		return out.text.String(), nil
	}
	problem := explain(name, err)
	switch {
	case errors.Is(err, errTooLong):
		problem = &DocumentError{Document: name, Problem: fmt.Sprintf("exceeds %d bytes: shorten it, or download parts of it at boot", maxDocument)}
	case errors.Is(err, errTooManySteps):
		problem = &DocumentError{Document: name, Problem: fmt.Sprintf("exceeds %d loop iterations and template calls: shorten the lists, or remove the recursion", maxSteps)}
	case errors.Is(err, errTooMuchWork):
		problem.Problem = "the template exceeds its time limit here: pass shorter texts to functions, particularly to regular expressions, and call them less often"
	}
	return "", problem
}

var errTooLong = errors.New("too long")

// limited is a writer that fails when its limit is exceeded.
type limited struct {
	text strings.Builder
	left int
}

// Write appends the bytes, or fails if they exceed the limit.
func (l *limited) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		return 0, errTooLong
	}
	return l.text.Write(p)
}

var (
	// position matches the line in an error of text/template.
	position = regexp.MustCompile(`^template: [^:]+:(\d+)(?::\d+)?: `)
	// action matches the action that failed, and the reason.
	action = regexp.MustCompile(`^executing "[^"]*" at (<[^>]*>): (?s:(.*))$`)
	// literal matches strings in a template, which may be secrets.
	literal = regexp.MustCompile("\"(?:[^\"\\\\]|\\\\.)*\"|`[^`]*`")
	// noKey matches the name of a missing key.
	noKey = regexp.MustCompile(`: map has no entry for key "([^"]*)"$`)
	// noField matches the name of an unknown field.
	noField = regexp.MustCompile(`can't evaluate field (\w+)`)
	// inCall matches the name of the function that failed.
	inCall = regexp.MustCompile(`^error calling (\w+): `)
)

// explain converts an error of text/template. For a failed call it names only the function,
// because the original error may contain arguments.
func explain(name string, err error) *DocumentError {
	e := &DocumentError{Document: name, Problem: err.Error()}
	found := position.FindStringSubmatch(e.Problem)
	if found == nil {
		e.Problem = "the template is invalid"
		return e
	}
	e.Line, _ = strconv.Atoi(found[1])
	whole := strings.TrimPrefix(e.Problem, found[0])
	e.Problem = whole
	if !strings.HasPrefix(whole, "executing ") {
		return e // a syntax error, which contains no values
	}
	e.Problem = explainCall("", whole)
	if at := action.FindStringSubmatch(literal.ReplaceAllString(whole, `"…"`)); at != nil {
		e.Problem = at[1] + ": " + explainCall(at[2], whole)
	}
	return e
}

// explainCall describes an error of execution. text is the reason in whole, with literals
// replaced.
func explainCall(text, whole string) string {
	if key := noKey.FindStringSubmatch(whole); key != nil && strings.HasPrefix(text, "map has no entry for key ") {
		return fmt.Sprintf("key %q does not exist: add it to the Secret of valuesRef if it belongs to .Values, or read it with `get` and `default`", key[1])
	}
	if field := noField.FindStringSubmatch(text); field != nil {
		return fmt.Sprintf("field %s does not exist: see docs/join.md for the available fields", field[1])
	}
	if call := inCall.FindStringSubmatch(text); call != nil {
		return fmt.Sprintf("function %s: invalid arguments, or too large a result: see docs/join.md for its arguments", call[1])
	}
	return "cannot be evaluated: see docs/join.md for values and functions"
}
