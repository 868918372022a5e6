package layering

import "go/ast"

// nestedFunctions returns the functions of a file that nest control statements deeper than
// limit.
func nestedFunctions(file *ast.File, limit int) []string {
	var names []string
	for _, decl := range file.Decls {
		function, ok := decl.(*ast.FuncDecl)
		if !ok || function.Body == nil {
			continue
		}
		deepest := 0
		ast.Walk(nesting{deepest: &deepest}, function.Body)
		if deepest > limit {
			names = append(names, function.Name.Name)
		}
	}
	return names
}

// nesting is an ast.Visitor that records the maximum depth of if, for, switch and select. A
// function literal starts at zero because it counts as a separate function.
type nesting struct {
	depth   int
	deepest *int
}

// Visit implements ast.Visitor.
func (n nesting) Visit(node ast.Node) ast.Visitor {
	switch statement := node.(type) {
	case *ast.FuncLit:
		return nesting{deepest: n.deepest}
	case *ast.IfStmt:
		n.visitIf(statement)
		return nil
	case *ast.ForStmt, *ast.RangeStmt, *ast.SwitchStmt, *ast.TypeSwitchStmt, *ast.SelectStmt:
		return n.deeper()
	}
	return n
}

func (n nesting) deeper() nesting {
	n.depth++
	*n.deepest = max(*n.deepest, n.depth)
	return n
}

// visitIf counts an else-if on the level of its if.
func (n nesting) visitIf(statement *ast.IfStmt) {
	inside := n.deeper()
	if statement.Init != nil {
		ast.Walk(inside, statement.Init)
	}
	ast.Walk(inside, statement.Cond)
	ast.Walk(inside, statement.Body)
	switch other := statement.Else.(type) {
	case *ast.IfStmt:
		n.visitIf(other)
	case *ast.BlockStmt:
		ast.Walk(inside, other)
	}
}
