package topology

import (
	"fmt"
	"strings"
	"time"
)

// Value is an amount, an age, a time or a VMID in a sentence. Sentences that differ only in
// values describe the same, so that a report can print them once.
type Value struct {
	// Text is the value as the sentence contains it, such as "20s", "2 CPUs" or "VMID 9001".
	Text string
	// At is the index of Text in the sentence.
	At int
	// Unit is the end of Text that a range contains once, such as " CPUs", or empty.
	Unit string
	// Size orders the values of a range. A VMID has none.
	Size float64
	// VMID is the VMID, or 0 for other values.
	VMID int
}

// Amount returns a value with a unit that has no plural: "6 MiB".
func Amount(n int64, unit string) Value {
	return Value{Text: fmt.Sprintf("%d %s", n, unit), Unit: " " + unit, Size: float64(n)}
}

// Counted returns the value of a Count: "2 CPUs".
func Counted(n int, noun string) Value {
	text := Count(n, noun)
	return Value{Text: text, Unit: strings.TrimPrefix(text, fmt.Sprint(n)), Size: float64(n)}
}

// Elapsed returns the value of an Age: "20s".
func Elapsed(age time.Duration) Value {
	return Value{Text: Age(age), Size: age.Seconds()}
}

// Moment returns the value of a time.
func Moment(at time.Time) Value {
	return Value{Text: at.Format(time.RFC3339), Size: float64(at.Unix())}
}

// VMIDValue returns the value of a VMID: "VMID 9001".
func VMIDValue(vmid int) Value {
	return Value{Text: fmt.Sprintf("VMID %d", vmid), VMID: vmid}
}

// Sentence formats a sentence as fmt.Sprintf does, and returns its values: the arguments of
// type Value, for each of which the format contains %s, in the order of the arguments.
func Sentence(format string, args ...any) (text string, values []Value) {
	const mark = "\x00"
	marked := make([]any, len(args))
	whole := make([]any, len(args))
	for i, arg := range args {
		marked[i], whole[i] = arg, arg
		if value, ok := arg.(Value); ok {
			marked[i], whole[i] = mark, value.Text
			values = append(values, value)
		}
	}
	between := strings.Split(fmt.Sprintf(format, marked...), mark)
	if len(between) != len(values)+1 { // another argument contains the mark
		return fmt.Sprintf(format, whole...), nil
	}
	for i := range values {
		text += between[i]
		values[i].At = len(text)
		text += values[i].Text
	}
	return text + between[len(values)], values
}
