package bootstrap

import (
	"slices"
	"text/template"
	"text/template/parse"
)

// bootstrapToken is the name of a value that only classes with bootstrap tokens have.
const bootstrapToken = "BootstrapToken"

// UsesBootstrapToken returns the names of the templates that use .Kubernetes.BootstrapToken.
// It ignores templates with syntax errors.
func UsesBootstrapToken(templates Templates) []string {
	var uses []string
	for _, name := range []string{UserData, MetaData, NetworkConfig, VendorData, JoinCommand} {
		parsed, err := template.New(name).Funcs(Functions()).Parse(templates[name])
		if err != nil {
			continue
		}
		found := false
		for _, one := range parsed.Templates() {
			if one.Tree == nil || one.Root == nil {
				continue
			}
			walk(one.Root, func(node parse.Node) bool {
				switch node := node.(type) {
				case *parse.FieldNode:
					found = found || slices.Contains(node.Ident, bootstrapToken)
				case *parse.VariableNode:
					found = found || slices.Contains(node.Ident, bootstrapToken)
				case *parse.ChainNode:
					found = found || slices.Contains(node.Field, bootstrapToken)
				case *parse.StringNode:
					found = found || node.Text == bootstrapToken // the key of get, index or hasKey
				}
				return true
			})
		}
		if found {
			uses = append(uses, name)
		}
	}
	return uses
}

// walk calls visit for a node of a template and, if visit returns true, for its child nodes.
func walk(node parse.Node, visit func(parse.Node) bool) {
	if !visit(node) {
		return
	}
	var branch *parse.BranchNode
	var inner []parse.Node
	switch node := node.(type) {
	case *parse.ListNode:
		inner = node.Nodes
	case *parse.ActionNode:
		inner = append(inner, node.Pipe)
	case *parse.TemplateNode:
		if node.Pipe != nil {
			inner = append(inner, node.Pipe)
		}
	case *parse.PipeNode:
		for _, command := range node.Cmds {
			inner = append(inner, command)
		}
	case *parse.CommandNode:
		inner = node.Args
	case *parse.ChainNode:
		inner = append(inner, node.Node)
	case *parse.IfNode:
		branch = &node.BranchNode
	case *parse.RangeNode:
		branch = &node.BranchNode
	case *parse.WithNode:
		branch = &node.BranchNode
	}
	if branch != nil {
		inner = append(inner, branch.Pipe, branch.List)
		if branch.ElseList != nil {
			inner = append(inner, branch.ElseList)
		}
	}
	for _, node := range inner {
		walk(node, visit)
	}
}
