package bootstrap

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"text/template"
)

// maxDocument is the maximum size of a document in bytes: far above what joining needs.
const maxDocument = 256 << 10

// DocumentError reports what is wrong with a template or with its result. It never
// repeats a value.
type DocumentError struct {
	// Document is its name, such as user-data.
	Document string
	// Line is the line in the template, or in the result if Rendered is set; 0 means the
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

// UnknownKeyError reports a key in a template Secret that is not a document.
type UnknownKeyError struct{ Key string }

func (e *UnknownKeyError) Error() string {
	return fmt.Sprintf("reading templates: key %q is none of %s, %s, %s, %s and %s: rename or remove it",
		e.Key, UserData, MetaData, NetworkConfig, VendorData, JoinCommand)
}

// TemplatesOf returns the templates in a Secret's data, with Defaults for missing ones.
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

// Render renders templates with values and checks the result. Any error is a
// *DocumentError.
func Render(templates Templates, values Values) (Documents, error) {
	documents := Documents{}
	for _, part := range []struct {
		name  string
		check func(document, text string) error
	}{
		{UserData, checkUserData},
		{MetaData, checkMetaData},
		{NetworkConfig, checkNetworkConfig},
		{VendorData, checkVendorData},
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

// maxCommand is the maximum size in bytes of a guest command's input in Proxmox.
const maxCommand = 64 << 10

// RenderCommand renders the command that joins a guest by its agent. It returns a
// *DocumentError.
func RenderCommand(templates Templates, values Values) (string, error) {
	text, err := execute(JoinCommand, templates[JoinCommand], values, newWork())
	switch {
	case err != nil:
		return "", err
	case strings.TrimSpace(text) == "":
		return "", &DocumentError{Document: JoinCommand, Problem: "the command is empty: set this key of the Secret of templatesRef to the script that joins the node"}
	case len(text) > maxCommand:
		return "", &DocumentError{Document: JoinCommand, Problem: fmt.Sprintf("has more than %d bytes: shorten it, or fetch the rest from elsewhere", maxCommand)}
	}
	return text, nil
}

// execute runs a template, which ends when no work is left.
func execute(name, text string, values Values, left *work) (string, error) {
	if len(text) > maxDocument {
		return "", &DocumentError{Document: name, Problem: fmt.Sprintf("its template has more than %d bytes: shorten it, or fetch the rest from elsewhere", maxDocument)}
	}
	functions := bounded(left)
	parsed, err := template.New(name).Funcs(functions).Option("missingkey=error").Parse(text)
	if err == nil {
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
		problem = &DocumentError{Document: name, Problem: fmt.Sprintf("has more than %d bytes: shorten it, or fetch the rest from elsewhere", maxDocument)}
	case errors.Is(err, errTooManySteps):
		problem = &DocumentError{Document: name, Problem: fmt.Sprintf("its loops go round more than %d times: shorten the lists", maxSteps)}
	case errors.Is(err, errTooMuchWork):
		problem.Problem = "takes too much work up to here: pass shorter texts to its functions, above all to regular expressions, and call them less often"
	}
	return "", problem
}

var errTooLong = errors.New("too long")

// limited is a writer that fails beyond its limit.
type limited struct {
	text strings.Builder
	left int
}

// Write stores the bytes, or fails if there is no room for them.
func (l *limited) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		return 0, errTooLong
	}
	return l.text.Write(p)
}

var (
	// position matches the line in text/template's error.
	position = regexp.MustCompile(`^template: [^:]+:(\d+)(?::\d+)?: `)
	// action matches the part of a template that failed.
	action = regexp.MustCompile(`^executing "[^"]*" at (<[^>]*>): (?s:(.*))$`)
	// literal matches strings in a template itself, which may be secret too.
	literal = regexp.MustCompile("\"(?:[^\"\\\\]|\\\\.)*\"|`[^`]*`")
	// noKey finds a key that a map lacks.
	noKey = regexp.MustCompile(`: map has no entry for key "([^"]*)"$`)
	// noField finds a field that there is not.
	noField = regexp.MustCompile(`can't evaluate field (\w+)`)
	// inCall finds the function that failed.
	inCall = regexp.MustCompile(`^error calling (\w+): `)
)

// explain converts an error of text/template. It names only the function of a failed call,
// because the error may contain the arguments.
func explain(name string, err error) *DocumentError {
	e := &DocumentError{Document: name, Problem: err.Error()}
	found := position.FindStringSubmatch(e.Problem)
	if found == nil {
		e.Problem = "the template cannot be used"
		return e
	}
	e.Line, _ = strconv.Atoi(found[1])
	whole := strings.TrimPrefix(e.Problem, found[0])
	e.Problem = whole
	if !strings.HasPrefix(whole, "executing ") {
		return e // of parsing, so it holds names and signs of the template only
	}
	e.Problem = explainCall("", whole)
	if at := action.FindStringSubmatch(literal.ReplaceAllString(whole, `"…"`)); at != nil {
		e.Problem = at[1] + ": " + explainCall(at[2], whole)
	}
	return e
}

// explainCall returns what is wrong. Text is whole without its literals and its position.
func explainCall(text, whole string) string {
	if key := noKey.FindStringSubmatch(whole); key != nil && strings.HasPrefix(text, "map has no entry for key ") {
		return fmt.Sprintf("there is no %q: add it to the Secret of valuesRef, or ask for it with `get` and `default`", key[1])
	}
	if field := noField.FindStringSubmatch(text); field != nil {
		return fmt.Sprintf("there is no %s here: see docs/join.md for what there is", field[1])
	}
	if call := inCall.FindStringSubmatch(text); call != nil {
		return fmt.Sprintf("function %s: invalid arguments: see docs/join.md for what it takes", call[1])
	}
	return "cannot be evaluated: see docs/join.md for values and functions"
}
