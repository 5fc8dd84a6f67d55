#!/bin/bash
# Builds the node image from the executables in OUT and from Debian packages.
# usage: image.sh OUT TAG
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(cd "${1:?folder of the executables}" && pwd); tag=${2:?tag of the node image}
version=$("$out/kubeadm" version -o short)
export DOCKER_BUILDKIT=0  # Debian's docker.io has no buildx
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

# No image registry: Debian's own tree, under the name that Dockerfiles elsewhere use.
if ! docker image inspect debian:bookworm-slim > /dev/null 2>&1; then
    debootstrap --variant=minbase --include=ca-certificates,curl,procps,python3,python3-venv,wget bookworm "$work/debian" > /dev/null
    # The certificates this machine trusts: Dockerfiles then need no word on them (Debian's pip reads this file).
    cp /etc/ssl/certs/ca-certificates.crt "$work/debian/etc/ssl/certs/"
    tar -C "$work/debian" --exclude='./var/cache/apt/*.bin' --exclude='./var/cache/apt/archives/*.deb' \
        --exclude='./var/lib/apt/lists/*' --exclude='./dev/*' -c . | docker import --change 'CMD ["bash"]' - debian:bookworm-slim
fi
docker build -q -t node-base - < "$here/Dockerfile.base"

bake() { # bake TAG FOLDER ENTRYPOINT
    tar -C "$2" --owner=0 --group=0 -c . | docker import --change "ENTRYPOINT [\"$3\"]" \
        --change 'ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' - "$1" > /dev/null
}

# What kubeadm's manifests name. The four programs of one executable share one layer.
name() { "$out/kubeadm" config images list --kubernetes-version "$version" 2> /dev/null | grep "/$1:"; }
mkdir -p "$work"/{kube,etcd}/usr/local/bin "$work"/{coredns,pause,proxy} "$work"/{kube,etcd,coredns}/tmp
cp "$out/kube" "$work/kube/usr/local/bin/"
for p in kube-apiserver kube-controller-manager kube-scheduler kube-proxy; do ln -s kube "$work/kube/usr/local/bin/$p"; done
cp "$out/etcd" "$work/etcd/usr/local/bin/"; cp "$out/coredns" "$work/coredns/"; cp "$out/pause" "$work/pause/"
bake "$(name kube-apiserver)" "$work/kube" /usr/local/bin/kube-apiserver
for p in kube-controller-manager kube-scheduler; do docker tag "$(name kube-apiserver)" "$(name $p)"; done
bake "$(name etcd)" "$work/etcd" /usr/local/bin/etcd
bake "$(name coredns)" "$work/coredns" /coredns
bake "$(name pause)" "$work/pause" /pause

# kube-proxy calls iptables: the files of its Debian packages, and nothing else of Debian.
docker run --rm -i node-base bash -s > "$work/proxy/iptables.tar" <<'END'
packages="libc6 libgcc-s1 iptables libxtables12 libip4tc2 libip6tc2 libmnl0 libnftnl11 libnfnetlink0 libnetfilter-conntrack3"
for l in /lib /lib64 /bin /sbin; do [ -L $l ] && echo $l; done > /tmp/list
dpkg -L $packages | sed -E 's#^/(lib|lib64|bin|sbin)/#/usr/\1/#' | grep -vE '^/usr/share|^/etc' | sort -u \
    | while read -r f; do [ -d "$f" ] || echo "$f"; done >> /tmp/list
for p in iptables ip6tables; do
    for s in '' -save -restore; do ln -sf xtables-nft-multi /usr/sbin/$p$s; echo /usr/sbin/$p$s; done
done >> /tmp/list
tar -C / -c -T /tmp/list 2> /dev/null
END
printf 'FROM %s\nADD iptables.tar /\nENTRYPOINT ["/usr/local/bin/kube-proxy"]\n' "$(name kube-apiserver)" > "$work/proxy/Dockerfile"
docker build -q -t "$(name kube-proxy)" "$work/proxy"

mkdir "$work/node"
cp "$here/Dockerfile" "$work/node/"; cp -r "$here/files" "$work/node/"; cp "$out/kube" "$out/crictl" "$work/node/"
sed -i "s#^  sandbox_image = .*#  sandbox_image = \"$(name pause)\"#" "$work/node/files/etc/containerd/config.toml"
docker save -o "$work/node/kube-images.tar" $("$out/kubeadm" config images list --kubernetes-version "$version" 2> /dev/null)
docker build -q --build-arg VERSION="$version" -t "$tag" "$work/node"
