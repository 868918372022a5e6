package review

import (
	"context"
	"slices"
	"strings"

	"github.com/numaform/numaform/api/v1alpha1"
	"github.com/numaform/numaform/internal/forge"
	"github.com/numaform/numaform/internal/prtext"
)

// pictureOf returns the name of a host's picture: lab.pve-1 for lab/pve-1.
func pictureOf(host string) string { return strings.ReplaceAll(host, "/", ".") }

// hostsOf returns the hosts of a plan, sorted.
func hostsOf(plan *v1alpha1.ScalePlan) []string {
	var hosts []string
	for i := range plan.Spec.Hosts {
		hosts = append(hosts, plan.Spec.Hosts[i].Host)
	}
	return slices.Sorted(slices.Values(hosts))
}

// shown returns the pictures on the branch of a plan's pull request, whose head must be the
// recorded one. The branch is the only place that keeps them.
func (p *pass) shown(ctx context.Context, plan *v1alpha1.ScalePlan, request *forge.PullRequest) ([]prtext.Picture, error) {
	known := plan.Status.PullRequest
	if p.config.FileURLs == nil || request.URL == "" {
		return nil, nil
	}
	hosts := hostsOf(plan)
	have, cached := p.drawn[known.Head]
	if !cached {
		names := make([]string, len(hosts))
		for i, host := range hosts {
			names[i] = pictureOf(host)
		}
		var err error
		if have, err = p.config.Repository.Pictures(ctx, known.Branch, known.Head, plan.Name, names...); err != nil {
			return nil, err
		}
		p.drawn[known.Head] = have
	}
	var pictures []prtext.Picture
	for _, host := range hosts {
		if !slices.Contains(have, pictureOf(host)) {
			continue
		}
		content, page := p.config.FileURLs(request, known.Head, p.config.Repository.PicturePath(plan.Name, pictureOf(host)))
		pictures = append(pictures, prtext.Picture{Host: host, Content: content, Page: page})
	}
	return pictures, nil
}
