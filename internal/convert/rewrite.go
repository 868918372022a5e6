package convert

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template/parse"

	"github.com/numaform/numaform/internal/bootstrap"
)

// The places of values that differ in templates of karpenter-provider-proxmox, from the root
// of all values.
const (
	allValues     = "$"
	ownValues     = "$.Values"
	kubeletValues = "$.Kubernetes.KubeletConfiguration"
)

// The changes of templates.
const (
	notedKubelet   = ".Kubernetes.KubeletConfiguration becomes .Kubernetes.KubeletSettings, which has the same fields"
	notedSplit     = "split has the separator first, except a literal after another value"
	notedMissing   = "a value that the Secret of valuesRef does not contain is read with get, and is empty"
	notedMetadata  = "all values of the document are .Metadata or .Network"
	notedUnparsed  = "it is not a valid template, so it is unchanged"
	notedNoAddress = "numaform does not read the addresses of the host's bridges, so the template gets empty ones"
)

// rewrite converts a template of karpenter-provider-proxmox, and reports what it changes. It
// replaces only the source of nodes of the parsed template, so the rest of the text, such as
// comments, stays as it is. values are the user's values; nil means that they are unknown.
func rewrite(document, theirs string, values map[string]any) (ours string, notes []string) {
	parsed := parse.New(document)
	parsed.Mode = parse.SkipFuncCheck
	trees := map[string]*parse.Tree{}
	if _, err := parsed.Parse(theirs, "", "", trees); err != nil {
		return theirs, []string{notedUnparsed}
	}
	r := &rewriter{text: theirs, values: values, root: allValues}
	// There, these two documents have only a part of the values.
	switch document {
	case bootstrap.MetaData:
		r.root = allValues + ".Metadata"
	case bootstrap.NetworkConfig:
		r.root = allValues + ".Network"
	}
	var edits []edit
	for _, name := range sorted(trees) {
		// The template of a definition usually gets all values, too.
		edits = append(edits, r.node(trees[name].Root, &scope{dot: r.root, atRoot: true, variables: map[string]string{"$": r.root}})...)
	}
	return r.source(0, len(theirs), edits), r.notes
}

type rewriter struct {
	text   string
	values map[string]any
	// root is the place of the values of the document.
	root  string
	notes []string
}

// edit replaces a part of the text.
type edit struct {
	from, to int
	text     string
}

// scope is where dot and variables point to: places from the root, or "" if unknown.
type scope struct {
	dot       string
	atRoot    bool // dot is the data of the document
	variables map[string]string
}

func (s *scope) inner() *scope {
	return &scope{dot: s.dot, atRoot: s.atRoot, variables: maps.Clone(s.variables)}
}

func (r *rewriter) note(text string) {
	if !slices.Contains(r.notes, text) {
		r.notes = append(r.notes, text)
	}
}

// source returns a part of the text with the edits in it.
func (r *rewriter) source(from, to int, edits []edit) string {
	slices.SortFunc(edits, func(a, b edit) int { return a.from - b.from })
	var out strings.Builder
	for _, e := range edits {
		out.WriteString(r.text[from:e.from])
		out.WriteString(e.text)
		from = e.to
	}
	out.WriteString(r.text[from:to])
	return out.String()
}

// rewritten returns the source of a node with the edits in it.
func (r *rewriter) rewritten(node parse.Node, s *scope) string {
	from, to := r.span(node)
	return r.source(from, to, r.node(node, s))
}

// node returns the edits of a node.
func (r *rewriter) node(node parse.Node, s *scope) []edit {
	var edits []edit
	switch node := node.(type) {
	case *parse.ListNode:
		for _, inner := range node.Nodes {
			edits = append(edits, r.node(inner, s)...)
		}
	case *parse.ActionNode:
		return r.node(node.Pipe, s)
	case *parse.TemplateNode:
		if node.Pipe != nil {
			return r.node(node.Pipe, s)
		}
	case *parse.IfNode:
		return r.branch(&node.BranchNode, s)
	case *parse.WithNode:
		return r.branch(&node.BranchNode, s)
	case *parse.RangeNode:
		return r.branch(&node.BranchNode, s)
	case *parse.PipeNode:
		return r.pipe(node, s)
	case *parse.CommandNode:
		return r.command(node, s)
	case *parse.DotNode:
		return r.whole(node, s.atRoot)
	case *parse.FieldNode:
		return r.reference(node, "", s.dot, node.Ident)
	case *parse.VariableNode:
		if len(node.Ident) == 1 {
			return r.whole(node, node.Ident[0] == "$")
		}
		return r.reference(node, node.Ident[0], s.variables[node.Ident[0]], node.Ident[1:])
	case *parse.ChainNode:
		return r.reference(node, r.rewritten(node.Node, s), placeOf(node.Node, s), node.Field)
	}
	return edits
}

// branch returns the edits of an if, with or range.
func (r *rewriter) branch(node *parse.BranchNode, s *scope) []edit {
	outer := s.inner()
	edits := r.node(node.Pipe, outer)
	inner := outer.inner()
	switch node.Type() {
	case parse.NodeWith:
		inner.dot, inner.atRoot = placeOf(node.Pipe, outer), false
	case parse.NodeRange:
		inner.dot, inner.atRoot = "", false
		for _, variable := range node.Pipe.Decl {
			inner.variables[variable.Ident[0]] = ""
		}
	}
	edits = append(edits, r.node(node.List, inner)...)
	if node.ElseList != nil {
		edits = append(edits, r.node(node.ElseList, outer)...)
	}
	return edits
}

// pipe returns the edits of a pipeline, and declares its variables.
func (r *rewriter) pipe(node *parse.PipeNode, s *scope) []edit {
	var edits []edit
	for i, command := range node.Cmds {
		if i > 0 && isSplit(command, 2) {
			// TEXT and the separator from the pipeline: there, the separator is last.
			r.note(notedSplit)
			start, _ := r.span(node.Cmds[0])
			_, before := r.span(node.Cmds[i-1])
			_, end := r.span(command)
			separator := r.source(start, before, edits)
			single := i == 1 && len(node.Cmds[0].Args) == 1
			if !single {
				separator = "(" + separator + ")"
			}
			text := r.rewritten(command.Args[1], s)
			if isLiteral(command.Args[1]) && (!single || !isLiteral(node.Cmds[0].Args[0])) {
				text = "(" + text + ")"
			}
			edits = []edit{{start, end, "split " + separator + " " + text}}
			continue
		}
		edits = append(edits, r.node(command, s)...)
	}
	for _, variable := range node.Decl {
		s.variables[variable.Ident[0]] = placeOf(node, s)
	}
	return edits
}

func isSplit(command *parse.CommandNode, args int) bool {
	name, ok := command.Args[0].(*parse.IdentifierNode)
	return ok && name.Ident == "split" && len(command.Args) == args
}

func isLiteral(node parse.Node) bool { return node.Type() == parse.NodeString }

// command returns the edits of a command. There, split has the text first. numaform also
// takes this order if only the separator is a literal.
func (r *rewriter) command(node *parse.CommandNode, s *scope) []edit {
	if isSplit(node, 3) && (isLiteral(node.Args[1]) || !isLiteral(node.Args[2])) {
		r.note(notedSplit)
		text, separator := r.rewritten(node.Args[1], s), r.rewritten(node.Args[2], s)
		if isLiteral(node.Args[1]) && !isLiteral(node.Args[2]) {
			text = "(" + text + ")" // no longer a literal, which would be the separator
		}
		from1, to1 := r.span(node.Args[1])
		from2, to2 := r.span(node.Args[2])
		return []edit{{from1, to1, separator}, {from2, to2, text}}
	}
	var edits []edit
	for _, arg := range node.Args {
		found := r.node(arg, s)
		if len(found) == 1 && len(node.Args) == 1 {
			from, to := r.span(arg)
			if inner, ok := strings.CutPrefix(found[0].text, "(get "); ok && found[0].from == from && found[0].to == to && strings.HasSuffix(inner, ")") {
				found[0].text = "get " + strings.TrimSuffix(inner, ")") // the whole command
			}
		}
		edits = append(edits, found...)
	}
	return edits
}

// whole returns the edit of dot or $ if it means all values of a document that has only a part
// of numaform's values.
func (r *rewriter) whole(node parse.Node, root bool) []edit {
	if !root || r.root == allValues {
		return nil
	}
	r.note(notedMetadata)
	from, to := r.span(node)
	field := strings.TrimPrefix(r.root, allValues)
	return []edit{{from, to, strings.TrimSuffix(r.text[from:to], ".") + field}}
}

// reference returns the edits of the fields of a value: base is its source, and at its place.
func (r *rewriter) reference(node parse.Node, base, at string, fields []string) []edit {
	changed := base
	for i, field := range fields {
		switch _, given := r.values[field]; {
		case at == kubeletValues, at == ownValues && r.values != nil && !given:
			key := field
			if at == kubeletValues {
				key = kubeletKey(field)
			} else {
				r.note(notedMissing)
			}
			if changed == "" {
				changed = "."
			}
			changed = fmt.Sprintf("(get %s %q)", changed, key)
			for _, rest := range fields[i+1:] {
				changed += "." + rest
			}
			from, to := r.span(node)
			return []edit{{from, to, changed}}
		}
		at = joinPlace(at, field)
		if at == kubeletValues {
			r.note(notedKubelet)
			field = "KubeletSettings"
		}
		changed += "." + field
	}
	from, to := r.span(node)
	if changed == r.text[from:to] {
		return nil
	}
	return []edit{{from, to, changed}}
}

func joinPlace(place, field string) string {
	if place == "" {
		return ""
	}
	return place + "." + field
}

// placeOf returns the place of the value of a node, or "".
func placeOf(node parse.Node, s *scope) string {
	join := func(place string, fields []string) string {
		for _, field := range fields {
			place = joinPlace(place, field)
		}
		return place
	}
	switch node := node.(type) {
	case *parse.PipeNode:
		if len(node.Cmds) == 1 && len(node.Cmds[0].Args) == 1 {
			return placeOf(node.Cmds[0].Args[0], s)
		}
	case *parse.DotNode:
		return s.dot
	case *parse.FieldNode:
		return join(s.dot, node.Ident)
	case *parse.VariableNode:
		return join(s.variables[node.Ident[0]], node.Ident[1:])
	case *parse.ChainNode:
		return join(placeOf(node.Node, s), node.Field)
	}
	return ""
}

// span returns where the source of a node begins and ends. The position of several fields is
// the one of the second field, and that of a pipeline in parentheses is inside them.
func (r *rewriter) span(node parse.Node) (from, to int) {
	from = int(node.Position())
	switch node := node.(type) {
	case *parse.CommandNode:
		from, _ = r.span(node.Args[0])
		_, to = r.span(node.Args[len(node.Args)-1])
		return from, to
	case *parse.PipeNode:
		_, to = r.span(node.Cmds[len(node.Cmds)-1])
		open := strings.LastIndexByte(r.text[:from], '(')
		closing := strings.IndexByte(r.text[to:], ')')
		return open, to + closing + 1
	case *parse.ChainNode:
		from, to = r.span(node.Node)
		return from, to + len("."+strings.Join(node.Field, "."))
	case *parse.FieldNode:
		if len(node.Ident) > 1 {
			from -= len("." + node.Ident[0])
		}
	case *parse.VariableNode:
		if len(node.Ident) > 1 {
			from -= len(node.Ident[0])
		}
	}
	return from, from + len(node.String())
}

// kubeletKey returns the key of a field of kubelet's configuration: CPUManagerPolicy is
// cpuManagerPolicy.
func kubeletKey(field string) string {
	upper := 0
	for upper < len(field) && field[upper] >= 'A' && field[upper] <= 'Z' {
		upper++
	}
	if upper > 1 && upper < len(field) {
		upper-- // the last upper-case letter begins the next word
	}
	if strings.HasPrefix(field, "CPUCFS") {
		upper = len("CPU")
	}
	return strings.ToLower(field[:upper]) + field[upper:]
}
