#!/bin/sh
# Prints the engine on PATH, of version 1.8 or later; fails if there is none.
set -u

for engine in tofu terraform; do
	version=$("$engine" version 2>/dev/null | sed -n '1s/^[A-Za-z]* v\([0-9]*\.[0-9]*\)\..*/\1/p')
	[ -n "$version" ] || continue
	major=${version%%.*} minor=${version#*.}
	if [ "$major" -gt 1 ] || { [ "$major" -eq 1 ] && [ "$minor" -ge 8 ]; }; then
		echo "engine: $(command -v "$engine") $version"
		exit 0
	fi
done
exit 1
