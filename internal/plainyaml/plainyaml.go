// Package plainyaml limits the cost of parsing YAML. The library compares each key of an
// object with every other and records each equal pair, so 64 KiB of one repeated key take
// minutes and gigabytes. The package decodes no values. Start at Check.
package plainyaml

import (
	"bytes"
	"fmt"

	"go.yaml.in/yaml/v3"
)

const (
	// MaxBytes is the maximum size of a text. Files written by users have a few KiB.
	MaxBytes = 1 << 20
	// maxCompared limits the number of key comparisons.
	maxCompared = 50_000_000
	// maxValues limits the number of values in the text, with aliases expanded.
	maxValues = 1 << 20
)

// Check returns an error for a text that is expensive to parse: one that is too long, or
// that has duplicate keys in an object, too many keys, or aliases that expand to too many
// values. It accepts invalid YAML, because the caller's parser reports it better.
func Check(text []byte) error {
	if len(text) > MaxBytes {
		return fmt.Errorf("the text has %d bytes: must have at most %d", len(text), MaxBytes)
	}
	c := &checker{values: map[*yaml.Node]int{}}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var document yaml.Node
		if err := decoder.Decode(&document); err != nil {
			return nil //nolint:nilerr // the parser reports it
		}
		if _, err := c.size(&document); err != nil {
			return err
		}
	}
}

// checker adds up the cost of a text.
type checker struct {
	compared int
	// values caches the number of values that nodes expand to; it is 0 for a node still
	// being counted.
	values map[*yaml.Node]int
}

// size returns the number of values to which a node expands, and checks the keys of objects.
func (c *checker) size(node *yaml.Node) (int, error) {
	if known, ok := c.values[node]; ok {
		if known == 0 {
			return 0, fmt.Errorf("line %d: the value refers to itself: remove the alias", node.Line)
		}
		return known, nil
	}
	c.values[node] = 0
	if node.Kind == yaml.MappingNode {
		count := len(node.Content) / 2
		lines := make(map[string]int, count)
		for i := 0; i+1 < len(node.Content); i += 2 {
			key := node.Content[i]
			if key.Kind != yaml.ScalarNode {
				continue
			}
			if line, twice := lines[key.Value]; twice {
				return 0, fmt.Errorf("line %d: duplicate key %.60s, already on line %d: remove one", key.Line, key.Value, line)
			}
			lines[key.Value] = key.Line
		}
		if c.compared += count * count; c.compared > maxCompared {
			return 0, fmt.Errorf("line %d: too many keys: use fewer", node.Line)
		}
	}

	sum, inner := 1, node.Content
	if node.Kind == yaml.AliasNode {
		inner = []*yaml.Node{node.Alias}
	}
	for _, child := range inner {
		size, err := c.size(child)
		if err != nil {
			return 0, err
		}
		if sum += size; sum > maxValues {
			return 0, fmt.Errorf("line %d: the value expands to more than %d values through aliases: use fewer aliases", node.Line, maxValues)
		}
	}
	c.values[node] = sum
	return sum, nil
}
