package operator

// Decode reads the text of a numaform.yaml alone: no environment, paths or defaults.
func Decode(text []byte) (Config, error) {
	var config Config
	err := decode(text, &config)
	return config, err
}
