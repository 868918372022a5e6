package guestsim

import "fmt"

// Documents are the content of a NoCloud seed. VendorData and NetworkConfig are optional.
type Documents struct {
	UserData, MetaData, NetworkConfig, VendorData []byte
}

// ReadSeed reads a seed's disc image as cloud-init does on Linux.
func ReadSeed(iso []byte) (Documents, error) {
	image, err := readISO(iso)
	if err != nil {
		return Documents{}, fmt.Errorf("reading the seed: %w", err)
	}
	if image.label != "cidata" && image.label != "CIDATA" {
		return Documents{}, fmt.Errorf("reading the seed: the volume label is %q: cloud-init requires cidata", image.label)
	}
	for _, name := range []string{"user-data", "meta-data"} {
		if _, ok := image.files[name]; !ok {
			return Documents{}, fmt.Errorf("reading the seed: it contains no %s", name)
		}
	}
	return Documents{
		UserData: image.files["user-data"], MetaData: image.files["meta-data"],
		NetworkConfig: image.files["network-config"], VendorData: image.files["vendor-data"],
	}, nil
}
