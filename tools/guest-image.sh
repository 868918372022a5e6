#!/bin/sh
# Makes the image of the guests that pvesim runs with QEMU: examples/template/make-image.sh with the
# kubelet of tools/controlplane, and with the container image in which every pod has its
# namespaces, from the same module.
#
#   guest-image.sh BIN DIR
#
# BIN has kubelet and kube-proxy; the result is DIR/image.qcow2. It is made again when its
# inputs change.
set -eu
bin=$1 dir=$2
here=$(cd "$(dirname "$0")" && pwd)
pause=registry.k8s.io/pause:3.10.1

fail() {
	echo "guest-image: $*" >&2
	exit 1
}

sh "$here/system.sh" gcc qemu guest

source=$(cd "$here/controlplane" && GOWORK=off go list -m -f '{{.Dir}}' k8s.io/kubernetes)/build/pause/linux/pause.c
[ -r "$source" ] || fail "there is no $source: run go mod download in tools/controlplane"
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
key=$({
	cat "$0" "$here/../examples/template/make-image.sh" "$source"
	(cd "$here/guest/files" && find . -type f -exec sha256sum {} + | sort)
	sha256sum <"$bin/kubelet"
	sha256sum <"$bin/kube-proxy"
} | sha256sum | cut -c1-64)
if [ -s "$dir/image.qcow2" ] && [ "$(cat "$dir/key" 2>/dev/null)" = "$key" ]; then
	echo "guest image: $dir/image.qcow2"
	exit 0
fi
echo "making $dir/image.qcow2: minutes, then not again until its inputs change"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
files=$work/files
mkdir "$files"
cp -a "$here/guest/files/." "$files/"
install -D -m 755 "$bin/kube-proxy" "$files/usr/bin/kube-proxy"

# The image of pause, in the format of docker save.
mkdir -p "$work/pause/root" "$files/usr/share/container-images"
gcc -Os -Wall -static -DVERSION=3.10.1 -o "$work/pause/root/pause" "$source"
layer=$work/pause/layer.tar
tar --sort=name --owner=0 --group=0 --mtime=@0 -C "$work/pause/root" -cf "$layer" pause
rm -r "$work/pause/root"
printf '{"architecture":"amd64","os":"linux","config":{"Entrypoint":["/pause"],"User":"65535:65535"},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
	"$(sha256sum "$layer" | cut -c1-64)" >"$work/pause/config.json"
printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$pause" >"$work/pause/manifest.json"
tar --owner=0 --group=0 -C "$work/pause" -cf "$files/usr/share/container-images/pause.tar" manifest.json config.json layer.tar

KUBELET=$bin/kubelet FILES=$files sh "$here/../examples/template/make-image.sh" "$dir/image.qcow2"
echo "$key" >"$dir/key"
