package bootstrap

// MaxWork is what one document may take.
const MaxWork = maxWork

// Spent returns the work that a template took.
func Spent(text string, values Values) (int, error) {
	left := newWork()
	_, err := execute(UserData, text, viewOf(&values), left)
	return maxWork - left.left, err
}
