package guestsim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
)

// The layout of ISO 9660 (ECMA-119): blocks of 2 KiB; volume descriptors start at block 16.
const (
	isoBlock      = 2048
	isoFirst      = 16
	isoPrimary    = 1
	isoSupplement = 2
	isoEnd        = 255
)

// isoImage is the root directory of an ISO 9660 image, with the names that Linux presents:
// Rock Ridge names, else Joliet names, else the primary names in lower case.
type isoImage struct {
	label string
	files map[string][]byte
}

func readISO(data []byte) (*isoImage, error) {
	primary, joliet, err := descriptors(data)
	if err != nil {
		return nil, err
	}
	image := &isoImage{label: strings.TrimRight(string(primary[40:72]), " \x00")}
	ridge, err := image.readRoot(data, primary, false)
	if err != nil || ridge || joliet == nil {
		return image, err
	}
	_, err = image.readRoot(data, joliet, true)
	return image, err
}

// descriptors returns the primary volume descriptor, and the Joliet descriptor if it
// exists.
func descriptors(data []byte) (primary, joliet []byte, err error) {
	for block := isoFirst; ; block++ {
		descriptor, err := extent(data, block, isoBlock)
		if err != nil || string(descriptor[1:6]) != "CD001" {
			return nil, nil, errors.New("not an ISO 9660 image")
		}
		switch descriptor[0] {
		case isoPrimary:
			primary = descriptor
		case isoSupplement:
			if bytes.HasPrefix(descriptor[88:], []byte("%/")) {
				joliet = descriptor
			}
		case isoEnd:
			if primary == nil {
				return nil, nil, errors.New("ISO 9660 image without a primary volume")
			}
			return primary, joliet, nil
		}
	}
}

// extent returns a part of the image.
func extent(data []byte, block, length int) ([]byte, error) {
	from := block * isoBlock
	if from < 0 || length < 0 || from+length > len(data) {
		return nil, fmt.Errorf("block %d with %d bytes is outside the image", block, length)
	}
	return data[from : from+length], nil
}

// record is an entry of a directory.
type record []byte

func (r record) block() int   { return int(binary.LittleEndian.Uint32(r[2:])) }
func (r record) length() int  { return int(binary.LittleEndian.Uint32(r[10:])) }
func (r record) folder() bool { return r[25]&2 != 0 }
func (r record) id() string   { return string(r[33 : 33+int(r[32])]) }

// system returns the extension data of an entry, which follows the name and its padding.
func (r record) system() []byte {
	from := 33 + int(r[32])
	return r[min(from+(from&1), len(r)):]
}

// readRoot reads the files in a volume's root directory, and reports whether it has Rock
// Ridge.
func (i *isoImage) readRoot(data, volume []byte, joliet bool) (ridge bool, err error) {
	root := record(volume[156:190])
	listing, err := extent(data, root.block(), root.length())
	if err != nil {
		return false, fmt.Errorf("root directory: %w", err)
	}
	i.files = map[string][]byte{}
	for at := 0; at < len(listing); {
		size := int(listing[at])
		if size == 0 { // no entry crosses a block
			at = (at/isoBlock + 1) * isoBlock
			continue
		}
		if size < 34 || at+size > len(listing) || 33+int(listing[at+32]) > size {
			return false, errors.New("root directory: an entry is cut off")
		}
		entry := record(listing[at : at+size])
		at += size
		if entry.folder() {
			ridge = ridge || entry.id() == "\x00" && bytes.HasPrefix(entry.system(), []byte("SP\x07\x01\xbe\xef"))
			continue
		}
		content, err := extent(data, entry.block(), entry.length())
		if err != nil {
			return false, fmt.Errorf("file %q: %w", entry.id(), err)
		}
		i.files[entry.name(ridge, joliet)] = content
	}
	return ridge, nil
}

func (r record) name(ridge, joliet bool) string {
	name := strings.ToLower(r.id())
	switch {
	case ridge:
		if long := ridgeName(r.system()); long != "" {
			return long
		}
	case joliet:
		name = wide(r.id())
	}
	name, _, _ = strings.Cut(name, ";")
	return strings.TrimSuffix(name, ".")
}

// ridgeName joins the NM entries of Rock Ridge.
func ridgeName(system []byte) string {
	name := ""
	for len(system) >= 4 {
		size := int(system[2])
		if size < 4 || size > len(system) {
			break
		}
		if string(system[:2]) == "NM" && size > 5 {
			name += string(system[5:size])
		}
		system = system[size:]
	}
	return name
}

// wide decodes big-endian UCS-2.
func wide(text string) string {
	var units []uint16
	for at := 0; at+1 < len(text); at += 2 {
		units = append(units, binary.BigEndian.Uint16([]byte(text[at:])))
	}
	return string(utf16.Decode(units))
}
