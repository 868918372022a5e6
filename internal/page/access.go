package page

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

// Root is the path of the page. Users need the verb get on this non-resource URL.
const Root = "/numaform/"

const (
	// allowedFor is how long a token is accepted without another review.
	allowedFor = time.Minute
	// maxSessions is how many accepted tokens are known.
	maxSessions = 256
	// reviewsPerSecond and reviewBurst limit the reviews of tokens that were not accepted
	// before, so that requests with wrong tokens do not load the API server.
	reviewsPerSecond = 5
	reviewBurst      = 30
	// maxToken is far above the length of tokens of the API server.
	maxToken = 16 << 10
	// reviewTimeout limits the time of a review.
	reviewTimeout = 10 * time.Second
)

// Access decides by the API server who may read the page: a token must belong to a user who
// may get the non-resource URL Root.
type Access struct {
	client  kubernetes.Interface
	clock   clock.PassiveClock
	limiter flowcontrol.PassiveRateLimiter

	// mu guards sessions, which contain the time of the last review by the hash of a token.
	mu       sync.Mutex
	sessions *lru.Cache
}

// NewAccess returns the access by the API server of a client.
func NewAccess(client kubernetes.Interface, clk clock.PassiveClock) *Access {
	return &Access{
		client: client, clock: clk, sessions: lru.New(maxSessions),
		limiter: flowcontrol.NewTokenBucketPassiveRateLimiter(reviewsPerSecond, reviewBurst),
	}
}

// check returns the HTTP status for a request: StatusOK if its user may read the page.
// problem is a sentence for the user.
func (a *Access) check(r *http.Request) (code int, problem string) {
	token := tokenOf(r)
	if token == "" || len(token) > maxToken {
		return http.StatusUnauthorized, "This page requires a token of the Kubernetes API server."
	}
	session := sha256.Sum256([]byte(token))
	a.mu.Lock()
	value, known := a.sessions.Get(session)
	a.mu.Unlock()
	if known && a.clock.Since(value.(time.Time)) < allowedFor {
		return http.StatusOK, ""
	}
	if !known && !a.limiter.TryAccept() {
		return http.StatusTooManyRequests, "There are too many attempts to log in. Try again in a few seconds."
	}

	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	code, problem = a.review(ctx, token)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch code {
	case http.StatusOK:
		a.sessions.Add(session, a.clock.Now())
	case http.StatusUnauthorized, http.StatusForbidden:
		a.sessions.Remove(session)
	}
	return code, problem
}

// review asks the API server whose token it is, and what the user may do.
func (a *Access) review(ctx context.Context, token string) (code int, problem string) {
	unavailable := func(err error) (int, string) {
		return http.StatusServiceUnavailable, fmt.Sprintf("The API server could not check the token: %v.", err)
	}
	who, err := a.client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return unavailable(err)
	case !who.Status.Authenticated:
		return http.StatusUnauthorized, "The API server does not accept this token. It may have expired."
	}

	user := who.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	may, err := a.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: Root, Verb: "get"},
		},
	}, metav1.CreateOptions{})
	switch {
	case err != nil:
		return unavailable(err)
	case !may.Status.Allowed:
		return http.StatusForbidden, fmt.Sprintf("User %s may not read this page: bind the user to the ClusterRole of its readers, which allows get on the non-resource URL "+Root+".", user.Username)
	}
	return http.StatusOK, ""
}

// tokenOf returns the token of a request: a bearer token, or the password of a browser's login
// with any user name.
func tokenOf(r *http.Request) string {
	if _, password, ok := r.BasicAuth(); ok {
		return strings.TrimSpace(password)
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}
