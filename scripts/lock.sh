#!/usr/bin/env bash
# Resolves the locks in requirements/ from pyproject.toml. Usage: scripts/lock.sh UV
set -euo pipefail
uv=$1
cd "$(dirname "$0")/.."
compile() {
  local target=$1
  shift
  "$uv" pip compile pyproject.toml "$@" --override requirements/overrides.txt --generate-hashes \
    --python-version 3.11 --universal --no-header --quiet -o "requirements/$target"
}
compile dev.txt --extra operator --extra trainer-cpu --extra quickstart --extra dev --extra bench
