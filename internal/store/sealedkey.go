package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/numaform/numaform/internal/translog"
)

// Key returns the key of the history as the vault contains it, for a backup; nil if there is
// none yet.
func (s *Sealed) Key(ctx context.Context) ([]byte, error) {
	content, err := s.vault.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the key of the fleet's history in %s: %w", s.vault, err)
	}
	return content, nil
}

// OtherKeyError reports that a key to be restored is not the key that exists.
type OtherKeyError struct{ Place string }

func (e *OtherKeyError) Error() string {
	return fmt.Sprintf("%s contains another key than the backup, so the backup is of another installation, or the key was created again after a loss: "+
		"nothing was written: to use the key of the backup, move the other one elsewhere", e.Place)
}

// CheckKey returns an error if content is not a key, and an *OtherKeyError if the vault
// contains another one. It reports whether the vault contains this key.
func (s *Sealed) CheckKey(ctx context.Context, content []byte) (exists bool, err error) {
	if _, err := parseKeyring(content); err != nil {
		return false, fmt.Errorf("reading the key of the backup: %w", err)
	}
	have, err := s.Key(ctx)
	if err != nil || have == nil {
		return false, err
	}
	if !bytes.Equal(have, content) {
		return false, &OtherKeyError{Place: s.vault.String()}
	}
	return true, nil
}

// RestoreKey creates the key of a backup, unless it exists.
func (s *Sealed) RestoreKey(ctx context.Context, content []byte) error {
	if exists, err := s.CheckKey(ctx, content); exists || err != nil {
		return err
	}
	created, err := s.vault.Create(ctx, content)
	if err != nil {
		return fmt.Errorf("restoring the key of the fleet's history: %w", err)
	}
	if !bytes.Equal(created, content) {
		return &OtherKeyError{Place: s.vault.String()}
	}
	_, err = s.use(content)
	return err
}

// Signer returns the signer of this installation's log.
func (s *Sealed) Signer(ctx context.Context) (*translog.Signer, error) {
	keys, err := s.load(ctx)
	if err == nil && keys == nil {
		err = errors.New("the history has no key yet: the first change creates it")
	}
	if err != nil {
		return nil, err
	}
	return keys.key.Signer(s.cluster)
}
