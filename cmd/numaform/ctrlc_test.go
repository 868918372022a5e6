package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ctrlC runs a program in a terminal, presses Ctrl-C once, prints the screen, and logs the
// time from Ctrl-C until the answer of numaform: ctrl-c CODE TEXT PROGRAM ARG… It presses
// Ctrl-C when the screen contains TEXT or, if TEXT is empty, when ctrl-c itself is
// interrupted. It fails unless the program's exit code is CODE.
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
	fmt.Fprintf(os.Stderr, "answered Ctrl-C after %s\n", answered.Round(100*time.Microsecond))
}

// interrupted runs a command and presses Ctrl-C. It returns the screen, the time from
// Ctrl-C until the answer, and the exit code.
func interrupted(text string, command []string) (screen []byte, answered time.Duration, code int, err error) {
	keyboard, terminal, err := openTerminal()
	if err != nil {
		return nil, 0, 0, err
	}
	defer func() { _ = keyboard.Close() }()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt)
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

	var pressed time.Time
	before := 0 // the length of the screen before Ctrl-C
	for shown := range output(keyboard, signals) {
		screen = append(screen, shown...)
		switch {
		case !pressed.IsZero():
			if answered == 0 && bytes.Contains(screen[before:], []byte("numaform: ")) {
				answered = time.Since(pressed)
			}
		case shown == nil, text != "" && bytes.Contains(screen, []byte(text)):
			pressed = time.Now()
			before = len(screen)
			if _, err := keyboard.WriteString("\x03"); err != nil {
				return screen, 0, 0, err
			}
		}
	}
	err = program.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() {
		err = nil
	}
	if err == nil && answered == 0 {
		err = errors.New("numaform did not answer Ctrl-C, or ended before it")
	}
	return screen, answered, program.ProcessState.ExitCode(), err
}

// output returns a channel that receives what a program writes to a terminal, and nil for
// each signal. The channel is closed when the program closes the terminal.
func output(keyboard *os.File, signals <-chan os.Signal) <-chan []byte {
	read := make(chan []byte)
	go func() {
		defer close(read)
		for {
			buffer := make([]byte, 4096)
			n, err := keyboard.Read(buffer)
			if err != nil {
				return
			}
			read <- buffer[:n]
		}
	}()
	all := make(chan []byte)
	go func() {
		defer close(all)
		for {
			select {
			case shown, ok := <-read:
				if !ok {
					return
				}
				all <- shown
			case <-signals:
				all <- nil
			}
		}
	}()
	return all
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
