package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/client"
	"github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/go-git/go-git/v5/plumbing/transport/ssh"
)

// networkTimeout limits how long the remote may be silent.
const networkTimeout = 2 * time.Minute

// maxHaves limits the commits that a fetch reports as known; from one of them the remote
// derives what is new.
const maxHaves = 256

// remote is the shared repository.
type remote struct {
	url       string
	endpoint  *transport.Endpoint
	transport transport.Transport
	auth      transport.AuthMethod
	// interrupted, if a test sets it, ends a push.
	interrupted func(name string) error
}

func newRemote(url string, secrets GitAuth, interrupted func(name string) error) (r *remote, err error) {
	r = &remote{url: url, interrupted: interrupted}
	if r.endpoint, err = transport.NewEndpoint(url); err != nil {
		return nil, err
	}
	if r.transport, err = client.NewClient(r.endpoint); err != nil {
		return nil, err
	}
	if strings.HasPrefix(r.endpoint.Protocol, "http") {
		r.transport = http.NewClient(&nethttp.Client{CheckRedirect: sameHost})
	}
	r.auth, err = r.login(secrets)
	return r, err
}

// sameHost prevents redirects from sending the credential and the fleet to a host that is
// not configured.
func sameHost(request *nethttp.Request, via []*nethttp.Request) error {
	if first := via[0].URL; request.URL.Host != first.Host || request.URL.Scheme != first.Scheme {
		return fmt.Errorf("it redirects to %s://%s, which is not configured: set fleet.git.remote to where the repository is", request.URL.Scheme, request.URL.Host)
	}
	return nil
}

// login returns the credential for the remote, or nil for the library's default.
func (r *remote) login(secrets GitAuth) (transport.AuthMethod, error) {
	switch {
	case r.endpoint.Protocol == "ssh" && secrets.SSHKey != "":
		user := r.endpoint.User
		if user == "" {
			user = ssh.DefaultUsername
		}
		return ssh.NewPublicKeysFromFile(user, filepath.Clean(secrets.SSHKey), "")
	case r.endpoint.Protocol == "http" && secrets.Token != "" && !loopback(r.endpoint.Host):
		return nil, errors.New("the token would cross the network in clear text: use https")
	case strings.HasPrefix(r.endpoint.Protocol, "http") && secrets.Token != "":
		user := secrets.Username
		if user == "" {
			user = "numaform"
		}
		return &http.BasicAuth{Username: user, Password: secrets.Token}, nil
	}
	return nil, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// patience returns a context that ends after networkTimeout without a call of heard.
func patience(ctx context.Context) (_ context.Context, heard func(), cancel func()) {
	ctx, stop := context.WithCancelCause(ctx)
	timer := time.AfterFunc(networkTimeout, func() { stop(fmt.Errorf("no answer for %s", networkTimeout)) })
	return ctx, func() { timer.Reset(networkTimeout) }, func() { timer.Stop(); stop(nil) }
}

// hearing calls heard after each read.
type hearing struct {
	io.Reader
	heard func()
}

func (h hearing) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	h.heard()
	return n, err
}

// fetch stores the objects that the remote's references lead to and the clone lacks. It
// returns the references' hashes, zero for a missing one.
func (r *remote) fetch(ctx context.Context, into *objects, haves []plumbing.Hash, names ...plumbing.ReferenceName) (hashes []plumbing.Hash, err error) {
	ctx, heard, cancel := patience(ctx)
	defer cancel()
	session, err := r.transport.NewUploadPackSession(r.endpoint, r.auth)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ignoreClosed(session.Close())) }()
	hashes = make([]plumbing.Hash, len(names))
	advertised, err := session.AdvertisedReferencesContext(ctx)
	if errors.Is(err, transport.ErrEmptyRemoteRepository) {
		return hashes, nil
	}
	if err != nil {
		return nil, err
	}
	if len(advertised.Shallows) > 0 {
		return nil, errors.New("it is shallow, and the fleet's history is in all of its commits: run git fetch --unshallow in it")
	}
	request := packp.NewUploadPackRequestFromCapabilities(advertised.Capabilities)
	for i, name := range names {
		hashes[i] = advertised.References[name.String()]
		if !hashes[i].IsZero() && into.HasEncodedObject(hashes[i]) != nil && !slices.Contains(request.Wants, hashes[i]) {
			request.Wants = append(request.Wants, hashes[i])
		}
	}
	if len(request.Wants) == 0 {
		return hashes, nil
	}
	request.Haves = haves
	if advertised.Capabilities.Supports(capability.NoProgress) {
		if err := request.Capabilities.Set(capability.NoProgress); err != nil {
			return nil, err
		}
	}
	if advertised.Capabilities.Supports(capability.Filter) {
		// Larger objects are not part of a fleet, so do not transfer them.
		if err := request.Capabilities.Set(capability.Filter); err != nil {
			return nil, err
		}
		request.Filter = packp.FilterBlobLimit(maxRecord+1, packp.BlobLimitPrefixNone)
	}
	response, err := session.UploadPack(ctx, request)
	if errors.Is(err, transport.ErrEmptyUploadPackRequest) {
		return hashes, nil
	}
	if err != nil {
		return nil, err
	}
	pack := hearing{Reader: demuxed(request.Capabilities, bufio.NewReaderSize(portions{response}, portion)), heard: heard}
	err = packfile.WritePackfileToObjectStorage(into, pack)
	if errors.Is(err, packfile.ErrEmptyPackfile) {
		err = errors.New("it sent nothing")
	}
	return hashes, errors.Join(err, response.Close())
}

// portion is the size of a read in bytes. The library starts a goroutine for each read and
// allocates a second buffer of its size: that is slow for a few bytes, and, as Go's
// allocator takes locks above 32 KiB, for many.
const portion = 32 << 10

// portions reads at most a portion at a time.
type portions struct{ io.Reader }

func (p portions) Read(b []byte) (int, error) { return p.Reader.Read(b[:min(len(b), portion)]) }

// ignoreClosed ignores the error of a session that is already closed.
func ignoreClosed(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return err
}

// demuxed returns the pack in the remote's response.
func demuxed(capabilities *capability.List, from io.Reader) io.Reader {
	switch {
	case capabilities.Supports(capability.Sideband64k):
		return sideband.NewDemuxer(sideband.Sideband64k, from)
	case capabilities.Supports(capability.Sideband):
		return sideband.NewDemuxer(sideband.Sideband, from)
	}
	return from
}

// push sets a reference of the remote to commit, if it is still at seen; zero means that
// it does not exist. objects are the objects that the remote lacks.
func (r *remote) push(ctx context.Context, from *objects, name plumbing.ReferenceName, seen, commit plumbing.Hash, objects []plumbing.Hash) (err error) {
	ctx, heard, cancel := patience(ctx)
	defer cancel()
	if err := r.interrupted("push"); err != nil {
		return err
	}
	session, err := r.transport.NewReceivePackSession(r.endpoint, r.auth)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ignoreClosed(session.Close())) }()
	advertised, err := session.AdvertisedReferencesContext(ctx)
	if err != nil {
		return err
	}
	if at := advertised.References[name.String()]; at != seen {
		return fmt.Errorf("%s is at %s, not at %s", name, at, seen)
	}
	request := packp.NewReferenceUpdateRequestFromCapabilities(advertised.Capabilities)
	request.Commands = []*packp.Command{{Name: name, Old: seen, New: commit}}
	reader, writer := io.Pipe()
	request.Packfile = reader
	encoded := make(chan error, 1)
	go func() {
		_, err := packfile.NewEncoder(writer, from, false).Encode(objects, 0)
		encoded <- errors.Join(err, writer.CloseWithError(err))
	}()
	report, err := session.ReceivePack(ctx, request)
	heard()
	err = errors.Join(err, reader.Close())
	if failed := <-encoded; err == nil && failed != nil {
		err = failed
	}
	if err == nil && report != nil {
		err = report.Error()
	}
	return errors.Join(err, r.interrupted("pushed"))
}

// fetch updates the clone to the remote's current branch and notes.
func (r *repository) fetch(ctx context.Context) error {
	var haves []plumbing.Hash
	for _, name := range []plumbing.ReferenceName{r.branch, r.seenNotes} {
		at, err := r.hash(name)
		if err != nil {
			return err
		}
		known, err := r.recent(at, maxHaves)
		if err != nil {
			return err
		}
		haves = append(haves, known...)
	}
	branch := plumbing.NewBranchReferenceName(r.config.Branch)
	at, err := r.remote.fetch(ctx, r.objects, haves, branch, localNotes)
	if err != nil {
		return fmt.Errorf("fetching from %s: nothing was changed: try again once it can be reached, since what is wanted is "+
			"not known without it (numaform history shows what the clone has): %w", r.remote.url, err)
	}
	before, err := r.hash(r.branch)
	if err != nil {
		return err
	}
	if at[0].IsZero() && !before.IsZero() {
		return fmt.Errorf("%s no longer has the branch %s: restore it, or name another one in the configuration", r.remote.url, r.config.Branch)
	}
	for i, name := range []plumbing.ReferenceName{r.branch, r.seenNotes} {
		if at[i].IsZero() {
			continue
		}
		if _, err := object.GetCommit(r.objects, at[i]); name == r.seenNotes && err != nil {
			continue // others replaced it with something that is not notes: keep the last ones
		}
		if err := r.repo.Storer.SetReference(plumbing.NewHashReference(name, at[i])); err != nil {
			return err
		}
	}
	return nil
}

// pull fetches, and merges the outcomes of both sides.
func (r *repository) pull(ctx context.Context) error {
	if r.remote == nil {
		return nil
	}
	if err := r.fetch(ctx); err != nil {
		return err
	}
	there, err := r.hash(r.seenNotes)
	if err != nil {
		return err
	}
	if err := r.joinNotes(there); err != nil {
		return err
	}
	return r.checkout.takeNotes(r)
}

// recent returns a commit and its ancestors, at most n commits.
func (r *repository) recent(commit plumbing.Hash, n int) ([]plumbing.Hash, error) {
	var list []plumbing.Hash
	seen := map[plumbing.Hash]bool{plumbing.ZeroHash: true}
	for next := []plumbing.Hash{commit}; len(next) > 0 && len(list) < n; {
		hash := next[0]
		next = next[1:]
		if seen[hash] {
			continue
		}
		seen[hash] = true
		found, err := object.GetCommit(r.objects, hash)
		if err != nil {
			return nil, fmt.Errorf("reading commit %s: %w", hash, err)
		}
		list = append(list, hash)
		next = append(next, found.ParentHashes...)
	}
	return list, nil
}

// push sets a reference of the remote to a commit, if it is still at seen.
func (r *repository) push(ctx context.Context, name plumbing.ReferenceName, seen, commit plumbing.Hash) error {
	known, err := r.hash(r.branch)
	if err != nil {
		return err
	}
	fresh, err := r.fresh(commit, known, seen)
	if err != nil {
		return err
	}
	return r.remote.push(ctx, r.objects, name, seen, commit, fresh)
}

// fresh returns the objects reachable from a commit but not from known commits.
func (r *repository) fresh(commit plumbing.Hash, known ...plumbing.Hash) ([]plumbing.Hash, error) {
	var list []plumbing.Hash
	done := map[plumbing.Hash]bool{plumbing.ZeroHash: true}
	for _, hash := range known {
		done[hash] = true
	}
	for next := []plumbing.Hash{commit}; len(next) > 0; {
		hash := next[0]
		next = next[1:]
		if done[hash] {
			continue
		}
		done[hash] = true
		if hash != commit {
			old, err := r.isAncestorOfAny(hash, known)
			if err != nil {
				return nil, err
			}
			if old {
				continue
			}
		}
		found, err := object.GetCommit(r.objects, hash)
		if err != nil {
			return nil, fmt.Errorf("reading commit %s: %w", hash, err)
		}
		list = append(list, hash)
		var others []*object.Tree
		for _, parent := range found.ParentHashes {
			tree, err := r.tree(parent)
			if err != nil {
				return nil, err
			}
			others = append(others, tree)
		}
		tree, err := r.tree(hash)
		if err != nil {
			return nil, err
		}
		if err := r.freshTree(tree, others, done, &list); err != nil {
			return nil, err
		}
		next = append(next, found.ParentHashes...)
	}
	return list, nil
}

func (r *repository) isAncestorOfAny(commit plumbing.Hash, of []plumbing.Hash) (bool, error) {
	for _, head := range of {
		if head.IsZero() {
			continue
		}
		if is, err := r.isAncestor(commit, head); is || err != nil {
			return is, err
		}
	}
	return false, nil
}

// freshTree adds a tree's objects that none of others has at the same path.
func (r *repository) freshTree(tree *object.Tree, others []*object.Tree, done map[plumbing.Hash]bool, list *[]plumbing.Hash) error {
	same := func(other *object.Tree) bool { return other.Hash == tree.Hash }
	if done[tree.Hash] || slices.ContainsFunc(others, same) {
		return nil
	}
	done[tree.Hash] = true
	*list = append(*list, tree.Hash)
	there := make([]map[string]object.TreeEntry, len(others))
	for i, other := range others {
		there[i] = map[string]object.TreeEntry{}
		for _, entry := range other.Entries {
			there[i][entry.Name] = entry
		}
	}
	for _, entry := range tree.Entries {
		var below []*object.Tree
		known := done[entry.Hash]
		for _, other := range there {
			before := other[entry.Name]
			if before.Hash == entry.Hash {
				known = true
				break
			}
			if isTree(entry) && isTree(before) {
				child, err := object.GetTree(r.objects, before.Hash)
				if err != nil {
					return err
				}
				below = append(below, child)
			}
		}
		switch {
		case known, isSubmodule(entry):
		case isTree(entry):
			child, err := object.GetTree(r.objects, entry.Hash)
			if err != nil {
				return err
			}
			if err := r.freshTree(child, below, done, list); err != nil {
				return err
			}
		default:
			done[entry.Hash] = true
			*list = append(*list, entry.Hash)
		}
	}
	return nil
}

// publish makes commit the head of the branch. It never forces: if the branch has moved
// since it was read, it returns ErrMoved.
func (r *repository) publish(ctx context.Context, commit plumbing.Hash) error {
	before, err := r.hash(r.branch)
	if err != nil {
		return err
	}
	if r.remote == nil {
		return r.moveBranch(before, commit)
	}
	pushed := r.push(ctx, plumbing.NewBranchReferenceName(r.config.Branch), before, commit)
	if pushed == nil {
		return r.follow(commit)
	}
	// Libraries and servers explain the failure only as text, so check what the remote
	// contains.
	pushed = fmt.Errorf("pushing to %s: nothing was applied: %w", r.remote.url, pushed)
	if err := r.fetch(ctx); err != nil {
		return pushed
	}
	after, err := r.hash(r.branch)
	switch {
	case err != nil:
		return errors.Join(pushed, err)
	case after == commit:
		return r.follow(commit) // the push succeeded and only the response was lost
	case after != before:
		return fmt.Errorf("pushing to %s: %w", r.remote.url, ErrMoved)
	}
	return pushed
}

// follow records the position of the remote's branch after a push.
func (r *repository) follow(commit plumbing.Hash) error {
	if err := r.interrupted("branch"); err != nil {
		return err
	}
	return r.repo.Storer.SetReference(plumbing.NewHashReference(r.branch, commit))
}

// moveBranch sets the branch of a repository without a remote, if it is still at before.
func (r *repository) moveBranch(before, commit plumbing.Hash) error {
	if err := r.interrupted("branch"); err != nil {
		return err
	}
	now, err := r.hash(r.branch)
	if err != nil {
		return err
	}
	if now != before {
		return fmt.Errorf("writing %s: %w", r.where(), ErrMoved)
	}
	var old *plumbing.Reference
	if !before.IsZero() {
		old = plumbing.NewHashReference(r.branch, before)
	}
	if err := r.repo.Storer.CheckAndSetReference(plumbing.NewHashReference(r.branch, commit), old); err != nil {
		return fmt.Errorf("writing %s: %w: %w", r.where(), ErrMoved, err)
	}
	return r.interrupted("moved")
}

// propose pushes commit to a branch of its own.
func (r *repository) propose(ctx context.Context, commit plumbing.Hash, id string) error {
	proposed := &ProposedError{Branch: "numaform/" + id, Commit: commit.String()}
	name := plumbing.NewBranchReferenceName(proposed.Branch)
	if r.remote == nil {
		if err := r.repo.Storer.SetReference(plumbing.NewHashReference(name, commit)); err != nil {
			return err
		}
		return proposed
	}
	proposed.Remote = userinfo.ReplaceAllString(r.remote.url, "://")
	if err := r.push(ctx, name, plumbing.ZeroHash, commit); err != nil {
		return fmt.Errorf("pushing %s to %s: nothing was proposed: %w", proposed.Branch, r.remote.url, err)
	}
	return proposed
}

// hash returns the target of a reference; zero if it does not exist.
func (r *repository) hash(name plumbing.ReferenceName) (plumbing.Hash, error) {
	ref, err := r.repo.Reference(name, true)
	if errors.Is(err, plumbing.ErrReferenceNotFound) {
		return plumbing.ZeroHash, nil
	}
	if err != nil {
		return plumbing.ZeroHash, fmt.Errorf("reading %s: %w", name, err)
	}
	return ref.Hash(), nil
}

func replaceAll(text, secret string) string { return strings.ReplaceAll(text, secret, "[hidden]") }
