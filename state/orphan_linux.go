package state

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// enginesDie is true where the kernel kills an engine when its parent dies.
const enginesDie = true

// marked returns the processes that carry a mark in their environment, sorted.
// Processes of other users cannot be read and are not ours.
func marked(mark string) []int {
	want := []byte(runVariable + "=" + mark)
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil
	}
	var pids []int
	for _, file := range files {
		environ, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		entries := bytes.Split(environ, []byte{0})
		carries := slices.ContainsFunc(entries, func(e []byte) bool { return bytes.Equal(e, want) })
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if carries && err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}
