package state

import (
	"archive/zip"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
)

// stateInPlan is the member of a saved plan that contains the state it was made from.
const stateInPlan = "tfstate"

// madeFrom returns lineage and serial of the state that a saved plan was made from. Both
// are zero if there was no state, or if the plan is encrypted.
func madeFrom(file string) (lineage string, serial int64, err error) {
	archive, err := zip.OpenReader(file)
	if errors.Is(err, zip.ErrFormat) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, err
	}
	defer archive.Close() //nolint:errcheck // it was only read
	member, err := archive.Open(stateInPlan)
	if errors.Is(err, fs.ErrNotExist) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, err
	}
	defer member.Close() //nolint:errcheck // it was only read
	var state struct {
		Lineage string `json:"lineage"`
		Serial  int64  `json:"serial"`
	}
	if err := json.NewDecoder(member).Decode(&state); err != nil {
		return "", 0, fmt.Errorf("reading the state in the plan: %w", err)
	}
	return state.Lineage, state.Serial, nil
}
