package pvesim

import (
	"context"
	"crypto/md5"  //nolint:gosec // a checksum that Proxmox supports
	"crypto/sha1" //nolint:gosec // a checksum that Proxmox supports
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"hash"
	"regexp"
	"strconv"
	"strings"
	"time"
)

var (
	isoFile      = regexp.MustCompile(`(?i)^[^/]+\.(iso|img)$`)
	vztmplFile   = regexp.MustCompile(`^[^/]+\.tar\.(gz|xz|zst|bz2)$`)
	importFile   = regexp.MustCompile(`(?i)^[^/]+\.(ova|ovf|qcow2|raw|vmdk)$`)
	notFileChars = regexp.MustCompile(`[^-a-zA-Z0-9_.]`)
)

// uploadFile handles POST …/storage/{storage}/upload. The request is not proxied: the host
// that receives the request runs the task, and copies the file to the host in the path by
// ssh (pve-storage 9.1.7, PVE/API2/Storage/Status.pm:518-735).
func uploadFile(r *request) (any, error) {
	c := r.s.state
	c.mu.Lock()
	st, e := c.needStorage(r.host, r.p["storage"])
	c.mu.Unlock()
	if e != nil {
		return nil, e
	}
	if !st.hasPath() {
		return nil, dief("can't upload to storage type '%s'", st.Type)
	}
	if r.file == nil {
		return nil, dief("missing temporary file name")
	}
	v, e := r.fileVolume(st, r.file.name, r.file.data)
	if e != nil {
		return nil, e
	}
	if !holds(st.Content, v.content) {
		return nil, dief("storage '%s' does not support '%s' content", st.Name, v.content)
	}
	if _, down := c.down(r.host); down {
		return nil, dief("can't activate storage '%s' on node '%s': command '/usr/bin/ssh' failed: exit code 255", st.Name, r.host.name)
	}
	return r.fork("imgcopy", "", func(ctx context.Context, t *task) error { return r.storeUpload(ctx, t, st, v) }), nil
}

func (r *request) storeUpload(ctx context.Context, t *task, st *storage, v *volume) error {
	if err := r.s.tasks.sleep(ctx, r.s.delays().Upload); err != nil {
		return err
	}
	if err := t.injected(); err != nil {
		return err
	}
	if e := r.checkSum(v.data); e != nil {
		return e
	}
	c := r.s.state
	c.mu.Lock()
	defer c.mu.Unlock()
	c.freeVolume(st, v.id)
	if !st.room(v.size, false) {
		return dief("unable to store '%s': No space left on device", v.id)
	}
	c.addVolume(st, v)
	r.s.tasks.say(t, "finished file import successfully")
	return nil
}

// checkSum verifies the checksum in the request, if any.
func (r *request) checkSum(data []byte) *apiError {
	if !r.p.has("checksum") {
		return nil
	}
	sum := map[string]func() hash.Hash{
		"md5": md5.New, "sha1": sha1.New, "sha224": sha256.New224, "sha256": sha256.New, "sha384": sha512.New384, "sha512": sha512.New,
	}[r.p["checksum-algorithm"]]()
	sum.Write(data)
	if got := hex.EncodeToString(sum.Sum(nil)); !strings.EqualFold(got, r.p["checksum"]) {
		return dief("checksum mismatch: got '%s' != expect '%s'", got, r.p["checksum"])
	}
	return nil
}

// fileVolume returns the volume for a file on the storage, if its name is valid for its
// content type.
func (r *request) fileVolume(st *storage, filename string, data []byte) (*volume, *apiError) {
	content := r.p["content"]
	pattern := map[string]*regexp.Regexp{"iso": isoFile, "vztmpl": vztmplFile, "import": importFile}[content]
	name := notFileChars.ReplaceAllString(filename, "_")
	if !pattern.MatchString(name) {
		if content == "import" {
			return nil, oneParamError("filename", "invalid filename or wrong extension")
		}
		return nil, oneParamError("filename", "wrong file extension")
	}
	v := &volume{id: st.Name + ":" + content + "/" + name, content: content, format: "iso", size: int64(len(data)), data: data}
	if content != "iso" {
		v.format = name[strings.LastIndex(name, ".")+1:]
	}
	return v, nil
}

// deleteVolume handles DELETE …/content/{volume}. With delay, it waits for the task and
// returns nothing if the task ended in time.
func deleteVolume(r *request) (any, error) {
	id, e := r.volumeParam()
	if e != nil {
		return nil, e
	}
	name, file, _ := strings.Cut(id, ":")
	c := r.s.state
	c.mu.RLock()
	st := c.anyStorage(name)
	_, unusable := c.needStorage(r.host, name)
	c.mu.RUnlock()
	if st == nil {
		return nil, unusable
	}
	// The name is checked before the privilege (pve-storage 9.1.7,
	// PVE/API2/Storage/Content.pm:489-500).
	if e := st.parseName(file); e != nil {
		return nil, e
	}
	if e := r.s.access.check(r.who, "/storage/"+name, "Datastore.Allocate"); e != nil {
		return nil, e
	}
	if unusable != nil {
		return nil, unusable
	}
	label := name
	if owner := ownerOf(id); owner != 0 {
		label = strconv.Itoa(owner) + "@" + name
	}
	done := make(chan error, 1)
	upid := r.fork("imgdel", label, func(_ context.Context, t *task) error {
		err := r.removeVolume(t, id)
		done <- err
		return err
	})
	if !r.p.has("delay") {
		return upid, nil
	}
	timer := r.s.cfg.Clock.NewTimer(time.Duration(r.p.number("delay")) * time.Second)
	defer timer.Stop()
	select {
	case err := <-done:
		return nil, err
	case <-timer.C():
	case <-r.ctx.Done():
	}
	return upid, nil
}

// parseName returns an error for an invalid volume name on the storage (pve-storage 9.1.7,
// PVE/Storage/Plugin.pm:799-837, LVMPlugin.pm:533, ZFSPoolPlugin.pm:150, RBDPlugin.pm:516).
func (st *storage) parseName(name string) *apiError {
	dir, file, _ := strings.Cut(name, "/")
	isImage := contentOf(st.Name+":"+name) == "images"
	if !st.hasPath() {
		if isImage {
			return nil
		}
		kind := strings.TrimSuffix(strings.TrimSuffix(st.Type, "thin"), "pool")
		return dief("unable to parse %s volume name '%s'", kind, name)
	}
	pattern := map[string]*regexp.Regexp{"iso": isoFile, "vztmpl": vztmplFile, "import": importFile}[dir]
	switch {
	case pattern != nil && pattern.MatchString(file), isImage && number(dir) > 0, holds([]string{"backup", "snippets"}, dir) && file != "":
		return nil
	}
	return dief("unable to parse directory volume name '%s'", name)
}

func (r *request) removeVolume(t *task, id string) error {
	if err := t.injected(); err != nil {
		return err
	}
	c := r.s.state
	c.mu.Lock()
	defer c.mu.Unlock()
	st, v := c.findVolume(r.host, id)
	switch {
	case v == nil && contentOf(id) == "images":
		return dief("no such volume '%s'", id)
	case v == nil: // Proxmox only warns about a missing ISO
		return nil
	case st.inUse(id):
		return dief("base volume '%s' is still in use by linked cloned", id)
	}
	c.freeVolume(st, id)
	r.s.tasks.say(t, "Removed volume '%s'", id)
	return nil
}
