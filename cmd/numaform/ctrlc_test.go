package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ctrlC runs a program in a terminal, presses Ctrl-C once when the screen contains a text,
// and prints the screen. It fails if the program does not end, or with another exit code:
// ctrl-c CODE TEXT PROGRAM ARG…
func ctrlC() {
	code, text := os.Args[1], os.Args[2]
	screen, answered, got, err := interrupted(text, os.Args[3:])
	fmt.Printf("%s", screen)
	if err == nil && strconv.Itoa(got) != code {
		err = fmt.Errorf("exit code %d, want %s", got, code)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "ctrl-c:", err)
		os.Exit(1)
	}
	fmt.Fprintf(os.Stderr, "answered Ctrl-C after %s\n", answered.Round(time.Millisecond))
}

// interrupted returns the screen of the program, the time from Ctrl-C until its next
// output, and its exit code.
func interrupted(text string, command []string) (screen []byte, answered time.Duration, code int, err error) {
	keyboard, terminal, err := openTerminal()
	if err != nil {
		return nil, 0, 0, err
	}
	defer func() { _ = keyboard.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	program := exec.CommandContext(ctx, command[0], command[1:]...)
	program.Stdin, program.Stdout, program.Stderr = terminal, terminal, terminal
	program.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = program.Start()
	_ = terminal.Close()
	if err != nil {
		return nil, 0, 0, err
	}

	const key, echo = "\x03", "^C"
	var pressed time.Time
	buffer := make([]byte, 4096)
	for {
		n, err := keyboard.Read(buffer) // fails when the program has ended
		screen = append(screen, buffer[:n]...)
		if !pressed.IsZero() && answered == 0 && !bytes.HasSuffix(screen, []byte(echo)) {
			answered = time.Since(pressed)
		}
		if err != nil {
			break
		}
		if pressed.IsZero() && bytes.Contains(screen, []byte(text)) {
			pressed = time.Now()
			if _, err := keyboard.WriteString(key); err != nil {
				return screen, 0, 0, err
			}
		}
	}
	err = program.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() {
		err = nil
	}
	if err == nil && pressed.IsZero() {
		err = fmt.Errorf("the program ended, but the screen never contained %q", text)
	}
	return screen, answered, program.ProcessState.ExitCode(), err
}

// openTerminal returns a new pseudo-terminal: the side of the user, and the side of a
// program.
func openTerminal() (keyboard, terminal *os.File, err error) {
	keyboard, err = os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	fd := int(keyboard.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		terminal, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		_ = keyboard.Close()
		return nil, nil, fmt.Errorf("opening a terminal: %w", err)
	}
	return keyboard, terminal, nil
}
