package pvesim

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// ticketLife is the lifetime of a ticket.
const ticketLife = 2 * time.Hour

// rootUser may do everything with a ticket, but not with its tokens.
const rootUser = "root@pam"

// identity is the sender of a request: a user, or a token as "user@realm!name".
type identity string

func (i identity) isRoot() bool  { return i == rootUser }
func (i identity) isToken() bool { return strings.Contains(string(i), "!") }

// user returns the user, or the user of a token.
func (i identity) user() string {
	user, _, _ := strings.Cut(string(i), "!")
	return user
}

// unauthorized returns a 401 of the web server, which has no body.
func unauthorized(format string, args ...any) *apiError {
	return &apiError{code: http.StatusUnauthorized, message: fmt.Sprintf(format, args...), bare: true}
}

func newSecret() []byte {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // crypto/rand never fails
	return secret
}

// authenticate identifies the sender of the request by token or ticket. Writes with a
// ticket require the ticket's CSRF token.
//
// Since pve-manager 9.1.5, the response does not contain the reason why a credential is
// refused: PVE/HTTPServer.pm:87-104 of 9.2.11.
func (a *access) authenticate(r *http.Request, now time.Time) (identity, *apiError) {
	who, failed := a.whoAsks(r, now)
	if failed != nil && failed.code == http.StatusUnauthorized && a.hidesReason && failed.message != noTicket {
		failed.message = "Authentication failed!"
	}
	if failed != nil {
		return "", failed
	}
	if !who.isToken() && r.Method != http.MethodGet && !a.csrfFits(who.user(), r.Header.Get("CSRFPreventionToken"), now) {
		return "", unauthorized("Permission denied - invalid csrf token")
	}
	return who, nil
}

// noTicket is the response to a request without credentials.
const noTicket = "No ticket"

// whoAsks returns the request's token, or the user of its ticket.
func (a *access) whoAsks(r *http.Request, now time.Time) (identity, *apiError) {
	if header := r.Header.Get("Authorization"); strings.HasPrefix(header, "PVEAPIToken") {
		return a.byToken(strings.TrimLeft(strings.TrimPrefix(header, "PVEAPIToken"), " ="), now)
	}
	cookie, err := r.Cookie("PVEAuthCookie")
	if err != nil {
		return "", unauthorized(noTicket)
	}
	ticket, err := url.PathUnescape(cookie.Value)
	if err != nil {
		ticket = cookie.Value
	}
	user, ok := a.verify("PVE", ticket, now)
	if !ok {
		return "", unauthorized("permission denied - invalid PVE ticket")
	}
	return identity(user), nil
}

func (a *access) byToken(text string, now time.Time) (identity, *apiError) {
	at := strings.LastIndex(text, "=")
	if at < 0 {
		return "", unauthorized("no tokenid specified")
	}
	id, secret := text[:at], text[at+1:]
	user, name, ok := strings.Cut(id, "!")
	if !ok {
		return "", unauthorized("value does not look like a valid token ID")
	}
	a.table.RLock()
	defer a.table.RUnlock()
	if _, known := a.users[user]; !known {
		return "", unauthorized("no such user ('%s')", user)
	}
	token, known := a.tokens[id]
	if !known {
		return "", unauthorized("no such token '%s' for user '%s'", name, user)
	}
	if !token.Expire.IsZero() && token.Expire.Before(now) {
		return "", unauthorized("token '%s' access expired", name)
	}
	if !hmac.Equal([]byte(token.Secret), []byte(secret)) {
		return "", unauthorized("invalid token value!")
	}
	return identity(id), nil
}

// login handles POST /access/ticket, with a password or a ticket to renew.
func login(r *request) (any, error) {
	user := r.p["username"]
	if realm := r.p["realm"]; realm != "" && !strings.HasSuffix(user, "@"+realm) {
		user += "@" + realm
	}
	now := r.s.cfg.Clock.Now()
	a := r.s.access
	a.table.RLock()
	want, known := a.users[user]
	a.table.RUnlock()
	owner, renewed := a.verify("PVE", r.p["password"], now)
	renews := renewed && owner == user
	if fits := known && want != "" && hmac.Equal([]byte(want), []byte(r.p["password"])); !renews && !fits {
		return nil, &apiError{code: http.StatusUnauthorized, message: "authentication failure"}
	}
	return map[string]any{
		"username":            user,
		"ticket":              a.sign("PVE", user, now),
		"CSRFPreventionToken": a.csrfToken(user, now),
		"clustername":         r.s.cfg.Name,
		"cap":                 a.capabilities(identity(user)),
	}, nil
}

// sign returns a ticket: prefix:user:time::signature.
func (a *access) sign(prefix, user string, now time.Time) string {
	body := fmt.Sprintf("%s:%s:%08X", prefix, user, now.Unix())
	return body + "::" + a.mac(body)
}

func (a *access) mac(body string) string {
	sum := hmac.New(sha256.New, a.secret)
	sum.Write([]byte(body))
	return base64.StdEncoding.EncodeToString(sum.Sum(nil))
}

// verify returns the user of a ticket, if the signature is valid and the ticket has not
// expired.
func (a *access) verify(prefix, ticket string, now time.Time) (string, bool) {
	body, signature, ok := strings.Cut(ticket, "::")
	if !ok || !hmac.Equal([]byte(a.mac(body)), []byte(signature)) {
		return "", false
	}
	parts := strings.Split(body, ":")
	if len(parts) != 3 || parts[0] != prefix || !fresh(parts[2], now) {
		return "", false
	}
	a.table.RLock()
	defer a.table.RUnlock()
	_, known := a.users[parts[1]]
	return parts[1], known
}

func fresh(stamp string, now time.Time) bool {
	seconds, err := strconv.ParseInt(stamp, 16, 64)
	age := now.Sub(time.Unix(seconds, 0))
	return err == nil && age > -5*time.Minute && age < ticketLife
}

func (a *access) csrfToken(user string, now time.Time) string {
	stamp := fmt.Sprintf("%08X", now.Unix())
	return stamp + ":" + a.mac("csrf:"+stamp+":"+user)
}

func (a *access) csrfFits(user, token string, now time.Time) bool {
	stamp, signature, _ := strings.Cut(token, ":")
	return fresh(stamp, now) && hmac.Equal([]byte(a.mac("csrf:"+stamp+":"+user)), []byte(signature))
}
