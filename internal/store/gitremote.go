package store

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	nethttp "net/http"
	"os"
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
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/client"
	"github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// networkTimeout limits how long the remote can be silent during a fetch, and how long a
// push can take.
const networkTimeout = 2 * time.Minute

// maxHaves limits the commits of each reference that a fetch reports as known. One commit
// that the remote also has is enough for it to determine the missing objects.
const maxHaves = 256

// remote is the shared repository.
type remote struct {
	url       string
	endpoint  *transport.Endpoint
	transport transport.Transport
	auth      transport.AuthMethod
	interrupt interrupt
}

// newRemote returns the remote at url. It returns an error if it would send a token in
// clear text to another machine.
func newRemote(url string, credentials GitAuth, interrupt interrupt) (r *remote, err error) {
	r = &remote{url: url, interrupt: interrupt}
	if r.endpoint, err = transport.NewEndpoint(url); err != nil {
		return nil, err
	}
	if r.transport, err = client.NewClient(r.endpoint); err != nil {
		return nil, fmt.Errorf("%w: set fleet.git.remote to an https or ssh URL, or to a path", err)
	}
	overHTTP := strings.HasPrefix(r.endpoint.Protocol, "http")
	if overHTTP {
		web := &nethttp.Client{CheckRedirect: sameHost}
		if credentials.CAs != nil {
			own := nethttp.DefaultTransport.(*nethttp.Transport).Clone()
			own.TLSClientConfig = &tls.Config{RootCAs: credentials.CAs, MinVersion: tls.VersionTLS12}
			web.Transport = own
		}
		r.transport = http.NewClient(web)
	}

	// If no case below sets a credential, go-git uses the SSH agent, or the user and password
	// in an http URL.
	ip := net.ParseIP(r.endpoint.Host)
	loopback := r.endpoint.Host == "localhost" || ip != nil && ip.IsLoopback()
	switch {
	case r.endpoint.Protocol == "ssh" && credentials.SSHKey != "":
		user := cmp.Or(r.endpoint.User, ssh.DefaultUsername)
		if r.auth, err = ssh.NewPublicKeysFromFile(user, filepath.Clean(credentials.SSHKey), ""); err != nil {
			return nil, fmt.Errorf("reading %s: %w: set fleet.git.ssh_key_file to a private key without a passphrase", credentials.SSHKey, err)
		}
	case r.endpoint.Protocol == "http" && credentials.Token != "" && !loopback:
		err = errors.New("NUMAFORM_GIT_TOKEN must not be sent in clear text: set fleet.git.remote to an https URL")
	case overHTTP && credentials.Token != "":
		r.auth = &http.BasicAuth{Username: cmp.Or(credentials.Username, "numaform"), Password: credentials.Token}
	}
	return r, err
}

// caFix is the fix for a server whose certificate is not trusted.
const caFix = "set fleet.git.ca_file to a file with the CA certificate of the server"

func isUntrusted(err error) bool {
	_, untrusted := errors.AsType[x509.UnknownAuthorityError](err)
	return untrusted
}

// remoteFix returns the fix for an error of the remote.
func remoteFix(err error) string {
	var network net.Error
	switch {
	case isUntrusted(err):
		return caFix
	case errors.Is(err, transport.ErrRepositoryNotFound):
		return "correct fleet.git.remote, or create the repository"
	case errors.Is(err, transport.ErrAuthenticationRequired), errors.Is(err, transport.ErrAuthorizationFailed):
		return "set NUMAFORM_GIT_TOKEN for an https URL, or fleet.git.ssh_key_file for an ssh URL, to a credential that may read and write the repository"
	case errors.As(err, &network), errors.Is(err, errSilent):
		return "correct fleet.git.remote, or make the host reachable from here"
	}
	return "fix this"
}

// sameHost prevents redirects from sending the credential and the fleet to a host that is
// not configured.
func sameHost(request *nethttp.Request, via []*nethttp.Request) error {
	if first := via[0].URL; request.URL.Host != first.Host || request.URL.Scheme != first.Scheme {
		return fmt.Errorf("it redirects to %s://%s, which is not configured: set fleet.git.remote to the URL of the repository", request.URL.Scheme, request.URL.Host)
	}
	return nil
}

// errSilent is the cause of a context that silenceLimit ended.
var errSilent = fmt.Errorf("no response for %s", networkTimeout)

// silenceLimit returns a context that ends when received was not called for networkTimeout.
func silenceLimit(ctx context.Context) (_ context.Context, received func(int), cancel func()) {
	ctx, stop := context.WithCancelCause(ctx)
	timer := time.AfterFunc(networkTimeout, func() { stop(errSilent) })
	return ctx, func(int) { timer.Reset(networkTimeout) }, func() { timer.Stop(); stop(nil) }
}

// receiver calls received after each read, with the number of bytes.
type receiver struct {
	io.Reader
	received func(int)
}

func (r receiver) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.received(n)
	return n, err
}

// openSession opens a session with the remote. The library connects to an SSH server without a
// context, and waits for its responses without a limit. So openSession does not wait for the
// library when ctx ends. A session that opens later is closed.
func openSession[S io.Closer](ctx context.Context, r *remote, open func(*transport.Endpoint, transport.AuthMethod) (S, error)) (S, error) {
	type result struct {
		session S
		err     error
	}
	opened := make(chan result)
	go func() {
		session, err := open(r.endpoint, r.auth)
		select {
		case opened <- result{session, err}:
		case <-ctx.Done():
			if err == nil {
				_ = session.Close() // nothing was sent
			}
		}
	}()
	select {
	case o := <-opened:
		return o.session, o.err
	case <-ctx.Done():
		var none S
		return none, context.Cause(ctx)
	}
}

// session is a connection that fetches from the remote, with the remote's references.
type session struct {
	transport.UploadPackSession
	*packp.AdvRefs
	received func(int)
}

// connect calls f with a session, unless the remote is empty.
func (r *remote) connect(ctx context.Context, f func(ctx context.Context, s session) error) (err error) {
	ctx, received, cancel := silenceLimit(ctx)
	defer cancel()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx) // the library says only that the context ended
		}
	}()
	upload, err := openSession(ctx, r, r.transport.NewUploadPackSession)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ignoreClosed(upload.Close())) }()
	advertised, err := upload.AdvertisedReferencesContext(ctx)
	if errors.Is(err, transport.ErrEmptyRemoteRepository) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(advertised.Shallows) > 0 {
		return errors.New("the remote repository is shallow, but the fleet's history requires all of its commits: run git fetch --unshallow in that repository")
	}
	return f(ctx, session{UploadPackSession: upload, AdvRefs: advertised, received: received})
}

// fetch stores the objects of the remote's references that the clone does not have: all, if
// there are no haves. It returns the hashes of the references, zero for a missing one.
func (r *remote) fetch(ctx context.Context, into *objects, haves []plumbing.Hash, names ...plumbing.ReferenceName) ([]plumbing.Hash, error) {
	hashes := make([]plumbing.Hash, len(names))
	err := r.connect(ctx, func(ctx context.Context, s session) error {
		request := packp.NewUploadPackRequestFromCapabilities(s.Capabilities)
		for i, name := range names {
			hashes[i] = s.References[name.String()]
			missing := len(haves) == 0 || into.HasEncodedObject(hashes[i]) != nil
			if missing && !hashes[i].IsZero() && !slices.Contains(request.Wants, hashes[i]) {
				request.Wants = append(request.Wants, hashes[i])
			}
		}
		request.Haves = haves
		return s.download(ctx, into, request, withoutLarge)
	})
	return hashes, err
}

// withoutLarge omits objects larger than a record, because they are not part of a fleet.
var withoutLarge = packp.FilterBlobLimit(maxRecord+1, packp.BlobLimitPrefixNone)

// fetchCommit stores the objects of a commit that the clone does not have, if the reference is
// at the commit. It returns the hash of the reference, zero if it does not exist, and a
// MergeError if the objects have more than maxMerge bytes.
func (r *remote) fetchCommit(
	ctx context.Context, into *objects, haves []plumbing.Hash, name plumbing.ReferenceName, commit plumbing.Hash,
) (at plumbing.Hash, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	err = r.connect(ctx, func(ctx context.Context, s session) error {
		if at = s.References[name.String()]; at != commit || at.IsZero() {
			return nil
		}
		size, received := 0, s.received
		s.received = func(n int) {
			received(n)
			if size += n; size > maxMerge {
				stop(&MergeError{Problem: fmt.Sprintf("its commits add more than %d MiB to the repository: remove the large files from the commits", maxMerge>>20)})
			}
		}
		request := packp.NewUploadPackRequestFromCapabilities(s.Capabilities)
		request.Wants = []plumbing.Hash{commit}
		request.Haves = haves
		return s.download(ctx, into, request, withoutLarge)
	})
	return at, err
}

// heads stores the trees of the heads of the remote's branches, without their history. It
// returns the heads by branch. Heads in known are returned without their trees.
func (r *remote) heads(ctx context.Context, into *objects, known func(plumbing.Hash) bool) (map[string]plumbing.Hash, error) {
	heads := map[string]plumbing.Hash{}
	err := r.connect(ctx, func(ctx context.Context, s session) error {
		request := packp.NewUploadPackRequestFromCapabilities(s.Capabilities)
		for name, hash := range s.References {
			if name := plumbing.ReferenceName(name); name.IsBranch() {
				heads[name.Short()] = hash
				if !known(hash) && !slices.Contains(request.Wants, hash) {
					request.Wants = append(request.Wants, hash)
				}
			}
		}
		if s.Capabilities.Supports(capability.Shallow) {
			if err := request.Capabilities.Set(capability.Shallow); err != nil {
				return err
			}
			request.Depth = packp.DepthCommits(1)
		}
		return s.download(ctx, into, request, packp.FilterBlobNone())
	})
	return heads, err
}

// download stores the objects that a request wants. The filter applies if the remote
// supports filters.
func (s session) download(ctx context.Context, into *objects, request *packp.UploadPackRequest, filter packp.Filter) error {
	if len(request.Wants) == 0 {
		return nil
	}
	if s.Capabilities.Supports(capability.NoProgress) {
		if err := request.Capabilities.Set(capability.NoProgress); err != nil {
			return err
		}
	}
	if s.Capabilities.Supports(capability.Filter) {
		if err := request.Capabilities.Set(capability.Filter); err != nil {
			return err
		}
		request.Filter = filter
	}
	response, err := s.UploadPack(ctx, request)
	if errors.Is(err, transport.ErrEmptyUploadPackRequest) {
		return nil
	}
	if err != nil {
		return err
	}
	var pack io.Reader = bufio.NewReaderSize(smallReads{response}, readSize)
	switch {
	case request.Capabilities.Supports(capability.Sideband64k):
		pack = sideband.NewDemuxer(sideband.Sideband64k, pack)
	case request.Capabilities.Supports(capability.Sideband):
		pack = sideband.NewDemuxer(sideband.Sideband, pack)
	}
	err = packfile.WritePackfileToObjectStorage(into, receiver{Reader: pack, received: s.received})
	if errors.Is(err, packfile.ErrEmptyPackfile) {
		err = errors.New("it sent an empty pack")
	}
	return errors.Join(err, response.Close())
}

// readSize is the size of a read in bytes. The library starts a goroutine and allocates a
// second buffer for each read. Small reads are slow because of the goroutines, and large ones
// because Go's allocator locks for more than 32 KiB.
const readSize = 32 << 10

// smallReads reads at most readSize bytes at a time.
type smallReads struct{ io.Reader }

func (r smallReads) Read(b []byte) (int, error) { return r.Reader.Read(b[:min(len(b), readSize)]) }

// ignoreClosed ignores the error of a session that is already closed.
func ignoreClosed(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return err
}

// push sets a reference of the remote to commit, if it is still at seen; zero means that it
// does not exist. objects are the objects that the remote does not have.
func (r *remote) push(ctx context.Context, from *objects, name plumbing.ReferenceName, seen, commit plumbing.Hash, objects []plumbing.Hash) (err error) {
	ctx, cancel := context.WithTimeout(ctx, networkTimeout)
	defer cancel()
	if err := r.interrupt.before("push"); err != nil {
		return err
	}
	session, err := openSession(ctx, r, r.transport.NewReceivePackSession)
	if err != nil {
		return fmt.Errorf("%w: %s", err, remoteFix(err))
	}
	defer func() { err = errors.Join(err, ignoreClosed(session.Close())) }()
	advertised, err := session.AdvertisedReferencesContext(ctx)
	if err != nil {
		return fmt.Errorf("%w: %s", err, remoteFix(err))
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
	err = errors.Join(err, reader.Close())
	if encodeErr := <-encoded; err == nil {
		err = encodeErr
	}
	if report != nil && report.Error() != nil {
		err = fmt.Errorf("%w: if the remote protects branch %s, allow numaform's user to push to it", report.Error(), name.Short())
	}
	return errors.Join(err, r.interrupt.before("pushed"))
}

// haves returns the newest commits of the clone. It returns an error if the commit of a
// reference cannot be read.
func (r *repository) haves() (list []plumbing.Hash, err error) {
	for _, name := range []plumbing.ReferenceName{r.branch, r.seenNotes} {
		at, err := r.hash(name)
		if err != nil {
			return nil, err
		}
		newest, err := r.newest(at)
		if err != nil {
			return nil, err
		}
		list = append(list, newest...)
	}
	return list, r.checkNotes()
}

// checkNotes returns an error if the commit of the notes cannot be read.
func (r *repository) checkNotes() error {
	at, err := r.hash(r.notes)
	if err != nil || at.IsZero() {
		return err
	}
	if _, err = object.GetCommit(r.objects, at); err != nil {
		return fmt.Errorf("reading commit %s: %w", at, err)
	}
	return nil
}

// repair removes what a loss of power damaged in the clone, so that a fetch without haves
// stores it again. Damaged outcomes that were not pushed yet are lost. It returns the problem
// of reading the clone if this cannot solve it.
func (r *repository) repair(problem error) error {
	removed, err := r.objects.removeEmpty()
	if err != nil {
		return fmt.Errorf("repairing the clone: %w: remove the directory %s, and numaform clones the repository again", err, r.config.Clone)
	}
	if !removed && !errors.Is(problem, plumbing.ErrObjectNotFound) {
		return problem
	}
	if r.checkNotes() != nil {
		return r.repo.Storer.RemoveReference(r.notes)
	}
	return nil
}

// newest returns a commit and its nearest ancestors, which a fetch reports as known.
func (r *repository) newest(commit plumbing.Hash) (haves []plumbing.Hash, err error) {
	err = r.ancestors(commit, func(at plumbing.Hash) error {
		if haves = append(haves, at); len(haves) == maxHaves {
			return storer.ErrStop
		}
		return nil
	})
	return haves, err
}

// errBranchGone is returned by fetch if the remote had the branch before.
var errBranchGone = errors.New("no longer has the branch")

// fetch updates the clone to the remote's current branch and notes.
func (r *repository) fetch(ctx context.Context) error {
	haves, err := r.haves()
	if err != nil {
		haves, err = nil, r.repair(err)
	}
	if err != nil {
		return err
	}
	branch := plumbing.NewBranchReferenceName(r.config.Branch)
	at, err := r.remote.fetch(ctx, r.objects, haves, branch, localNotes)
	if err != nil {
		return fmt.Errorf("fetching from %s: nothing was changed: %w: %s, then try again: numaform needs the remote, because only the remote "+
			"has the desired state (numaform history shows the changes in the clone)", r.remote.url, err, remoteFix(err))
	}
	seenNotes, err := r.hash(r.seenNotes)
	if err == nil && at[1].IsZero() && !seenNotes.IsZero() {
		// The repository was created again, or someone deleted the notes: push all of them.
		err = r.repo.Storer.RemoveReference(r.seenNotes)
	}
	if err != nil {
		return err
	}
	before, err := r.hash(r.branch)
	if err != nil {
		return err
	}
	if at[0].IsZero() && !before.IsZero() {
		return fmt.Errorf("%s %w %s: restore it, or set fleet.git.branch to another one; "+
			"if the repository was created again, push the branch from another clone, or remove numaform's own, %s, and run numaform restore with a backup",
			r.remote.url, errBranchGone, r.config.Branch, r.config.Clone)
	}
	if at[0].IsZero() {
		if err := r.checkNewBranch(ctx); err != nil {
			return err
		}
	}
	for i, name := range []plumbing.ReferenceName{r.branch, r.seenNotes} {
		if at[i].IsZero() {
			continue
		}
		if _, err := object.GetCommit(r.objects, at[i]); name == r.seenNotes && err != nil {
			continue // another client replaced the notes with an invalid object: keep the last ones
		}
		if err := r.setReference(name, at[i]); err != nil {
			return err
		}
	}
	return nil
}

// pull fetches, and merges the outcomes from the remote and from the checkout into the
// clone's notes. Without a remote, it only checks that the branch may be new.
func (r *repository) pull(ctx context.Context) error {
	if r.remote == nil {
		head, err := r.hash(r.branch)
		if err != nil || !head.IsZero() {
			return err
		}
		return r.checkNewLocalBranch()
	}
	if err := r.putBack(ctx, r.fetch(ctx)); err != nil {
		return err
	}
	seen, err := r.hash(r.seenNotes)
	if err != nil {
		return err
	}
	if err := r.joinNotes(seen); err != nil {
		return err
	}
	return r.checkout.importNotes(r)
}

// push sets a reference of the remote to a commit, if it is still at seen.
func (r *repository) push(ctx context.Context, name plumbing.ReferenceName, seen, commit plumbing.Hash) error {
	branch, err := r.hash(r.branch)
	if err != nil {
		return err
	}
	objects, err := r.newObjects(commit, branch, seen)
	if err != nil {
		return err
	}
	return r.remote.push(ctx, r.objects, name, seen, commit, objects)
}

// newObjects returns the objects reachable from a commit but not from known commits.
func (r *repository) newObjects(commit plumbing.Hash, known ...plumbing.Hash) ([]plumbing.Hash, error) {
	var list []plumbing.Hash
	done := map[plumbing.Hash]bool{plumbing.ZeroHash: true}
	add := func(hash plumbing.Hash) {
		done[hash] = true
		list = append(list, hash)
	}
	for _, hash := range known {
		done[hash] = true
	}
	for next := []plumbing.Hash{commit}; len(next) > 0; next = next[1:] {
		hash := next[0]
		if done[hash] {
			continue
		}
		found, err := object.GetCommit(r.objects, hash)
		if err != nil {
			return nil, fmt.Errorf("reading commit %s: %w", hash, err)
		}
		add(hash)
		next = append(next, found.ParentHashes...)

		trees, err := r.treesOf(found, "")
		if err != nil {
			return nil, err
		}
		if slices.Contains(trees[1:], trees[0]) || done[trees[0]] {
			continue
		}
		// Objects that a parent has at the same path are known, or listed for the parent.
		add(trees[0])
		err = r.walkNew("", trees[0], trees[1:], func(_ string, entry object.TreeEntry, _ bool) error {
			if done[entry.Hash] {
				return fs.SkipDir
			}
			if !isSubmodule(entry) {
				add(entry.Hash)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// publish moves the branch from before to commit. It never forces a push: if the branch has
// moved since it was read, publish returns ErrMoved. If the branch only lost what numaform had
// written, it pushes that again together with the commit.
func (r *repository) publish(ctx context.Context, before, commit plumbing.Hash) error {
	if r.remote == nil {
		return r.moveBranch(before, commit)
	}
	for range putBackAttempts {
		pushed := r.push(ctx, plumbing.NewBranchReferenceName(r.config.Branch), before, commit)
		if pushed == nil {
			return r.follow(commit)
		}
		// Libraries and servers explain the failure only as text, so compare the remote's branch.
		pushed = fmt.Errorf("pushing to %s: nothing was applied: %w", r.remote.url, pushed)
		fetched := r.fetch(ctx)
		after, err := r.hash(r.branch)
		switch {
		case err != nil:
			return errors.Join(pushed, err)
		case fetched == nil && after == commit:
			return r.follow(commit) // the push succeeded and only the response was lost
		case fetched == nil && after == before:
			return pushed
		}
		if err := r.putBack(ctx, fetched); err != nil {
			return pushed
		}
		if after, err = r.hash(r.branch); err != nil {
			return errors.Join(pushed, err)
		}
		if after != before {
			break
		}
	}
	return fmt.Errorf("pushing to %s: %w", r.remote.url, ErrMoved)
}

// follow records the position of the remote's branch after a push.
func (r *repository) follow(commit plumbing.Hash) error {
	if err := r.interrupt.before("branch"); err != nil {
		return err
	}
	return errors.Join(r.setReference(r.branch, commit), r.setReference(r.kept, commit))
}

// moveBranch sets the branch of a repository without a remote, if it is still at before. It
// locks the repository, because the gate is in state_dir, and several can share a repository.
func (r *repository) moveBranch(before, commit plumbing.Hash) error {
	if err := r.interrupt.before("branch"); err != nil {
		return err
	}
	root, err := os.Open(r.objects.Filesystem().Root())
	if err != nil {
		return fmt.Errorf("writing %s: %w", r.where(), err)
	}
	err = flock(root, unix.LOCK_EX, func() error {
		now, err := r.hash(r.branch)
		if err != nil {
			return err
		}
		if now != before {
			return fmt.Errorf("writing %s: %w", r.where(), ErrMoved)
		}
		return r.setReference(r.branch, commit)
	})
	if err = errors.Join(err, root.Close()); err != nil {
		return err
	}
	return r.interrupt.before("moved")
}

// propose stores commit on a new branch for review, in the remote if there is one, and
// then returns a ProposedError.
func (r *repository) propose(ctx context.Context, commit plumbing.Hash, id string) error {
	proposed := &ProposedError{Branch: proposals + id, Commit: commit.String()}
	name := plumbing.NewBranchReferenceName(proposed.Branch)
	if r.remote == nil {
		if err := r.setReference(name, commit); err != nil {
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

// setReference sets a reference. A crash or a loss of power leaves it at the old or at the new
// target; the library would first make its file empty, as if the reference did not exist.
func (r *repository) setReference(name plumbing.ReferenceName, target plumbing.Hash) error {
	if at, err := r.hash(name); err != nil || at == target {
		return err
	}
	root := r.objects.Filesystem().Root()
	path := filepath.Join(root, name.String())
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		// Git would list a temporary file beside the reference as another one.
		err = renameio.WriteFile(path, []byte(target.String()+"\n"), 0o644, renameio.WithTempDir(root))
	}
	if err == nil {
		err = syncPath(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}
