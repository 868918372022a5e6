package store

import "k8s.io/utils/clock"

// Interrupt lets f end writes before they touch a file.
func (d *Directory) Interrupt(f func(name string) error) { d.interrupt = f }

// Interrupt lets f end writes before each of their steps.
func (g *Git) Interrupt(f func(name string) error) { g.root.interrupt = f }

// Interrupt lets f end writes before each of their steps.
func (c *ConfigMap) Interrupt(f func(name string) error) { c.interrupt = f }

// SetClock replaces the clock of locks.
func (c *ConfigMap) SetClock(clock clock.WithTicker) { c.clock = clock }
