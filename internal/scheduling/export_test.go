package scheduling

// Ungrouped returns the request with every pod solved by itself.
func Ungrouped(request Request) Request {
	request.ungrouped = true
	return request
}
