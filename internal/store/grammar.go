package store

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/numaform/numaform/generator"
	"github.com/numaform/numaform/modules"
)

// RefusedError reports a file below a fleet's directory that is not part of a fleet, and
// how to remove it. The fleet was not used.
type RefusedError struct {
	// Where is the directory, or the repository and its branch.
	Where string
	// Path is relative to the repository or the directory.
	Path string
	// Problem is the reason why the file is refused, and Fix the way to remove it.
	Problem, Fix string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("reading fleet %s: %s %s: nothing was done: %s", e.Where, printable(e.Path), e.Problem, e.Fix)
}

// printable returns a name for a message: quoted if a terminal could interpret part of it,
// and truncated if it is long.
func printable(name string) string {
	const most = 200
	more := ""
	if len(name) > most {
		name = name[:most]
		more = "…"
	}
	if !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(name) + more
	}
	return name + more
}

// listed returns up to maxListed names for a message.
func listed(names []string) string {
	var list []string
	for _, name := range names[:min(len(names), maxListed)] {
		list = append(list, printable(name))
	}
	text := strings.Join(list, ", ")
	if more := len(names) - maxListed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// maxListed limits the number of names in an error.
const maxListed = 5

// role is the role of a path below a fleet's directory.
type role int

const (
	// roleRefused paths are not part of a fleet, and reading the fleet fails.
	roleRefused role = iota
	// roleSkipped paths are ignored, because they do not belong to numaform.
	roleSkipped
	// roleDir is a directory with files of the fleet.
	roleDir
	// roleFile is a file of the desired state.
	roleFile
	// roleRecord is a record of the history.
	roleRecord
)

// The patterns of names below a fleet's directory.
var (
	placeDir   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	hashDir    = regexp.MustCompile(`^[0-9a-f]{16}$`)
	moduleFile = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}\.tf$`)
	vmFile     = regexp.MustCompile(`^node-[a-z0-9]([a-z0-9-]{0,126}[a-z0-9])?\.tf$`)
	// templateFile matches the file of a template.
	templateFile = regexp.MustCompile(`^template-[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.tf$`)
	proposalFile = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\.diff$`)
	// pictureFile matches a picture of a proposal, NAME.REGION.HOST.svg.
	pictureFile = regexp.MustCompile(`^[a-z0-9][A-Za-z0-9._-]{0,250}\.svg$`)
	yearDir     = regexp.MustCompile(`^[0-9]{4}$`)
	monthDir    = regexp.MustCompile(`^[0-9]{2}$`)
	forgeFile   = regexp.MustCompile(`^(CODEOWNERS|README.*|LICENSE.*|\.gitattributes|\.gitlab-ci\.yml|\.github|\.gitea|\.forgejo)$`)
	stateFile   = regexp.MustCompile(`^(errored\.tfstate|.*\.tfstate|.*\.tfstate\..*|.*\.tfplan|\.terraform)$`)
	// temporary matches files left by an interrupted write, of this version and older
	// ones.
	temporary = regexp.MustCompile(`^\.(numaform-[0-9a-z]+\.tmp|.*\.(tf|json|gitignore)[0-9]+)$`)
)

// roleOf returns the role of a path relative to the fleet's directory.
func roleOf(name string, dir bool) role {
	parts := strings.Split(name, "/")
	inHost := len(parts) > 1 && placeDir.MatchString(parts[0]) && placeDir.MatchString(parts[1])
	switch {
	case parts[0] == "modules":
		return roleInModules(parts, dir)
	case len(parts) == 3 && !dir && inHost && (parts[2] == "main.tf" || vmFile.MatchString(parts[2])):
		return roleFile // also in a region named like the history
	case len(parts) > 2 && parts[0] == "templates":
		return roleInTemplates(parts, dir)
	case parts[0] == HistoryDir:
		return roleInHistory(parts, dir)
	case dir:
		if len(parts) == 1 && placeDir.MatchString(name) || len(parts) == 2 && inHost {
			return roleDir
		}
	case name == "fleet.json", name == ".gitignore":
		return roleFile
	case len(parts) == 3 && parts[2] == ".terraform.lock.hcl", isProposal(parts, dir):
		return roleSkipped
	}
	return roleRefused
}

// isProposal reports whether a path is the file or a picture of a proposal, which is not part
// of the desired state.
func isProposal(parts []string, dir bool) bool {
	return len(parts) == 2 && parts[0] == proposalDir && !dir && (proposalFile.MatchString(parts[1]) || pictureFile.MatchString(parts[1]))
}

// roleInTemplates returns the role of a path below templates/<region>. The directory and
// the region can also be a region and a host.
func roleInTemplates(parts []string, dir bool) role {
	switch {
	case !placeDir.MatchString(parts[1]) || !placeDir.MatchString(parts[2]):
	case len(parts) == 3 && dir:
		return roleDir
	case len(parts) == 4 && !dir && (parts[3] == "main.tf" || templateFile.MatchString(parts[3])):
		return roleFile
	case len(parts) == 4 && !dir && parts[3] == ".terraform.lock.hcl":
		return roleSkipped
	}
	return roleRefused
}

func roleInModules(parts []string, dir bool) role {
	switch {
	case len(parts) > 4, dir != (len(parts) < 4),
		len(parts) > 1 && !slices.Contains(modules.Names(), parts[1]) && parts[1] != modules.TemplateModule,
		len(parts) > 2 && !hashDir.MatchString(parts[2]):
		return roleRefused
	case dir:
		return roleDir
	case moduleFile.MatchString(parts[3]):
		return roleFile
	}
	return roleRefused
}

func roleInHistory(parts []string, dir bool) role {
	id, isJSON := strings.CutSuffix(path.Base(parts[len(parts)-1]), ".json")
	switch {
	case len(parts) == 1 && dir,
		len(parts) == 2 && dir && yearDir.MatchString(parts[1]),
		len(parts) == 3 && dir && yearDir.MatchString(parts[1]) && monthDir.MatchString(parts[2]):
		return roleDir
	case dir || !isJSON || len(id) >= 100:
		return roleRefused
	case len(parts) == 2 && changeID.MatchString(strings.TrimSuffix(id, ".outcome")),
		len(parts) == 4 && changeID.MatchString(id) && gitRecordName(id) == strings.Join(parts, "/"):
		return roleRecord
	}
	return roleRefused
}

// isForgeFile reports whether the path is common at a repository's root, such as a README or
// a forge's configuration.
func isForgeFile(name string) bool { return forgeFile.MatchString(name) }

// isIgnored reports whether a path has a name that the engine, numaform, git or the file
// system uses for files of its own.
func isIgnored(name string) bool {
	base := path.Base(name)
	return name == PrivateDir || name == ".git" || name == "lost+found" || stateFile.MatchString(base) || temporary.MatchString(base) || base == generator.ImportFile || base == ".terraform.lock.hcl"
}

// census counts the files of a fleet against its limits.
type census struct {
	files, records int
	bytes          int64
	// folded maps the lower-case form of each path to the path, because two paths that
	// differ only in case are the same file on some file systems.
	folded map[string]string
}

// count adds a file, and returns the reason why a fleet must not contain it, or "": it
// exceeds a limit, or differs from another path only in upper and lower case.
func (c *census) count(name string, role role, size int64) string {
	if role == roleRecord {
		if c.records++; c.records > maxRecords {
			return fmt.Sprintf("exceeds the limit of %d records in a fleet", maxRecords)
		}
		if size > maxRecord {
			return fmt.Sprintf("has %d bytes: a record must have at most %d", size, maxRecord)
		}
		return ""
	}

	if c.folded == nil {
		c.folded = map[string]string{}
	}
	folded := strings.ToLower(name)
	if other, exists := c.folded[folded]; exists {
		return "differs from " + printable(other) + " only in upper and lower case"
	}
	c.folded[folded] = name
	if role != roleFile {
		return ""
	}
	c.files++
	c.bytes += size
	switch {
	case size > maxFile:
		return fmt.Sprintf("has %d bytes: a file of the fleet must have at most %d", size, maxFile)
	case c.files > maxFiles:
		return fmt.Sprintf("exceeds the limit of %d files in a fleet", maxFiles)
	case c.bytes > maxBytes:
		return fmt.Sprintf("exceeds the limit of %d bytes for all files of the fleet", maxBytes)
	}
	return ""
}
