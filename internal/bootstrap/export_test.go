package bootstrap

// MaxWork is the budget of work for one document.
const MaxWork = maxWork

// Spent returns the work used by a template.
func Spent(text string, values Values) (int, error) {
	left := newWork()
	_, err := execute(UserData, text, values, left)
	return maxWork - left.left, err
}
