package pvesim

import "strings"

// CommandResult is the result of a command in a guest.
type CommandResult struct {
	ExitCode       int
	Stdout, Stderr string
	// Looks is how many status queries report the command as still running.
	Looks int
}

// AgentExec runs a command for a guest's agent.
type AgentExec func(vmid int, args []string, input string) CommandResult

// commands contains the commands that guest agents received.
type commands struct {
	exec    AgentExec
	started map[int]CommandResult // by process ID
}

// SetAgentExec sets the function that runs the commands of guest agents. If it is nil,
// every command succeeds at once.
func (s *Server) SetAgentExec(exec AgentExec) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	s.state.commands.exec = exec
}

// agentExec starts a command. The caller must hold the lock.
func (r *request) agentExec(g *guest) map[string]any {
	known := &r.s.state.commands
	var result CommandResult
	if known.exec != nil {
		result = known.exec(g.id, strings.Split(r.p["command"], "\x00"), r.p["input-data"])
	}
	if known.started == nil {
		known.started = map[int]CommandResult{}
	}
	pid := g.pid + 1 + len(known.started)
	known.started[pid] = result
	return map[string]any{"pid": pid}
}

// agentExecStatus returns the status of a command. The caller must hold the lock.
func (r *request) agentExecStatus() (any, error) {
	pid := r.p.number("pid")
	result, ok := r.s.state.commands.started[pid]
	if !ok {
		return nil, dief("Agent error: PID %d does not exist", pid)
	}
	if result.Looks > 0 {
		result.Looks--
		r.s.state.commands.started[pid] = result
		return map[string]any{"exited": 0}, nil
	}
	status := map[string]any{"exited": 1, "exitcode": result.ExitCode}
	for name, text := range map[string]string{"out-data": result.Stdout, "err-data": result.Stderr} {
		if text != "" {
			status[name] = text
		}
	}
	return status, nil
}
