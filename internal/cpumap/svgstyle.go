package cpumap

import (
	"fmt"
	"math"
	"strings"
)

// hatch is the fill pattern for reserved CPUs.
const hatch = `<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">` +
	`<rect class="hatch0" width="6" height="6"/><rect class="hatch1" width="2.4" height="6"/></pattern></defs>` + "\n"

// hues are the owners' colors in degrees; consecutive ones are far apart.
func hues() []float64 { return []float64{212, 32, 152, 276, 350, 188, 84, 316, 54, 240, 14, 130} }

const fontRules = `text{font-family:ui-sans-serif,system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
.h1{font-size:19px;font-weight:650}
.h2{font-size:14px;font-weight:600}
.num{font-size:15px;font-weight:600}
.sub,.name{font-size:13px}
.note{font-size:12px}
.warn{font-size:13px;font-weight:600}
.label{font-size:11px}
.end{text-anchor:end}
.id{font-size:9.5px;text-anchor:middle}
.sign{font-size:12px;font-weight:700;text-anchor:middle}
.core{fill:none;stroke-width:1.6}
.cpu{stroke-width:.7}
.kept .cpu{fill:url(#hatch)}
`

// theme is a set of colors.
type theme struct {
	card, cardEdge, node, nodeEdge      string
	strong, weak, label, warn           string
	free, freeEdge, freeText, coreEdge  string
	track, used, kept, hatch0, hatch1   string
	ownerFill, ownerEdge, ownerText     tone
	clashFill, clashEdge, offline, keep string
}

// tone is a color without its hue: saturation and lightness from 0 to 1.
type tone struct{ saturation, lightness float64 }

func light() theme {
	return theme{
		card: "#ffffff", cardEdge: "#d8dee6", node: "#f5f7fa", nodeEdge: "#e1e7ee",
		strong: "#17202b", weak: "#5b6878", label: "#5b6878", warn: "#b3261e",
		free: "#ffffff", freeEdge: "#c3ccd7", freeText: "#6f7d8e", coreEdge: "#6d7b8c",
		track: "#e3e8ee", used: "#3d7fd9", kept: "#9aa7b5", hatch0: "#e8ecf1", hatch1: "#c5ced9",
		ownerFill: tone{.82, .82}, ownerEdge: tone{.5, .62}, ownerText: tone{.65, .22},
		clashFill: "#ffd7d3", clashEdge: "#d3362a", offline: "#dfe4ea", keep: "#5b6878",
	}
}

func dark() theme {
	return theme{
		card: "#12171e", cardEdge: "#2b3440", node: "#1a212a", nodeEdge: "#2b3541",
		strong: "#e8edf3", weak: "#98a5b5", label: "#98a5b5", warn: "#ff8a80",
		free: "#141a21", freeEdge: "#3a4553", freeText: "#8896a8", coreEdge: "#8593a5",
		track: "#2a323d", used: "#5596ec", kept: "#6b7888", hatch0: "#222a34", hatch1: "#3d4957",
		ownerFill: tone{.5, .29}, ownerEdge: tone{.45, .45}, ownerText: tone{.85, .88},
		clashFill: "#5c1f1b", clashEdge: "#ff6b60", offline: "#232b35", keep: "#98a5b5",
	}
}

func style() string {
	return "<style>\n" + fontRules + light().rules() +
		"@media (prefers-color-scheme:dark){\n" + dark().rules() + "}\n</style>\n"
}

func (t theme) rules() string {
	var out strings.Builder
	fills := func(pairs ...string) {
		for i := 0; i < len(pairs); i += 2 {
			fmt.Fprintf(&out, "%s{fill:%s}\n", pairs[i], pairs[i+1])
		}
	}
	fills(
		".h1,.h2,.num,.name", t.strong, ".sub,.note", t.weak, ".label", t.label, ".warn", t.warn,
		".track", t.track, ".used", t.used, ".bar-kept", t.kept, ".bar-clash", t.clashEdge, ".hatch0", t.hatch0, ".hatch1", t.hatch1,
		".free .id", t.freeText, ".kept text", t.keep, ".clash text", t.clashEdge,
	)
	boxes := func(triples ...string) {
		for i := 0; i < len(triples); i += 3 {
			fmt.Fprintf(&out, "%s{fill:%s;stroke:%s}\n", triples[i], triples[i+1], triples[i+2])
		}
	}
	boxes(
		".card", t.card, t.cardEdge, ".node", t.node, t.nodeEdge, ".free .cpu", t.free, t.freeEdge,
		".off .cpu", t.offline, t.offline, ".clash .cpu", t.clashFill, t.clashEdge,
	)
	fmt.Fprintf(&out, ".core{stroke:%s}\n.kept .cpu{stroke:%s}\n", t.coreEdge, t.freeEdge)
	for i, hue := range hues() {
		fmt.Fprintf(&out, ".o%d .cpu{fill:%s;stroke:%s}\n.o%d text{fill:%s}\n.bar-o%d{fill:%s}\n",
			i, t.ownerFill.hex(hue), t.ownerEdge.hex(hue), i, t.ownerText.hex(hue), i, t.ownerEdge.hex(hue))
	}
	return out.String()
}

// hex returns the color with that hue in the hexadecimal notation, which every viewer
// supports.
func (t tone) hex(hue float64) string {
	channel := func(n float64) int {
		k := math.Mod(n+hue/30, 12)
		a := t.saturation * min(t.lightness, 1-t.lightness)
		value := t.lightness - a*max(-1, min(k-3, 9-k, 1))
		return int(math.Round(value * 255))
	}
	return fmt.Sprintf("#%02x%02x%02x", channel(0), channel(8), channel(4))
}
