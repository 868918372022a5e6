package proxmox

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"

	pve "github.com/luthermonson/go-proxmox"

	"github.com/numaform/numaform/fleet"
	"github.com/numaform/numaform/topology"
)

// seedDrive is the drive to which the node module attaches a seed.
const seedDrive = "ide2"

// SeedNameError reports a volume that is not a seed that numaform may write or delete.
type SeedNameError struct{ Volume string }

func (e *SeedNameError) Error() string {
	return fmt.Sprintf("volume %q is not named as a seed of numaform (STORAGE:iso/numaform-CLUSTER-VMID-KEY.iso): it is left alone", e.Volume)
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
		return err
	}
	var upid string
	path := fmt.Sprintf("/nodes/%s/storage/%s/upload", host, seed.Storage)
	err = c.sendAs(ctx, path, func(api *pve.Client) (err error) {
		upid, err = c.upload(ctx, api, path, volume[strings.LastIndex(volume, "/")+1:], image)
		return err
	})
	if err != nil {
		return fmt.Errorf("uploading seed %s: %w", volume, err)
	}
	if err := c.await(ctx, upid); err != nil {
		return fmt.Errorf("uploading seed %s: %w", volume, err)
	}
	return nil
}

// upload uploads a file with its own request, because go-proxmox' upload cannot be
// canceled. It returns the task that moves the file to its place.
func (c *Client) upload(ctx context.Context, api *pve.Client, path, name string, image []byte) (string, error) {
	body, kind, err := form(name, image)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.endpoints.bases[0]+path, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", kind)
	req.Header.Set("User-Agent", userAgent)
	c.authorize(req, api)
	res, err := c.http.Do(req)
	if err != nil {
		return "", err
	}
	answer, err := io.ReadAll(res.Body)
	_ = res.Body.Close() // the transport has read it completely
	if err != nil {
		return "", err
	}
	var task struct {
		Data string `json:"data"`
	}
	err = json.Unmarshal(answer, &task)
	return task.Data, err
}

// form returns the body of an upload and its content type.
func form(name string, image []byte) (body []byte, kind string, err error) {
	sum := sha256.Sum256(image)
	var buffer bytes.Buffer
	writer := multipart.NewWriter(&buffer)
	// Proxmox requires the file after all other fields.
	for _, field := range [][2]string{
		{"content", "iso"}, {"checksum-algorithm", "sha256"}, {"checksum", hex.EncodeToString(sum[:])},
	} {
		if err := writer.WriteField(field[0], field[1]); err != nil {
			return nil, "", err
		}
	}
	part, err := writer.CreateFormFile("filename", name)
	if err != nil {
		return nil, "", err
	}
	if _, err := part.Write(image); err != nil {
		return nil, "", err
	}
	err = writer.Close()
	return buffer.Bytes(), writer.FormDataContentType(), err
}

// authorize adds the client's credential to a request.
func (c *Client) authorize(req *http.Request, api *pve.Client) {
	if login := c.credential(); login.TokenID != "" {
		req.Header.Set("Authorization", "PVEAPIToken="+login.TokenID+"="+login.TokenSecret)
		return
	}
	session := api.Session()
	req.AddCookie(&http.Cookie{Name: "PVEAuthCookie", Value: session.Ticket}) //nolint:gosec // a request's cookie has no attributes
	req.Header.Set("CSRFPreventionToken", session.CSRFPreventionToken)
}

// AttachSeed attaches a seed to the drive of an existing VM that lacks it: its creation
// was interrupted, and the engine ignores that drive on an imported VM.
func (c *Client) AttachSeed(ctx context.Context, vm Owned, volume string) error {
	config, err := c.configOf(ctx, vm)
	if err != nil {
		return fmt.Errorf("attaching seed %s: %w", volume, err)
	}
	if attached, _, _ := strings.Cut(config[seedDrive], ","); config == nil || attached == volume {
		return nil
	}
	params := map[string]any{seedDrive: volume + ",media=cdrom", "digest": config["digest"]}
	if err := c.send(ctx, http.MethodPut, vm.path()+"/config", params, nil); err != nil {
		return fmt.Errorf("attaching seed %s: %w", volume, err)
	}
	return nil
}

// DetachSeed removes a seed from its VM's drive, which remains, empty. It does nothing if
// the VM no longer exists or has something else in the drive.
func (c *Client) DetachSeed(ctx context.Context, vm Owned, volume string) error {
	config, err := c.configOf(ctx, vm)
	if err != nil {
		return fmt.Errorf("detaching seed %s: %w", volume, err)
	}
	if attached, _, _ := strings.Cut(config[seedDrive], ","); attached != volume {
		return nil
	}
	params := map[string]any{seedDrive: "none,media=cdrom", "digest": config["digest"]}
	if err := c.send(ctx, http.MethodPut, vm.path()+"/config", params, nil); err != nil {
		return fmt.Errorf("detaching seed %s: %w", volume, err)
	}
	return nil
}

// DeleteSeed deletes a seed's volume. A missing volume is not an error.
func (c *Client) DeleteSeed(ctx context.Context, host topology.HostName, volume string) error {
	seed, ok := fleet.ParseSeed(volume)
	if !ok {
		return &SeedNameError{Volume: volume}
	}
	var upid string
	path := fmt.Sprintf("/nodes/%s/storage/%s/content/%s", host, seed.Storage, volume)
	if err := c.send(ctx, http.MethodDelete, path, nil, &upid); err != nil {
		return fmt.Errorf("deleting seed %s: %w", volume, err)
	}
	if upid == "" { // it was done synchronously
		return nil
	}
	if err := c.await(ctx, upid); err != nil {
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
		return nil, fmt.Errorf("listing seeds: %w", err)
	}
	var seeds []fleet.Seed
	for _, storage := range storages {
		if storage.Active == 0 {
			continue
		}
		var volumes []struct {
			ID string `json:"volid"`
		}
		path := fmt.Sprintf("/nodes/%s/storage/%s/content?content=iso", host, url.PathEscape(storage.Storage))
		if err := c.get(ctx, path, &volumes); err != nil {
			return nil, fmt.Errorf("listing seeds: %w", err)
		}
		for _, volume := range volumes {
			if seed, ok := fleet.ParseSeed(volume.ID); ok {
				seeds = append(seeds, seed)
			}
		}
	}
	slices.SortFunc(seeds, func(a, b fleet.Seed) int { return cmp.Compare(a.Volume, b.Volume) })
	return seeds, nil
}
