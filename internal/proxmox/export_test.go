package proxmox

import "time"

// PathTemplate exports pathTemplate, because its test requires all kinds of paths, and
// a client requests only some.
func PathTemplate(path string) string { return pathTemplate(path) }

// TaskPause and NextPause export the delays between queries of a task.
const TaskPause = taskPause

func NextPause(last, soFar time.Duration) time.Duration { return nextPause(last, soFar) }
