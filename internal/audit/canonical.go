package audit

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
)

// canonicalizer brings valid JSON into the form in which json.Marshal writes a map: without white
// space, with sorted fields, the last of duplicates, and numbers as they are.
type canonicalizer struct {
	in []byte
	// out has the values that were read, one after another, those in a value before it.
	out []byte
}

// field is a field of an object, with its name as text and as JSON.
type field struct {
	name          string
	quoted, value []byte
}

// next skips white space, and returns the first byte of what follows.
func (c *canonicalizer) next() byte {
	c.in = bytes.TrimLeft(c.in, " \t\r\n")
	return c.in[0]
}

// value reads a value.
func (c *canonicalizer) value() []byte {
	var start int
	switch c.next() {
	case '{':
		fields := c.object()
		start = len(c.out)
		c.out = appendObject(c.out, fields)
	case '[':
		list := c.array()
		start = len(c.out)
		c.out = append(c.out, '[')
		for i, element := range list {
			if i > 0 {
				c.out = append(c.out, ',')
			}
			c.out = append(c.out, element...)
		}
		c.out = append(c.out, ']')
	case '"':
		start = len(c.out)
		c.text()
	default: // a number, true, false or null
		end := bytes.IndexAny(c.in, ",]} \t\r\n")
		if end < 0 {
			end = len(c.in)
		}
		start = len(c.out)
		c.out = append(c.out, c.in[:end]...)
		c.in = c.in[end:]
	}
	return c.out[start:]
}

func (c *canonicalizer) array() (list [][]byte) {
	for c.in = c.in[1:]; c.next() != ']'; {
		list = append(list, c.value())
		if c.next() == ',' {
			c.in = c.in[1:]
		}
	}
	c.in = c.in[1:]
	return list
}

// object reads an object, and returns its fields, sorted.
func (c *canonicalizer) object() []field {
	var fields []field
	for c.in = c.in[1:]; c.next() != '}'; {
		start := len(c.out)
		f := field{name: c.text()}
		f.quoted = c.out[start:]
		c.next()
		c.in = c.in[1:] // the colon
		f.value = c.value()
		fields = append(fields, f)
		if c.next() == ',' {
			c.in = c.in[1:]
		}
	}
	c.in = c.in[1:]
	slices.SortStableFunc(fields, func(a, b field) int { return cmp.Compare(a.name, b.name) })
	unique := fields[:0]
	for i, f := range fields {
		if i == len(fields)-1 || fields[i+1].name != f.name {
			unique = append(unique, f)
		}
	}
	return unique
}

// text reads a string, writes it as json.Marshal does, and returns it.
func (c *canonicalizer) text() string {
	plain, end := true, 1
	for ; c.in[end] != '"'; end++ {
		switch b := c.in[end]; {
		case b == '\\':
			plain = false
			end++
		case b < ' ' || b > '~' || b == '<' || b == '>' || b == '&':
			plain = false
		}
	}
	quoted := c.in[:end+1]
	c.in = c.in[end+1:]
	if plain {
		c.out = append(c.out, quoted...)
		return string(quoted[1:end])
	}
	var read string
	_ = json.Unmarshal(quoted, &read) // it is valid
	written, _ := json.Marshal(read)  // a string is always written
	c.out = append(c.out, written...)
	return read
}

// appendObject appends an object with these fields.
func appendObject(out []byte, fields []field) []byte {
	out = append(out, '{')
	for i, f := range fields {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(append(out, f.quoted...), ':'), f.value...)
	}
	return append(out, '}')
}
