package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/numaform/numaform/internal/audit"
)

// Vault stores an installation's key outside the fleet's store, where only the
// installation can read and write it.
type Vault interface {
	// Load returns the key's content, or nil if it does not exist.
	Load(ctx context.Context) ([]byte, error)
	// Create stores content. If the vault already has content, it returns that instead.
	Create(ctx context.Context, content []byte) ([]byte, error)
	// Head returns the head of the history's log, or nil. It is kept here as well, because
	// whoever can write the store cannot write the vault.
	Head(ctx context.Context) ([]byte, error)
	// SetHead replaces the head. It returns errHeadMoved if the head is not before.
	SetHead(ctx context.Context, before, after []byte) error
	// String returns the location of the key.
	String() string
}

// errKeyHidden is returned by Load if this user is not allowed to read the key.
var errKeyHidden = errors.New("grant this user read access")

// errHeadMoved is returned by SetHead if another process changed the head.
var errHeadMoved = errors.New("another process changed the head of the history's log")

// errNewerKey reports a key that a newer version wrote.
var errNewerKey = errors.New("a newer numaform wrote it")

// maxKeyring limits the content of a vault. A Secret can contain 1 MiB, and its encoding adds
// a third.
const maxKeyring = 700 << 10

// maxAdopted limits the number of adopted records, beginning with the latest.
const maxAdopted = 20_000

// keyring is a key and the records that were adopted when it was created.
type keyring struct {
	key     audit.Key
	adopted map[audit.Tag]bool
}

// storedKeyring is the JSON form of a keyring in a vault.
type storedKeyring struct {
	Format int `json:"format"`
	// Key has audit.KeySize bytes; Adopted is the concatenation of the Tags.
	Key     []byte `json:"key"`
	Adopted []byte `json:"adopted,omitempty"`
}

// newKeyring returns the content of a new key that adopts the verified entries of list.
func newKeyring(cluster string, list []audit.Entry) ([]byte, error) {
	var key audit.Key
	_, _ = rand.Read(key[:]) // it never returns an error
	stored := storedKeyring{Format: 1, Key: key[:]}
	adopted := 0
	for i := len(list) - 1; i >= 0 && adopted < maxAdopted; i-- {
		if !list[i].Verified {
			continue
		}
		for _, tag := range key.Tags(cluster, &list[i]) {
			stored.Adopted = append(stored.Adopted, tag[:]...)
			adopted++
		}
	}
	return json.Marshal(stored)
}

// parseKeyring parses the content of a vault.
func parseKeyring(content []byte) (*keyring, error) {
	var stored storedKeyring
	if err := json.Unmarshal(content, &stored); err != nil {
		return nil, err
	}
	keys := &keyring{adopted: map[audit.Tag]bool{}}
	switch {
	case stored.Format > 1:
		return nil, fmt.Errorf("%w (format %d, but this version supports only 1)", errNewerKey, stored.Format)
	case stored.Format < 1 || len(stored.Key) != len(keys.key) || len(stored.Adopted)%len(audit.Tag{}) != 0:
		return nil, errors.New("not a numaform key")
	}
	keys.key = audit.Key(stored.Key)
	for left := stored.Adopted; len(left) > 0; left = left[len(audit.Tag{}):] {
		keys.adopted[audit.Tag(left)] = true
	}
	return keys, nil
}

// FileVault stores a key in the file at this path, which only its owner can read.
type FileVault string

var _ Vault = FileVault("")

// String returns the word "file" and the file's path.
func (v FileVault) String() string { return "file " + string(v) }

// Load reads the file. It refuses a file that other users can write.
func (v FileVault) Load(context.Context) ([]byte, error) {
	file, err := os.Open(string(v))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%w: %w", err, errKeyHidden)
	case err != nil:
		return nil, fmt.Errorf("%w: correct state_dir or history.key_file", err)
	}
	defer file.Close() //nolint:errcheck // only read
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("other users can write %s (mode %04o): run chmod 600 %s", string(v), info.Mode().Perm(), string(v))
	}
	content, err := io.ReadAll(io.LimitReader(file, maxKeyring+1))
	if err == nil && len(content) > maxKeyring {
		err = fmt.Errorf("%s is not a numaform key, because it contains more than %d KiB: set history.key_file to the file with the key", string(v), maxKeyring>>10)
	}
	return content, err
}

// Create writes the file completely or not at all, and never replaces an existing one.
func (v FileVault) Create(ctx context.Context, content []byte) ([]byte, error) {
	err := v.create(content)
	if errors.Is(err, fs.ErrExist) {
		return v.Load(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: set state_dir or history.key_file to a writable location", err)
	}
	return content, nil
}

// create writes the file. It returns fs.ErrExist if the file exists.
func (v FileVault) create(content []byte) (err error) {
	dir := filepath.Dir(string(v))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(dir, ".key-") // with mode 0600
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(file.Name())) }()
	_, err = file.Write(content)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Link(file.Name(), string(v)); err != nil {
		return err
	}
	return syncPath(dir)
}

// headSuffix is added to the name of the key's file or Secret.
const headSuffix = "-head"

// Head reads the file beside the key.
func (v FileVault) Head(context.Context) ([]byte, error) {
	return headFile(string(v) + headSuffix).read()
}

// SetHead replaces the file beside the key.
func (v FileVault) SetHead(_ context.Context, before, after []byte) error {
	return headFile(string(v)+headSuffix).replace(before, after)
}

// SharedKeyVault stores a key in a file that other machines may share, and that may be
// read-only, and the head of this machine's own log in another file.
type SharedKeyVault struct {
	FileVault
	// HeadPath is the path of the head.
	HeadPath string
}

var _ Vault = SharedKeyVault{}

// Head reads the head.
func (v SharedKeyVault) Head(context.Context) ([]byte, error) { return headFile(v.HeadPath).read() }

// SetHead replaces the head.
func (v SharedKeyVault) SetHead(_ context.Context, before, after []byte) error {
	return headFile(v.HeadPath).replace(before, after)
}

// headFile is the path of the head of a log.
type headFile string

func (f headFile) read() ([]byte, error) {
	content, err := os.ReadFile(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return content, err
}

func (f headFile) replace(before, after []byte) error {
	if err := os.MkdirAll(filepath.Dir(string(f)), 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(string(f)+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("%w: set state_dir to a writable location", err)
	}
	return errors.Join(flock(lock, unix.LOCK_EX, func() error {
		now, err := f.read()
		if err != nil {
			return err
		}
		if !bytes.Equal(now, before) {
			return errHeadMoved
		}
		return renameio.WriteFile(string(f), after, 0o600)
	}), lock.Close())
}

// SecretVault stores a key in a Secret.
type SecretVault struct {
	Client          kubernetes.Interface
	Namespace, Name string
}

var _ Vault = SecretVault{}

// secretKey is the key within the Secret's data.
const secretKey = "key"

// String returns the word "Secret" and the Secret's namespace and name.
func (v SecretVault) String() string { return "Secret " + v.Namespace + "/" + v.Name }

// Load reads the Secret.
func (v SecretVault) Load(ctx context.Context) ([]byte, error) {
	secret, err := v.Client.CoreV1().Secrets(v.Namespace).Get(ctx, v.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("%w: %w", err, errKeyHidden)
	case err != nil:
		return nil, err
	case len(secret.Data[secretKey]) == 0:
		return nil, fmt.Errorf("%s has no data key %q: restore the Secret; if the key is lost, delete the Secret: "+
			"the next change creates a new key, and all earlier records become unverified", v, secretKey)
	}
	return secret.Data[secretKey], nil
}

// Create creates the Secret, which is immutable.
func (v SecretVault) Create(ctx context.Context, content []byte) ([]byte, error) {
	_, err := v.Client.CoreV1().Secrets(v.Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: v.Name, Namespace: v.Namespace},
		Immutable:  new(true),
		Data:       map[string][]byte{secretKey: content},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return v.Load(ctx)
	}
	if apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("%w: grant numaform the permission to create and get Secrets in namespace %s", err, v.Namespace)
	}
	if err != nil {
		return nil, err
	}
	return content, nil
}

// Head reads the Secret beside the key's.
func (v SecretVault) Head(ctx context.Context) ([]byte, error) {
	secret, err := v.Client.CoreV1().Secrets(v.Namespace).Get(ctx, v.Name+headSuffix, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return secret.Data[secretKey], nil
}

// SetHead creates or replaces the Secret.
func (v SecretVault) SetHead(ctx context.Context, before, after []byte) error {
	secrets := v.Client.CoreV1().Secrets(v.Namespace)
	if before == nil {
		_, err := secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: v.Name + headSuffix, Namespace: v.Namespace}, Data: map[string][]byte{secretKey: after},
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return errHeadMoved
		}
		return err
	}
	secret, err := secrets.Get(ctx, v.Name+headSuffix, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if !bytes.Equal(secret.Data[secretKey], before) {
		return errHeadMoved
	}
	secret.Data = map[string][]byte{secretKey: after}
	_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{}) // at the version that was read
	if apierrors.IsConflict(err) {
		return errHeadMoved
	}
	return err
}
