package cpumap

import (
	"cmp"
	_ "embed" // change.css
	"fmt"
	"slices"
	"strings"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// Change is the change of one VM on a host.
type Change struct {
	Kind ChangeKind
	// VM is the VM with its placement; of a VM to be woken, the standby VM.
	VM fleet.VM
	// Name is what the legend calls the VM.
	Name string
}

// ChangeKind is what happens to a VM.
type ChangeKind int

// The kinds of changes.
const (
	Created ChangeKind = iota
	Removed
	Updated
	Replaced
	Woken
)

func (k ChangeKind) verb() string {
	return [...]string{"create", "remove", "change", "replace", "wake"}[k]
}

// class is the CSS class of the VM's cells.
func (k ChangeKind) class() string {
	switch k {
	case Created:
		return "add"
	case Removed:
		return "del"
	case Updated, Replaced, Woken:
	}
	return "mod"
}

// changeStyle is the style sheet of Compare's image. style.css has owners' colors, which that
// image does not use.
//
//go:embed change.css
var changeStyle string

// The dimensions of Compare's image. Forges show it at about full size.
const (
	sheetWidth   = 880
	sheetMargin  = 14
	sideGap      = 12
	sideWidth    = (sheetWidth - 2*sheetMargin - sideGap) / 2
	sidePadding  = 10
	sideHeader   = 28
	smallCell    = 13
	smallHeight  = 15
	smallCoreGap = 3
	smallGap     = 9
	smallRowGap  = 3
	nodeHead     = 24
	nodeFoot     = 10
	lineHeight   = 18
	// maxListed is the number of changes that the legend lists.
	maxListed = 24
	// smallLetter is the width of a character in the legend.
	smallLetter = 6
)

// Compare draws the CPUs and the bound memory of a host before and after changes of its VMs,
// side by side, as one self-contained image for light and dark. vms is the fleet; VMs that
// are created may be in it already. Cells of the changed VMs have the letters of the legend;
// other guests have no letters. Equal arguments yield identical bytes.
func Compare(host *topology.Host, vms []fleet.VM, changes []Change) []byte {
	changes = slices.Clone(changes)
	slices.SortStableFunc(changes, func(a, b Change) int { return cmp.Compare(a.Kind, b.Kind) })
	before, after := sidesOf(host, vms, changes)
	p := &picture{}
	top := sheetMargin + 34
	height := max(p.side(before, "before", sheetMargin, top), p.side(after, "after", sheetMargin+sideWidth+sideGap, top))
	end := p.changes(changes, before, top+height+8)

	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n", sheetWidth, end, sheetWidth, end)
	fmt.Fprintf(&out, "<title>CPU map of %s before and after</title>\n<style>\n%s</style>\n", escape(printable(host.ID().String())), changeStyle)
	fmt.Fprintf(&out, `<rect class="sheet" x="1" y="1" width="%d" height="%d" rx="10"/>`+"\n", sheetWidth-2, end-2)
	for _, back := range []int{sheetMargin, sheetMargin + sideWidth + sideGap} {
		fmt.Fprintf(&out, `<rect class="side" x="%d" y="%d" width="%d" height="%d" rx="8"/>`+"\n", back, top, sideWidth, height)
	}
	title := &picture{}
	title.text("h1", sheetMargin+2, sheetMargin+20, fit(printable(host.ID().String()), 420, 9))
	title.text("note end", sheetWidth-sheetMargin-2, sheetMargin+19, fit(printable(host.Model), 400, smallLetter))
	out.WriteString(title.out.String() + p.out.String() + "</svg>\n")
	return []byte(out.String())
}

// side is a host before or after its changes.
type side struct {
	*layout
	// changed are the changes that have CPUs on this side, by CPU.
	changed map[int]int
	changes []Change
}

func sidesOf(host *topology.Host, vms []fleet.VM, changes []Change) (before, after *side) {
	is := func(vm *fleet.VM, kinds ...ChangeKind) bool {
		return slices.ContainsFunc(changes, func(c Change) bool {
			return slices.Contains(kinds, c.Kind) && (c.VM.Key != "" && c.VM.Key == vm.Key || c.VM.VMID == vm.VMID) && c.VM.Host == vm.Host
		})
	}
	var was, will []fleet.VM
	for i := range vms {
		vm := vms[i]
		if vm.Host != host.ID() || is(&vm, Created) {
			continue
		}
		was = append(was, vm)
		if is(&vm, Woken) {
			vm.Standby = false
		}
		if !is(&vm, Removed) {
			will = append(will, vm)
		}
	}
	for i := range changes {
		if changes[i].Kind == Created {
			will = append(will, changes[i].VM)
		}
	}
	later := *host
	later.Guests = slices.DeleteFunc(slices.Clone(host.Guests), func(guest topology.Guest) bool {
		return slices.ContainsFunc(changes, func(c Change) bool { return c.Kind == Removed && int(c.VM.VMID) == guest.VMID })
	})
	build := func(h *topology.Host, vms []fleet.VM, without ChangeKind) *side {
		s := &side{layout: newLayout(h, Owners(h, vms)), changed: map[int]int{}, changes: changes}
		for i := range changes {
			if changes[i].Kind == without {
				continue
			}
			for _, cpu := range changes[i].VM.CPUs.List() {
				if s.byCPU[cpu] != nil {
					s.changed[cpu] = i
				}
			}
		}
		return s
	}
	return build(host, was, Created), build(&later, will, Removed)
}

// side draws a host before or after, and returns its height.
func (p *picture) side(s *side, name string, x, y int) int {
	p.text("h2", x+sidePadding, y+19, name)
	if len(s.host.CPUs) == 0 {
		p.text("note end", x+sideWidth-sidePadding, y+19, "CPUs unknown")
		return sideHeader + 8
	}
	p.text("note end", x+sideWidth-sidePadding, y+19, strings.Join(s.totals(), " · "))
	columns := 1
	if len(s.nodes) > 2 {
		columns = 2
	}
	width := (sideWidth - 2*sidePadding - (columns-1)*sideGap) / columns
	top := y + sideHeader
	for row := range slices.Chunk(s.nodes, columns) {
		height := 0
		for i := range row {
			height = max(height, p.smallNode(s, &row[i], x+sidePadding+i*(width+sideGap), top, width))
		}
		top += height + nodeFoot
	}
	return top - y
}

// smallNode draws a NUMA node, and returns its height.
func (p *picture) smallNode(s *side, node *nodeBox, x, y, width int) int {
	p.text("node", x, y+10, node.title)
	p.text("note end", x+width, y+10, fit(strings.TrimSuffix(node.memory, " bound"), width-7*len(node.title)-8, smallLetter))
	if node.boundShare >= 0 {
		p.bar(box{x, y + 15, width, 4}, 1000, barPart{"bound", int64(min(node.boundShare, 1) * 1000)})
	}
	cells := map[string]*strings.Builder{} // by class
	var classes []string
	signs := &picture{} // above the cells
	left, top := 0, y+nodeHead
	for _, group := range node.groups {
		if left > 0 {
			left += smallGap - smallCoreGap
		}
		for _, core := range group.cores {
			if left > 0 && left+len(core.cpus)*smallCell > width {
				left, top = 0, top+smallHeight+smallRowGap
			}
			for _, cpu := range core.cpus {
				class := s.classOf(cpu)
				if cells[class] == nil {
					cells[class] = &strings.Builder{}
					classes = append(classes, class)
				}
				fmt.Fprintf(cells[class], "M%d %dh%dv%dh-%dz", x+left, top, smallCell-1, smallHeight, smallCell-1)
				if change, ok := s.changed[cpu]; ok {
					signs.text("sign", x+left+smallCell/2, top+11, letterOf(change))
				}
				left += smallCell
			}
			left += smallCoreGap
		}
	}
	if len(node.groups) == 0 {
		p.text("note", x, top+11, fit(node.empty, width, smallLetter))
	}
	for _, class := range classes {
		p.printf(`<path class="%s" d="%s"/>`, class, cells[class])
	}
	p.out.WriteString(signs.out.String())
	return top + smallHeight - y
}

// classOf returns the CSS class of a CPU's cell.
func (s *side) classOf(cpu int) string {
	m := s.byCPU[cpu]
	change, changed := s.changed[cpu]
	switch {
	case m == nil:
		return "free"
	case m.kind == markDisputed:
		return "clash"
	case m.kind == markReserved:
		return "kept"
	case changed:
		return s.changes[change].Kind.class()
	}
	return "used"
}

// letterOf returns the letter of a change in the cells and the legend.
func letterOf(change int) string {
	if change < len(ownerSigns) {
		return ownerSigns[change : change+1]
	}
	return signOther
}

// changes draws the legend from y on, and returns its lower end.
func (p *picture) changes(changes []Change, before *side, y int) int {
	left := sheetMargin + 2
	listed := changes[:min(len(changes), maxListed)]
	half := (len(listed) + 1) / 2
	if half < 4 { // a single column is easier to read
		half = len(listed)
	}
	column := sheetWidth - 2*sheetMargin
	if half < len(listed) {
		column = sideWidth
	}
	for i := range listed {
		x, top := left+i/max(half, 1)*(sideWidth+sideGap), y+i%max(half, 1)*lineHeight
		p.rect(listed[i].Kind.class(), box{x, top, 14, 14}, 3)
		p.text("sign0", x+7, top+11, letterOf(i))
		p.text("name", x+21, top+11, fit(printable(listed[i].text()), column-28, smallLetter))
	}
	y += half * lineHeight
	if more := len(changes) - len(listed); more > 0 {
		p.text("note", left, y+11, fmt.Sprintf("and %s", topology.Count(more, "more change")))
		y += lineHeight
	}
	if len(before.host.CPUs) == 0 {
		return y + sheetMargin - 4
	}
	x := left
	y += 4
	for _, item := range []struct{ class, text string }{{"free", "free"}, {"used", "other guests"}, {"kept", "reserved for the host"}, {"clash", "claimed twice"}} {
		p.rect(item.class, box{x, y, smallCell - 1, smallHeight - 1}, 0)
		p.text("note", x+19, y+11, item.text)
		x += 19 + 16 + smallLetter*len(item.text)
	}
	p.text("note end", sheetWidth-sheetMargin-2, y+11, "cells: CPUs, by core and L3 cache; bars: memory bound to VMs")
	return y + lineHeight + sheetMargin - 4
}

// text describes a change in one line of the legend.
func (c *Change) text() string {
	parts := []string{c.Kind.verb() + " " + c.Name}
	switch vm := &c.VM; {
	case vm.CPUs.IsEmpty():
		parts = append(parts, topology.Count(vm.VCPUs, "vCPU")+", not pinned")
	default:
		parts = append(parts, topology.Count(vm.CPUs.Size(), "CPU")+" "+vm.CPUs.String())
	}
	nodes := topology.CPUSet{}
	for _, cell := range c.VM.Cells {
		nodes = nodes.Union(cell.HostNodes)
	}
	if !nodes.IsEmpty() {
		word := "NUMA node "
		if nodes.Size() > 1 {
			word = "NUMA nodes "
		}
		parts = append(parts, word+nodes.String())
	}
	if c.VM.MemoryMiB > 0 {
		parts = append(parts, gib(c.VM.MemoryMiB))
	}
	return strings.Join(parts, " · ")
}
