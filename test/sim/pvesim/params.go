package pvesim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Limits of Proxmox's web server for the size of a body, in bytes.
const (
	maxBody   = 64 << 10
	maxUpload = 1 << 30
)

// refBool is Perl's name of a JSON boolean.
const refBool = "JSON::PP::Boolean"

// params are checked parameters.
type params map[string]string

func (p params) has(name string) bool  { _, ok := p[name]; return ok }
func (p params) flag(name string) bool { return p[name] == "1" }

// number returns an integer parameter, or 0.
func (p params) number(name string) int {
	n, _ := strconv.Atoi(p[name])
	return n
}

// upload is the file of a multipart request.
type upload struct {
	name string
	data []byte
}

// readParams reads the parameters of body and query. The query takes precedence.
func readParams(r *http.Request) (map[string]value, *upload, *apiError) {
	given := map[string]value{}
	var file *upload
	body, failed := readBody(r)
	if failed != nil {
		return nil, nil, failed
	}
	if r.Method == http.MethodPost || r.Method == http.MethodPut {
		if file, failed = bodyParams(r.Header.Get("Content-Type"), body, given); failed != nil {
			return nil, nil, failed
		}
	} else if len(body) > 0 {
		return nil, nil, &apiError{code: http.StatusNotImplemented, message: "Unexpected content for method '" + r.Method + "'", bare: true}
	}
	urlencodedParams(r.URL.RawQuery, given)
	delete(given, "_dc")
	return given, file, nil
}

// readBody returns the body. It refuses chunked and too large bodies. It reads even a too
// large body to the end, so that the client can read the response.
func readBody(r *http.Request) ([]byte, *apiError) {
	limit := int64(maxBody)
	isUpload := strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/form-data")
	if isUpload {
		limit = maxUpload
	}
	if len(r.TransferEncoding) > 0 {
		return nil, &apiError{code: http.StatusNotImplemented, message: "chunked transfer encoding not supported", bare: true}
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	if err != nil {
		return nil, &apiError{code: http.StatusBadRequest, message: "reading request: " + err.Error(), bare: true}
	}
	if int64(len(body)) > limit {
		_, _ = io.Copy(io.Discard, r.Body)
		return nil, &apiError{code: http.StatusNotImplemented, message: "for data too large", bare: true}
	}
	return body, nil
}

func bodyParams(contentType string, body []byte, given map[string]value) (*upload, *apiError) {
	kind, options, err := mime.ParseMediaType(contentType)
	if contentType != "" && err != nil {
		return nil, &apiError{code: 506, message: fmt.Sprintf("upload '%s' not implemented", contentType), bare: true}
	}
	switch kind {
	case "", "application/x-www-form-urlencoded":
		urlencodedParams(string(body), given)
	case "application/json":
		if err := jsonParams(body, given); err != nil {
			return nil, &apiError{code: http.StatusNotImplemented, message: err.Error(), bare: true}
		}
	case "multipart/form-data":
		file, err := multipartParams(body, options["boundary"], given)
		if err != nil {
			return nil, &apiError{code: http.StatusNotImplemented, message: "upload failed", bare: true}
		}
		return file, nil
	default:
		return nil, &apiError{code: 506, message: fmt.Sprintf("upload '%s' not implemented", kind), bare: true}
	}
	return nil, nil
}

// urlencodedParams adds the parameters in a URL-encoded text to given. It joins the values
// of a repeated key with NUL, as Proxmox does.
func urlencodedParams(text string, given map[string]value) {
	fresh := map[string]bool{}
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == '&' || r == ';' }) {
		key, val, _ := strings.Cut(part, "=")
		key, val = unescape(key), unescape(val)
		if old, ok := given[key]; ok && fresh[key] {
			val = old.text + "\x00" + val
		}
		fresh[key] = true
		given[key] = value{text: val}
	}
}

func unescape(text string) string {
	plain, err := url.QueryUnescape(text)
	if err != nil {
		return text
	}
	return plain
}

func jsonParams(body []byte, given map[string]value) error {
	if len(body) == 0 {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil {
		return errors.New("malformed JSON string")
	}
	for name, v := range object {
		if v != nil {
			given[name] = jsonValue(v)
		}
	}
	return nil
}

func jsonValue(v any) value {
	switch v := v.(type) {
	case string:
		return value{text: v}
	case json.Number:
		return value{text: v.String()}
	case bool:
		if v {
			return value{text: "1", ref: refBool}
		}
		return value{text: "0", ref: refBool}
	case []any:
		list := make([]string, 0, len(v))
		for _, item := range v {
			list = append(list, fmt.Sprint(item))
		}
		return value{list: list, ref: "ARRAY"}
	}
	return value{ref: "HASH"}
}

// multipartParams reads the fields and the single file, which must be in "filename".
func multipartParams(body []byte, boundary string, given map[string]value) (*upload, error) {
	reader := multipart.NewReader(bytes.NewReader(body), boundary)
	var file *upload
	for {
		part, err := reader.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading part: %w", err)
		}
		data, err := io.ReadAll(part)
		if err != nil {
			return nil, fmt.Errorf("reading part: %w", err)
		}
		if part.FileName() == "" {
			given[part.FormName()] = value{text: string(data)}
			continue
		}
		if part.FormName() != "filename" {
			return nil, errors.New("wrong field name for file upload")
		}
		file = &upload{name: part.FileName(), data: data}
		given["filename"] = value{text: file.name}
	}
	if file == nil {
		return nil, errors.New("no file")
	}
	return file, nil
}
