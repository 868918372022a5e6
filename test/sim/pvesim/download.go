package pvesim

import (
	"context"
	"path"
	"strings"
)

// queryURL handles GET /nodes/{node}/query-url-metadata.
func queryURL(r *request) (any, error) {
	image, ok := r.s.cfg.Images[r.p["url"]]
	if !ok {
		return nil, dief("invalid server response: '404 Not Found'")
	}
	name, _, _ := strings.Cut(r.p["url"], "?")
	return map[string]any{"filename": path.Base(name), "mimetype": "application/octet-stream", "size": len(image.Data)}, nil
}

// downloadURL handles POST …/storage/{storage}/download-url.
func downloadURL(r *request) (any, error) {
	c := r.s.state
	c.mu.Lock()
	st, e := c.needStorage(r.host, r.p["storage"])
	c.mu.Unlock()
	if e != nil {
		return nil, e
	}
	if !st.hasPath() {
		return nil, dief("can't upload to storage type '%s', not a file based storage!", st.Type)
	}
	if !holds(st.Content, r.p["content"]) {
		return nil, dief("storage '%s' is not configured for content-type '%s'", st.Name, r.p["content"])
	}
	image, found := r.s.cfg.Images[r.p["url"]]
	v, e := r.fileVolume(st, r.p["filename"], image.Data)
	if e != nil {
		return nil, e
	}
	v.virtual = image.DiskMiB << 20
	return r.fork("download", path.Base(v.id), func(ctx context.Context, t *task) error {
		return r.download(ctx, t, st, v, found)
	}), nil
}

// download stores the file on the storage. It never overwrites an existing file, and
// succeeds if the checksum of that file matches.
func (r *request) download(ctx context.Context, t *task, st *storage, v *volume, found bool) error {
	if r.p.has("compression") && v.content != "iso" {
		return dief("decompression not supported for %s", v.content)
	}
	r.s.tasks.say(t, "downloading %s to %s", r.p["url"], v.path())
	done, e := r.downloaded(t, st, v)
	if e != nil {
		return e
	}
	if done {
		return nil
	}
	if err := r.s.tasks.sleep(ctx, r.s.delays().Upload); err != nil {
		return err
	}
	if err := t.injected(); err != nil {
		return err
	}
	if !found {
		return dief("download failed: exit code 8")
	}
	if e := r.checkSum(v.data); e != nil {
		return e
	}
	c := r.s.state
	c.mu.Lock()
	defer c.mu.Unlock()
	if !st.room(v.size, false) {
		return dief("unable to store '%s': No space left on device", v.id)
	}
	c.addVolume(st, v)
	r.s.tasks.say(t, "download of '%s' to '%s' finished", r.p["url"], v.path())
	return nil
}

// downloaded reports whether the file already exists with the requested checksum. An
// existing file is an error if no checksum was requested, or if its checksum differs.
func (r *request) downloaded(t *task, st *storage, v *volume) (bool, *apiError) {
	c := r.s.state
	c.mu.RLock()
	old := st.volumes[v.id]
	c.mu.RUnlock()
	switch {
	case old == nil:
		return false, nil
	case !r.p.has("checksum"):
		return false, dief("refusing to override existing file '%s'", v.path())
	}
	if e := r.checkSum(old.data); e != nil {
		e.message += ", aborting"
		return false, e
	}
	r.s.tasks.say(t, "OK, got correct file already, no need to download")
	return true, nil
}

// path returns the path of a file on its host.
func (v *volume) path() string {
	_, name, _ := strings.Cut(v.id, ":")
	if v.content == "import" {
		return "/var/lib/vz/" + name
	}
	return "/var/lib/vz/template/" + name
}
