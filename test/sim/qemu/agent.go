package qemu

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"time"
)

// Time limits of Proxmox VE for commands of the guest agent (qemu-server 9.2.6,
// src/PVE/QemuServer/Agent.pm:90, src/PVE/QMPClient.pm:104-166).
const (
	pingLimit     = 3 * time.Second
	agentLimit    = 5 * time.Second
	shutdownLimit = 10 * time.Minute
)

// AgentError is an error response of a guest agent.
type AgentError struct{ Desc string }

func (e *AgentError) Error() string { return e.Desc }

// Agent runs a command of the guest's agent, such as guest-ping, and returns its result. It
// returns an AgentError if the agent rejects the command, and another error if the agent
// does not respond in time. As in Proxmox VE, a synchronization precedes each command, so
// that late responses to earlier commands are skipped (qemu-server 9.2.6,
// src/PVE/QMPClient.pm:292-306).
func (h *Hypervisor) Agent(ctx context.Context, vmid int, command string, arguments map[string]any) (json.RawMessage, error) {
	limit := agentLimit
	switch command {
	case "guest-ping":
		limit = pingLimit
	case "guest-shutdown":
		limit = shutdownLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(h.dir(vmid), "qga"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	h.mu.Lock()
	h.synced++
	id := h.synced
	h.mu.Unlock()
	sync := map[string]any{"execute": "guest-sync-delimited", "arguments": map[string]any{"id": id}}
	run := map[string]any{"execute": command}
	if len(arguments) > 0 {
		run["arguments"] = arguments
	}
	encoder := json.NewEncoder(conn)
	if err := errors.Join(encoder.Encode(sync), encoder.Encode(run)); err != nil {
		return nil, fmt.Errorf("%s: %w", command, err)
	}
	result, err := readAgent(conn, id)
	if errors.Is(err, io.EOF) && (command == "guest-shutdown" || strings.HasPrefix(command, "guest-suspend-")) {
		return nil, nil // these commands can close the connection without a response
	}
	if ctx.Err() != nil && err != nil {
		return nil, fmt.Errorf("%s: got timeout", command)
	}
	return result, err
}

// readAgent reads the response to the synchronization with this ID, and the next response.
func readAgent(conn io.Reader, id int) (json.RawMessage, error) {
	lines := bufio.NewReader(conn)
	for synced := false; ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		line = line[bytes.LastIndexByte(line, 0xff)+1:]
		var response struct {
			Return json.RawMessage
			Error  *struct{ Desc string }
		}
		switch err := json.Unmarshal(line, &response); {
		case !synced:
			synced = err == nil && string(response.Return) == fmt.Sprint(id)
		case err != nil:
			return nil, err
		case response.Error != nil:
			return nil, &AgentError{Desc: response.Error.Desc}
		default:
			return response.Return, nil
		}
	}
}
