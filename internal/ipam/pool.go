package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/numaform/numaform/topology"
)

// Config is a pool of static addresses in one subnet, as numaform.yaml configures it.
type Config struct {
	Name string `yaml:"name"`
	// Subnet is the network with its prefix length: 192.168.1.0/24.
	Subnet string `yaml:"subnet"`
	// Ranges and Exclude contain addresses, ranges such as 192.168.1.10-192.168.1.20, and
	// networks such as 192.168.1.64/26. No Ranges means the whole subnet.
	Ranges  []string `yaml:"ranges"`
	Exclude []string `yaml:"exclude"`
	// Gateway may be empty.
	Gateway       string   `yaml:"gateway"`
	DNSServers    []string `yaml:"dns_servers"`
	SearchDomains []string `yaml:"search_domains"`
}

// mostAddresses is how many addresses of a pool are used. More than a fleet needs, it keeps
// the numbers of an IPv6 network small.
const mostAddresses = 1 << 20

var (
	poolName     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	searchDomain = regexp.MustCompile(`^([A-Za-z0-9_]([-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_]([-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?$`)
)

// Parse returns the pool, or an error for each mistake in it.
func Parse(c Config) (topology.AddressPool, error) {
	pool := topology.AddressPool{Name: c.Name, SearchDomains: c.SearchDomains}
	var mistakes []error
	mistake := func(format string, args ...any) { mistakes = append(mistakes, fmt.Errorf(format, args...)) }
	if !poolName.MatchString(c.Name) {
		mistake("name %q: must be 1 to 63 characters of a-z, 0-9 and -, and begin and end with a letter or digit", c.Name)
	}
	for i, domain := range c.SearchDomains {
		if len(domain) > 253 || !searchDomain.MatchString(domain) {
			mistake("search_domains[%d] %q: must be a domain such as lab.example", i, domain)
		}
	}
	servers := make([]netip.Addr, 0, len(c.DNSServers))
	for i, text := range c.DNSServers {
		server, err := address(text)
		if err != nil {
			mistake("dns_servers[%d] %q: must be an IP address such as 192.168.1.1", i, text)
			continue
		}
		servers = append(servers, server)
	}
	pool.DNSServers = servers

	subnet, err := netip.ParsePrefix(c.Subnet)
	if err != nil || subnet.Addr().Is4In6() {
		mistake("subnet %q: must be a network with its prefix length, such as 192.168.1.0/24 or fd00:10::/64", c.Subnet)
		return pool, errors.Join(mistakes...)
	}
	if subnet.Masked() != subnet {
		mistake("subnet %q: is the address of a host: write the network %s", c.Subnet, subnet.Masked())
	}
	pool.Subnet = subnet.Masked()
	hosts := hostsOf(pool.Subnet)
	if c.Gateway != "" {
		gateway, err := address(c.Gateway)
		switch {
		case err != nil:
			mistake("gateway %q: must be an IP address such as 192.168.1.1", c.Gateway)
		case !hosts.Contains(gateway):
			mistake("gateway %q: is not the address of a host in the subnet %s: correct one of the two", c.Gateway, pool.Subnet)
		default:
			pool.Gateway = gateway
		}
	}

	ranges, wrong := parseRanges("ranges", c.Ranges, pool.Subnet)
	mistakes = append(mistakes, wrong...)
	excluded, wrong := parseRanges("exclude", c.Exclude, pool.Subnet)
	mistakes = append(mistakes, wrong...)
	if len(c.Ranges) == 0 {
		ranges = []topology.AddressRange{hosts}
	}
	var wanted []topology.AddressRange
	for _, r := range ranges {
		// The network's own address and the broadcast address are no mistake in a range,
		// because 192.168.1.0/25 is a natural way to write one.
		if clipped, some := intersect(r, hosts); some {
			wanted = append(wanted, clipped)
		}
	}
	for _, other := range append(servers, pool.Gateway) {
		if other.IsValid() {
			excluded = append(excluded, topology.AddressRange{First: other, Last: other})
		}
	}
	if len(mistakes) > 0 {
		return pool, errors.Join(mistakes...)
	}

	pool.Ranges = bounded(subtract(union(wanted), excluded))
	if len(pool.Ranges) == 0 {
		return pool, errors.New("contains no address: its ranges have only the addresses in exclude, of the gateway and of DNS servers, and of the network itself: add ranges")
	}
	return pool, nil
}

// Overlap returns an address that two pools have in common, if there is one.
func Overlap(a, b *topology.AddressPool) (netip.Addr, bool) {
	for _, r := range a.Ranges {
		for _, other := range b.Ranges {
			if both, some := intersect(r, other); some {
				return both.First, true
			}
		}
	}
	return netip.Addr{}, false
}

// Size returns the number of addresses of a pool.
func Size(pool *topology.AddressPool) int {
	size := 0
	for _, r := range pool.Ranges {
		size += count(r)
	}
	return size
}

// address parses an address without a zone.
func address(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err == nil && (a.Zone() != "" || a.Is4In6()) {
		err = errors.New("must be a plain IPv4 or IPv6 address")
	}
	return a, err
}

// parseRanges parses the ranges of a key, which must be in the subnet.
func parseRanges(key string, texts []string, subnet netip.Prefix) (ranges []topology.AddressRange, mistakes []error) {
	for i, text := range texts {
		r, err := parseRange(text)
		if err == nil && (!subnet.Contains(r.First) || !subnet.Contains(r.Last)) {
			err = fmt.Errorf("is not in the subnet %s: correct one of the two", subnet)
		}
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("%s[%d] %q: %w", key, i, text, err))
			continue
		}
		ranges = append(ranges, r)
	}
	return ranges, mistakes
}

var errRange = errors.New("must be an address, a range such as 192.168.1.10-192.168.1.20, or a network such as 192.168.1.64/26")

func parseRange(text string) (topology.AddressRange, error) {
	if prefix, err := netip.ParsePrefix(text); err == nil && !prefix.Addr().Is4In6() {
		if prefix != prefix.Masked() {
			return topology.AddressRange{}, fmt.Errorf("is the address of a host: write the network %s, or the address without /%d", prefix.Masked(), prefix.Bits())
		}
		return topology.AddressRange{First: prefix.Addr(), Last: last(prefix)}, nil
	}
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	first, err := address(strings.TrimSpace(from))
	if err != nil {
		return topology.AddressRange{}, errRange
	}
	end, err := address(strings.TrimSpace(to))
	if err != nil || end.BitLen() != first.BitLen() {
		return topology.AddressRange{}, errRange
	}
	if end.Less(first) {
		return topology.AddressRange{}, errors.New("ends before it begins: exchange the two addresses")
	}
	return topology.AddressRange{First: first, Last: end}, nil
}

// last returns the last address of a network.
func last(network netip.Prefix) netip.Addr {
	bytes := network.Masked().Addr().AsSlice()
	for bit := network.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 1 << (7 - bit%8)
	}
	a, _ := netip.AddrFromSlice(bytes)
	return a
}

// hostsOf returns the addresses of hosts in a subnet: not the network's own address, which
// in IPv6 belongs to its routers, and in IPv4 not the broadcast address. Networks with one
// or two addresses have neither (RFC 3021 and RFC 6164).
func hostsOf(subnet netip.Prefix) topology.AddressRange {
	r := topology.AddressRange{First: subnet.Addr(), Last: last(subnet)}
	if subnet.Addr().BitLen()-subnet.Bits() <= 1 {
		return r
	}
	r.First = r.First.Next()
	if subnet.Addr().Is4() {
		r.Last = r.Last.Prev()
	}
	return r
}

func intersect(a, b topology.AddressRange) (topology.AddressRange, bool) {
	if a.First.BitLen() != b.First.BitLen() {
		return topology.AddressRange{}, false
	}
	both := a
	if b.First.Compare(both.First) > 0 {
		both.First = b.First
	}
	if b.Last.Less(both.Last) {
		both.Last = b.Last
	}
	return both, both.First.Compare(both.Last) <= 0
}

// union sorts the ranges and joins those that overlap or touch.
func union(ranges []topology.AddressRange) []topology.AddressRange {
	slices.SortFunc(ranges, func(a, b topology.AddressRange) int { return a.First.Compare(b.First) })
	var joined []topology.AddressRange
	for _, r := range ranges {
		if n := len(joined); n > 0 && (r.First.Compare(joined[n-1].Last) <= 0 || r.First == joined[n-1].Last.Next()) {
			if joined[n-1].Last.Less(r.Last) {
				joined[n-1].Last = r.Last
			}
			continue
		}
		joined = append(joined, r)
	}
	return joined
}

// subtract returns the ranges without the addresses in excluded.
func subtract(ranges, excluded []topology.AddressRange) []topology.AddressRange {
	for _, x := range excluded {
		var left []topology.AddressRange
		for _, r := range ranges {
			both, some := intersect(r, x)
			if !some {
				left = append(left, r)
				continue
			}
			if r.First.Less(both.First) {
				left = append(left, topology.AddressRange{First: r.First, Last: both.First.Prev()})
			}
			if both.Last.Less(r.Last) {
				left = append(left, topology.AddressRange{First: both.Last.Next(), Last: r.Last})
			}
		}
		ranges = left
	}
	return ranges
}

// bounded returns the first mostAddresses addresses of the ranges.
func bounded(ranges []topology.AddressRange) []topology.AddressRange {
	var kept []topology.AddressRange
	left := mostAddresses
	for _, r := range ranges {
		if left == 0 {
			break
		}
		if n := count(r); n >= left {
			r.Last = plus(r.First, left-1)
			left = 0
		} else {
			left -= n
		}
		kept = append(kept, r)
	}
	return kept
}

// count returns the number of addresses in a range, at most mostAddresses.
func count(r topology.AddressRange) int {
	first, end := r.First.As16(), r.Last.As16()
	n := 0
	for i := range first {
		n = n<<8 + int(end[i]) - int(first[i])
		if n > mostAddresses {
			return mostAddresses
		}
	}
	return min(n+1, mostAddresses)
}

// plus returns the address n after a.
func plus(a netip.Addr, n int) netip.Addr {
	bytes := a.AsSlice()
	for i := len(bytes) - 1; i >= 0 && n > 0; i-- {
		n += int(bytes[i])
		bytes[i] = byte(n & 0xff)
		n >>= 8
	}
	sum, _ := netip.AddrFromSlice(bytes)
	return sum
}
