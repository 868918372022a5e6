package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// Hello is the line that a simulator prints when it is ready: the address of its control
// port, or the error that prevented its start.
type Hello struct {
	Control string `json:"control,omitempty"`
	Error   string `json:"error,omitempty"`
}

// Run runs a simulator for the parent process, which holds the other ends of its standard
// input and output. It reads a configuration, passes it to start, which returns the handler
// of control requests, and prints a Hello. It ends when the input is closed, so it never
// outlives its parent.
func Run[Config any](ctx context.Context, in io.Reader, out io.Writer, start func(context.Context, Config) (http.Handler, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	handler, err := configured(ctx, in, start)
	if err == nil {
		err = Serve(ctx, "127.0.0.1:0", handler, func(url string) {
			_ = json.NewEncoder(out).Encode(Hello{Control: url}) // fails only if the parent has ended, which also ends the input
			go func() {
				defer cancel()
				_, _ = io.Copy(io.Discard, in)
			}()
		})
	}
	if err != nil {
		return errors.Join(err, json.NewEncoder(out).Encode(Hello{Error: err.Error()}))
	}
	return nil
}

func configured[Config any](ctx context.Context, in io.Reader, start func(context.Context, Config) (http.Handler, error)) (http.Handler, error) {
	var config Config
	if err := json.NewDecoder(in).Decode(&config); err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	return start(ctx, config)
}
