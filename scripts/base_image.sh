#!/usr/bin/env bash
# Prints an image by the digest that its tag has now, for BASE_IMAGE. Usage: scripts/base_image.sh NAME:TAG
set -euo pipefail
digest=$(docker buildx imagetools inspect "$1" --format '{{json .Manifest.Digest}}' | tr -d '"')
[[ $digest =~ ^sha256:[0-9a-f]{64}$ ]] || {
  echo "$1 has no digest: $digest" >&2
  exit 1
}
echo "${1%:*}@$digest"
