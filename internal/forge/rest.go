package forge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
)

// rest makes requests to a JSON API without a client library.
type rest struct {
	connection
	// root is the repository's address in the API.
	root *url.URL
	// authorization is the header with the token.
	authorization, scheme string
	words                 words
}

// words are the names by which the APIs of GitLab and Gitea differ where they are otherwise
// the same.
type words struct {
	// pulls is the collection of pull requests, update the method that changes one, and body
	// the field with its text.
	pulls, update, body string
	// closed are the field and the value that close one.
	closed [2]string
	// commented is the collection of what has comments, and comments the collection of those.
	commented, comments string
}

// Edit implements Client.
func (r *rest) Edit(ctx context.Context, number int, title, body string) error {
	if err := r.checkText(title, body); err != nil {
		return err
	}
	return r.change(ctx, "editing", number, map[string]string{"title": title, r.words.body: body})
}

// Close implements Client.
func (r *rest) Close(ctx context.Context, number int, comment string) error {
	if comment != "" {
		_, err := r.call(ctx, http.MethodPost, nil, map[string]string{"body": comment}, nil, r.words.commented, strconv.Itoa(number), r.words.comments)
		if err != nil {
			return r.failed("commenting on "+request(number), request(number), err)
		}
	}
	return r.change(ctx, "closing", number, map[string]string{r.words.closed[0]: r.words.closed[1]})
}

// change changes fields of a pull request.
func (r *rest) change(ctx context.Context, doing string, number int, fields map[string]string) error {
	_, err := r.call(ctx, r.words.update, nil, fields, nil, r.words.pulls, strconv.Itoa(number))
	return r.failed(doing+" "+request(number), request(number), err)
}

// call makes a request below the repository's address, and decodes the answer into received
// unless it is nil. Each segment of the path is escaped. It returns the answer's header.
func (r *rest) call(ctx context.Context, method string, query url.Values, sent, received any, path ...string) (http.Header, error) {
	return r.callAt(ctx, r.root, method, query, sent, received, path...)
}

// callAt is call below another address.
func (r *rest) callAt(ctx context.Context, root *url.URL, method string, query url.Values, sent, received any, path ...string) (http.Header, error) {
	at := *root
	for _, segment := range path {
		at.RawPath = at.EscapedPath() + "/" + url.PathEscape(segment)
		at.Path += "/" + segment
	}
	at.RawQuery = query.Encode()
	var body bytes.Buffer
	if sent != nil {
		if err := json.NewEncoder(&body).Encode(sent); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, at.String(), &body)
	if err != nil {
		return nil, err
	}
	request.Header.Set(r.authorization, r.scheme+r.token)
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "numaform")
	if sent != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := r.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // it is read
	if received == nil {
		return response.Header, nil
	}
	if err := json.NewDecoder(response.Body).Decode(received); err != nil {
		return nil, fmt.Errorf("the answer is not the expected JSON: %w", err)
	}
	return response.Header, nil
}

// paged returns the parameters of a page. A server may return smaller pages.
func paged(number int, size string, query url.Values) url.Values {
	all := url.Values{"page": {strconv.Itoa(number)}, size: {strconv.Itoa(pageSize)}}
	for key, values := range query {
		all[key] = values
	}
	return all
}

// listed is failed for the error of a list, which can be a TooManyError.
func (c *connection) listed(doing, what string, err error) error {
	if errors.As(err, new(*TooManyError)) {
		return err
	}
	return c.failed(doing, what, err)
}
