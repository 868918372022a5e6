package proxmox

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	pve "github.com/luthermonson/go-proxmox"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

const (
	// seedDrive is the drive to which the node module attaches a seed.
	seedDrive = "ide2"
	// seedLabel is the volume label by which guests find a NoCloud seed.
	seedLabel = "cidata"
	// maxSeed is the maximum total size of a seed's files, in bytes. It far exceeds what
	// guests need and is harmless for a host.
	maxSeed = 4 << 20
	// isoBlock is the block size of an ISO image, in bytes.
	isoBlock = 2048
)

// SeedNameError reports a volume that is not a seed that numaform may write or delete.
type SeedNameError struct{ Volume string }

func (e *SeedNameError) Error() string {
	return fmt.Sprintf("volume %q does not have the name of a numaform seed (STORAGE:iso/numaform-CLUSTER-VMID-KEY.iso), so it was not changed", e.Volume)
}

// UploadSeed uploads an ISO image with files to a host's storage, replacing an existing
// one. It returns when the upload is complete.
func (c *Client) UploadSeed(ctx context.Context, host topology.HostName, volume string, files map[string][]byte) error {
	seed, ok := fleet.ParseSeed(volume)
	if !ok {
		return &SeedNameError{Volume: volume}
	}
	image, err := seedImage(files)
	if err != nil {
		return fmt.Errorf("creating the seed: %w", err)
	}
	var upid string
	path := fmt.Sprintf("/nodes/%s/storage/%s/upload", host, seed.Storage)
	err = c.sendAs(ctx, path, func(api *pve.Client) (err error) {
		upid, err = c.upload(ctx, api, path, volume[strings.LastIndex(volume, "/")+1:], image)
		return err
	})
	if err == nil {
		err = c.await(ctx, upid)
	}
	if err != nil {
		return fmt.Errorf("uploading seed %s: %w", volume, err)
	}
	return nil
}

// upload uploads a file with its own request, because the upload of go-proxmox cannot
// be canceled. It returns the task that moves the file to its place.
func (c *Client) upload(ctx context.Context, api *pve.Client, path, name string, image []byte) (string, error) {
	sum := sha256.Sum256(image)
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	// Writing to a buffer does not fail. Proxmox requires the file after all other fields.
	_ = form.WriteField("content", "iso")
	_ = form.WriteField("checksum-algorithm", "sha256")
	_ = form.WriteField("checksum", hex.EncodeToString(sum[:]))
	part, err := form.CreateFormFile("filename", name)
	if err != nil {
		return "", err
	}
	_, _ = part.Write(image)
	if err := form.Close(); err != nil {
		return "", err
	}

	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.transport.urls[0]+path, bytes.NewReader(body.Bytes()))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", form.FormDataContentType())
	req.Header.Set("User-Agent", userAgent)
	if login := c.credential(); login.TokenID != "" {
		req.Header.Set("Authorization", "PVEAPIToken="+login.TokenID+"="+login.TokenSecret)
	} else {
		session := api.Session()
		req.AddCookie(&http.Cookie{Name: "PVEAuthCookie", Value: session.Ticket}) //nolint:gosec // a request's cookie has no attributes
		req.Header.Set("CSRFPreventionToken", session.CSRFPreventionToken)
	}

	res, err := c.http.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	var task struct {
		Data string `json:"data"`
	}
	err = json.NewDecoder(res.Body).Decode(&task)
	return task.Data, err
}

// AttachSeed attaches a seed to the drive of an existing VM that lacks the seed because the
// VM's creation was interrupted. It does nothing if the VM does not exist. The engine
// ignores that drive on an imported VM.
func (c *Client) AttachSeed(ctx context.Context, vm Owned, volume string) error {
	err := c.setSeedDrive(ctx, vm, volume, func(attached string) bool { return attached != volume })
	if err != nil {
		return fmt.Errorf("attaching seed %s: %w", volume, err)
	}
	return nil
}

// DetachSeed removes a seed from its VM's drive. The drive remains, but is empty. It does
// nothing if the VM no longer exists or has something else in the drive.
func (c *Client) DetachSeed(ctx context.Context, vm Owned, volume string) error {
	err := c.setSeedDrive(ctx, vm, "none", func(attached string) bool { return attached == volume })
	if err != nil {
		return fmt.Errorf("detaching seed %s: %w", volume, err)
	}
	return nil
}

// setSeedDrive sets the volume of a VM's seed drive, if the VM exists and the attached
// volume has to change.
func (c *Client) setSeedDrive(ctx context.Context, vm Owned, volume string, change func(attached string) bool) error {
	config, err := c.configOf(ctx, vm)
	if err != nil || config == nil {
		return err
	}
	if attached, _, _ := strings.Cut(config[seedDrive], ","); !change(attached) {
		return nil
	}
	params := map[string]any{seedDrive: volume + ",media=cdrom", "digest": config["digest"]}
	return c.send(ctx, http.MethodPut, vm.path()+"/config", params, nil)
}

// DeleteSeed deletes a seed's volume. A missing volume is not an error.
func (c *Client) DeleteSeed(ctx context.Context, host topology.HostName, volume string) error {
	seed, ok := fleet.ParseSeed(volume)
	if !ok {
		return &SeedNameError{Volume: volume}
	}
	var upid string
	path := fmt.Sprintf("/nodes/%s/storage/%s/content/%s", host, seed.Storage, volume)
	err := c.send(ctx, http.MethodDelete, path, nil, &upid)
	if err == nil && upid != "" { // otherwise it was done synchronously
		err = c.await(ctx, upid)
	}
	if err != nil {
		return fmt.Errorf("deleting seed %s: %w", volume, err)
	}
	return nil
}

// Seeds returns the seeds on a host's storages, sorted by volume, of every numaform
// installation that uses the cluster. A seed on a shared storage is listed on each host.
func (c *Client) Seeds(ctx context.Context, host topology.HostName) ([]fleet.Seed, error) {
	var storages []struct {
		Storage string `json:"storage"`
		Active  number `json:"active"`
	}
	if err := c.get(ctx, fmt.Sprintf("/nodes/%s/storage?content=iso&enabled=1", host), &storages); err != nil {
		return nil, err
	}
	var seeds []fleet.Seed
	for _, storage := range storages {
		if storage.Active == 0 {
			continue
		}
		volumes, err := c.volumes(ctx, host, storage.Storage, "iso")
		if err != nil {
			return nil, err
		}
		for _, volume := range volumes {
			if seed, ok := fleet.ParseSeed(volume); ok {
				seeds = append(seeds, seed)
			}
		}
	}
	slices.SortFunc(seeds, func(a, b fleet.Seed) int { return cmp.Compare(a.Volume, b.Volume) })
	return seeds, nil
}

// Images returns the volumes of the disk images on a storage of a host.
func (c *Client) Images(ctx context.Context, host topology.HostName, storage string) ([]string, error) {
	return c.volumes(ctx, host, storage, "import")
}

// volumes returns the volumes of a content type on a storage of a host.
func (c *Client) volumes(ctx context.Context, host topology.HostName, storage, content string) ([]string, error) {
	var volumes []struct {
		ID string `json:"volid"`
	}
	if err := c.get(ctx, fmt.Sprintf("/nodes/%s/storage/%s/content?content=%s", host, url.PathEscape(storage), content), &volumes); err != nil {
		return nil, err
	}
	ids := make([]string, len(volumes))
	for i := range volumes {
		ids[i] = volumes[i].ID
	}
	return ids, nil
}

// seedImage returns an ISO image with files in its root. It has the Rock Ridge and Joliet
// extensions, so that all kinds of guests find the files under their full names. Its
// temporary files are readable only by this user, and deleted when it returns.
func seedImage(files map[string][]byte) (image []byte, err error) {
	size := 0
	for _, content := range files {
		size += len(content)
	}
	if size > maxSeed {
		return nil, fmt.Errorf("its documents have %d bytes in total: shorten them to at most %d", size, maxSeed)
	}
	dir, err := os.MkdirTemp("", "numaform-seed-")
	if err != nil {
		return nil, fmt.Errorf("%w: set TMPDIR to a writable directory", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	content := filepath.Join(dir, "content")
	if err := os.Mkdir(content, 0o700); err != nil {
		return nil, err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(content, filepath.Base(name)), text, 0o600); err != nil {
			return nil, err
		}
	}

	target := filepath.Join(dir, "seed.iso")
	out, err := os.OpenFile(target, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	written, err := iso9660.Create(file.New(out, false), 0, 0, isoBlock, content)
	if err != nil {
		return nil, err
	}
	if err := written.Finalize(iso9660.FinalizeOptions{RockRidge: true, Joliet: true, VolumeIdentifier: seedLabel}); err != nil {
		return nil, err
	}
	if image, err = os.ReadFile(target); err != nil {
		return nil, err
	}
	// A drive has whole blocks: guests could not read an incomplete last one.
	return append(image, make([]byte, (isoBlock-len(image)%isoBlock)%isoBlock)...), nil
}
