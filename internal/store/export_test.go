package store

// Interrupt lets f end writes before they touch a file.
func (d *Directory) Interrupt(f func(name string) error) { d.interrupt = f }
