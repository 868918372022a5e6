#!/bin/sh
# Prints the exact topology of this Linux host as JSON, as `numaform topology collect`
# does: siblings, caches, NUMA nodes with memory, distances and huge pages, offline CPUs
# and kinds of cores. It requires a POSIX shell, grep and awk, and reads only /sys and /proc.
#
#   sh collect.sh >pve-1.json            name the file under machines in numaform.yaml
#   sh collect.sh DIR                    read DIR/sys and DIR/proc instead
set -u
LC_ALL=C
export LC_ALL
cd "${1:-/}" || exit 1

cpus=sys/devices/system/cpu
nodes=sys/devices/system/node
if ! grep -qs . $cpus/online; then
	echo "collect.sh: $cpus/online is missing or empty: run this on a Linux host with /sys" >&2
	exit 1
fi

# facts prints a line PATH:TEXT for each line of the relevant files. With /dev/null among
# its arguments, grep always prints file names. The shell cannot read the files itself:
# some return nothing to a program that reads byte by byte.
facts() {
	grep -s . $cpus/online $cpus/present proc/sys/kernel/arch sys/devices/cpu_core/cpus \
		sys/devices/cpu_atom/cpus sys/devices/cpu_lowpower/cpus /dev/null
	grep -s MemTotal: proc/meminfo $nodes/node[0-9]*/meminfo /dev/null
	grep -s '^model name' proc/cpuinfo /dev/null
	for dir in $nodes/node[0-9]*; do
		echo "$dir/exists:"
	done
	grep -s . $nodes/node[0-9]*/cpulist $nodes/node[0-9]*/distance $nodes/node[0-9]*/hugepages/*/nr_hugepages /dev/null
	grep -s . $cpus/cpu[0-9]*/cpu_capacity /dev/null
	grep -s . $cpus/cpu[0-9]*/topology/physical_package_id /dev/null
	grep -s . $cpus/cpu[0-9]*/topology/core_cpus_list /dev/null
	grep -s . $cpus/cpu[0-9]*/topology/thread_siblings_list /dev/null
	grep -s . $cpus/cpu[0-9]*/cache/index[0-9]*/level /dev/null
	grep -s . $cpus/cpu[0-9]*/cache/index[0-9]*/shared_cpu_list /dev/null
}

facts | awk -v machine="$(uname -m)" '
function expand(list, set,   parts, ends, n, i, id) {
	n = split(list, parts, ",")
	for (i = 1; i <= n; i++) {
		if (split(parts[i], ends, "-") < 2) ends[2] = ends[1]
		for (id = ends[1] + 0; id <= ends[2] + 0; id++) set[id] = 1
	}
}
function quoted(text,   out, i, c) {
	for (i = 1; i <= length(text); i++) {
		c = substr(text, i, 1)
		if (c == "\"" || c == "\\") out = out "\\"
		out = out c
	}
	return "\"" out "\""
}
# sorted writes the sorted keys of a set to keys, as numbers or, for JSON objects, as text.
function sorted(set, keys, asText,   id, n, i, j) {
	n = 0
	for (id in set) keys[++n] = asText ? id "" : id + 0
	for (i = 2; i <= n; i++) {
		id = keys[i]
		for (j = i - 1; j >= 1 && keys[j] > id; j--) keys[j + 1] = keys[j]
		keys[j + 1] = id
	}
	return n
}
# object formats pairs such as "a": 1 on one line, or on several lines if they are long.
function object(pairs, n, indent,   line, i) {
	line = "{"
	for (i = 1; i <= n; i++) line = line (i > 1 ? ", " : "") pairs[i]
	line = line "}"
	if (length(indent) + length(line) <= 160) return line
	line = "{\n"
	for (i = 1; i <= n; i++) line = line indent "  " pairs[i] (i < n ? "," : "") "\n"
	return line indent "}"
}
function group(list, seen, counter) {
	if (list == "") return -1
	if (!(list in seen)) seen[list] = count[counter]++
	return seen[list]
}
function trimmed(text) {
	gsub(/^[ \t]+|[ \t]+$/, "", text)
	return text
}
function setKind(list, name,   set, id) {
	split("", set); expand(list, set)
	for (id in set) kind[id] = name
}
# byCapacity groups CPUs into kinds: a new kind starts below four fifths of the largest
# capacity of the previous kind. The slowest of three or more kinds is low-power, and kinds
# in between are efficiency.
function byCapacity(   id, values, order, n, i, tops, top) {
	for (id in online) {
		if (capacity[id] + 0 <= 0) return
		values[capacity[id] + 0] = 1
	}
	n = sorted(values, order, 0)
	for (i = n; i >= 1; i--)
		if (tops == 0 || order[i] * 5 < top[tops] * 4) top[++tops] = order[i]
	for (id in online) {
		kind[id] = "efficiency"
		if (tops > 2 && capacity[id] + 0 <= top[tops]) kind[id] = "low-power"
		if (capacity[id] * 5 >= top[1] * 4) kind[id] = "performance"
	}
}
# mib parses the amount in a line such as "Node 0 MemTotal:  1024 kB".
function mib(text) {
	sub(/^.*:[ \t]*/, "", text)
	return text ~ /^[0-9]+ kB[ \t]*$/ ? int((text + 0) / 1024) : -1
}

{
	colon = index($0, ":")
	path = substr($0, 1, colon - 1)
	text = substr($0, colon + 1)
	parts = split(path, dir, "/")
	name = dir[parts]
}
path in read { next }
path != "" { read[path] = 1 }
path == "sys/devices/system/cpu/online" { expand(text, online); expand(text, all) }
path == "sys/devices/system/cpu/present" { expand(text, all) }
path == "proc/sys/kernel/arch" { machine = text }
path == "proc/meminfo" { total = mib(text) }
path == "proc/cpuinfo" {
	model = substr(text, index(text, ":") + 1)
	gsub(/[^ -~]/, "", model)
	model = trimmed(model)
}
dir[3] == "cpu_core" { setKind(text, "performance") }
dir[3] == "cpu_atom" { setKind(text, "efficiency") }
dir[3] == "cpu_lowpower" { setKind(text, "low-power") }
dir[4] == "node" {
	id = substr(dir[5], 5)
	if (id !~ /^[0-9]+$/) next
	if (name == "exists") { isNode[id] = 1; memory[id] = -1 }
	if (name == "cpulist") cpulist[id] = text
	if (name == "distance") distance[id] = text
	if (name == "meminfo") reported[id] = mib(text)
	if (name == "nr_hugepages" && text + 0 > 0) {
		kib = substr(dir[7], 11)
		sub(/kB$/, "", kib)
		pages[id] = pages[id] " " kib "=" text
	}
}
name == "cpu_capacity" && text ~ /^[0-9]+$/ { capacity[substr(dir[5], 4)] = text }
dir[4] == "cpu" && parts > 6 {
	id = substr(dir[5], 4)
	if (id !~ /^[0-9]+$/) next
	if (name == "physical_package_id") package[id] = text
	if (name == "core_cpus_list") siblings[id] = text
	if (name == "thread_siblings_list" && siblings[id] == "") siblings[id] = text
	if (name == "level") level[id, dir[7]] = text + 0
	at = level[id, dir[7]] + 0
	if (name == "shared_cpu_list" && at > 1 && at <= 3 && at > best[id] + 0) {
		best[id] = at
		shared[id] = text
	}
}

END {
	arch = machine == "x86_64" ? "" : (machine == "aarch64" ? "arm64" : machine)
	for (id in reported) memory[id] = reported[id]
	n = sorted(isNode, node, 0)
	if (n == 0) {
		n = 1; node[1] = 0; memory[0] = total == "" ? -1 : total
		for (id in online) nodeOf[id] = 0
	}
	for (i = 1; i <= n; i++) {
		if (memory[node[i]] > 0) sum += memory[node[i]]
		split("", on); expand(cpulist[node[i]], on)
		for (id in on) nodeOf[id] = node[i]
	}
	if (sum + 0 > total + 0) total = sum
	print "{\n  \"format\": 1,"
	if (model != "") print "  \"model\": " quoted(model) ","
	if (arch != "") print "  \"arch\": " quoted(arch) ","
	if (total > 0) print "  \"memory_mib\": " total ","
	print "  \"numa_nodes\": ["
	for (i = 1; i <= n; i++) {
		id = node[i]; split("", pairs); m = 2
		pairs[1] = "\"id\": " id; pairs[2] = "\"memory_mib\": " memory[id]
		if (pages[id] != "") {
			split("", size); split("", keys); split("", inner)
			k = split(substr(pages[id], 2), words, " ")
			for (j = 1; j <= k; j++) { split(words[j], pair, "="); size[pair[1]] = pair[2] }
			k = sorted(size, keys, 1)
			for (j = 1; j <= k; j++) inner[j] = "\"" keys[j] "\": " size[keys[j]]
			pairs[++m] = "\"huge_pages\": " object(inner, k, "      ")
		}
		split("", row)
		if (split(distance[id], row, " ") == n) {
			split("", far); split("", keys); split("", inner)
			for (j = 1; j <= n; j++)
				if (row[j] ~ /^[0-9]+$/ && row[j] + 0 >= 1 && row[j] + 0 <= 255) far[node[j]] = row[j] + 0
			k = sorted(far, keys, 1)
			for (j = 1; j <= k; j++) inner[j] = "\"" keys[j] "\": " far[keys[j]]
			if (k > 0) pairs[++m] = "\"distances\": " object(inner, k, "      ")
		}
		print "    " object(pairs, m, "    ") (i < n ? "," : "")
	}
	print "  ],\n  \"cpus\": ["
	none = 1; for (id in kind) none = 0
	if (none) byCapacity()
	for (id in kind) { if (first != "" && kind[id] != first) several = 1; first = kind[id] }
	n = sorted(all, cpu, 0)
	for (i = 1; i <= n; i++) {
		id = cpu[i]; up = id in online
		core = group(up ? siblings[id] : "", cores, "core")
		l3 = group(up ? shared[id] : "", caches, "l3")
		socket = up && package[id] ~ /^[0-9]+$/ ? package[id] + 0 : -1
		where = up && (id in nodeOf) ? nodeOf[id] : -1
		more = l3 >= 0 && best[id] < 3 ? ", \"cache_level\": " best[id] : ""
		if (up && several && (id in kind)) more = more ", \"kind\": \"" kind[id] "\""
		printf "    {\"id\": %d, \"online\": %s, \"numa_node\": %d, \"socket\": %d, \"core\": %d, \"l3\": %d%s}%s\n", \
			id, up ? "true" : "false", where, socket, core, l3, more, i < n ? "," : ""
	}
	print "  ]\n}"
}'
