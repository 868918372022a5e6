package layering

import (
	"go/ast"
	"slices"
)

// clockReads returns the uses of package time in a file that read a clock, wait for one, or
// query the machine; everything else in it is computation. A renamed import is found under
// its new name.
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
