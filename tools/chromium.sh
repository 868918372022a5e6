#!/bin/sh
# Prints the Chromium and the axe-core that test the web page; $1 is the directory for axe-core,
# which checks pages for accessibility. If axe-core is missing, the script gets it from the npm
# registry, with npm or curl.
set -u

dir=$1
version=4.14.1
sha512=1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b734f8c22a0dab86ee6a6f64b8afbe804b214d36db85a2826965edfb3a0b9d546b5

sh "$(dirname "$0")/system.sh" chromium || exit 1

axe=$dir/axe-$version.min.js
if [ -s "$axe" ]; then
	echo "axe-core: $axe"
	exit 0
fi
mkdir -p "$dir" || exit 1
axe=$(cd "$dir" && pwd)/axe-$version.min.js
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
echo "downloading axe-core $version from the npm registry"
if command -v npm >/dev/null; then
	npm pack --silent "axe-core@$version" >/dev/null || exit 1
elif command -v curl >/dev/null; then
	curl -fsSLO "https://registry.npmjs.org/axe-core/-/axe-core-$version.tgz" || exit 1
else
	echo "no axe-core: install npm or curl" >&2
	exit 1
fi
echo "$sha512  axe-core-$version.tgz" | sha512sum -c - >/dev/null || exit 1
tar -xzf "axe-core-$version.tgz" package/axe.min.js && mv package/axe.min.js "$axe" && echo "axe-core: $axe"
