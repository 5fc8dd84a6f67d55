#!/usr/bin/env bash
# Prints an image reference pinned to the current digest of its tag, for BASE_IMAGE.
# Usage: scripts/base_image.sh NAME:TAG
set -euo pipefail
digest=$(docker buildx imagetools inspect "$1" --format '{{json .Manifest.Digest}}' | tr -d '"')
[[ $digest =~ ^sha256:[0-9a-f]{64}$ ]] || {
  echo "no digest found for $1 (docker printed '$digest'); check name and tag" >&2
  exit 1
}
echo "${1%:*}@$digest"
