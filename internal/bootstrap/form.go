package bootstrap

import (
	"slices"
	"text/template"
	"text/template/parse"
)

// bootstrapToken is the value that exists only for classes with bootstrap tokens.
const bootstrapToken = "BootstrapToken"

// UsesBootstrapToken returns the names of the documents that use
// .Kubernetes.BootstrapToken, at any place. A template that cannot be parsed uses
// nothing.
func UsesBootstrapToken(templates Templates) []string {
	var uses []string
	for _, part := range []struct{ name, text string }{
		{UserData, templates.UserData},
		{MetaData, templates.MetaData},
		{NetworkConfig, templates.NetworkConfig},
		{VendorData, templates.VendorData},
		{JoinCommand, templates.JoinCommand},
	} {
		parsed, err := template.New(part.name).Funcs(Functions()).Parse(part.text)
		if err != nil {
			continue
		}
		if slices.ContainsFunc(parsed.Templates(), func(t *template.Template) bool { return t.Tree != nil && names(t.Root) }) {
			uses = append(uses, part.name)
		}
	}
	return uses
}

// names reports whether a node of a template refers to BootstrapToken.
func names(node parse.Node) bool {
	switch node := node.(type) {
	case *parse.ListNode:
		return node != nil && slices.ContainsFunc(node.Nodes, names)
	case *parse.ActionNode:
		return inPipe(node.Pipe)
	case *parse.TemplateNode:
		return inPipe(node.Pipe)
	case *parse.IfNode:
		return inBranch(&node.BranchNode)
	case *parse.RangeNode:
		return inBranch(&node.BranchNode)
	case *parse.WithNode:
		return inBranch(&node.BranchNode)
	}
	return false
}

func inBranch(node *parse.BranchNode) bool {
	return inPipe(node.Pipe) || names(node.List) || names(node.ElseList)
}

func inPipe(pipe *parse.PipeNode) bool {
	return pipe != nil && slices.ContainsFunc(pipe.Cmds, func(c *parse.CommandNode) bool { return slices.ContainsFunc(c.Args, inArgument) })
}

// inArgument reports whether an argument in a pipe refers to BootstrapToken.
func inArgument(node parse.Node) bool {
	switch node := node.(type) {
	case *parse.PipeNode:
		return inPipe(node)
	case *parse.FieldNode:
		return slices.Contains(node.Ident, bootstrapToken)
	case *parse.VariableNode:
		return slices.Contains(node.Ident, bootstrapToken)
	case *parse.ChainNode:
		return slices.Contains(node.Field, bootstrapToken) || inArgument(node.Node)
	case *parse.StringNode:
		return node.Text == bootstrapToken // the key of get, index or hasKey
	}
	return false
}
