package layering

import (
	"go/ast"
	"slices"
)

// clockReads returns the uses of package time in a file that read the clock, wait, or query
// the machine; the rest of the package is computation. It also finds the uses of a renamed
// import.
func clockReads(file *ast.File) []string {
	name := ""
	for _, spec := range file.Imports {
		if spec.Path.Value == `"time"` {
			name = "time"
			if spec.Name != nil {
				name = spec.Name.Name
			}
		}
	}
	if name == "" {
		return nil
	}
	if name == "." {
		return []string{"all of it, by an import that is not named"}
	}
	var found []string
	ast.Inspect(file, func(node ast.Node) bool {
		selector, ok := node.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if from, ok := selector.X.(*ast.Ident); ok && from.Name == name && slices.Contains(clockNames(), selector.Sel.Name) {
			found = append(found, selector.Sel.Name)
		}
		return true
	})
	slices.Sort(found)
	return slices.Compact(found)
}

func clockNames() []string {
	return []string{
		"After", "AfterFunc", "LoadLocation", "Local", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until",
	}
}
