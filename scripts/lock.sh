#!/usr/bin/env bash
# Regenerates the lock files in requirements/ from pyproject.toml. Usage: scripts/lock.sh UV
set -euo pipefail
uv=$1
cd "$(dirname "$0")/.."
python=3.11
compile() {
  local target=$1
  shift
  "$uv" pip compile "$@" --generate-hashes --no-header \
    --quiet --python-version "$python" -o "requirements/$target"
}
everywhere=(--universal --override requirements/overrides.txt)
as_tested=(--constraint requirements/dev.txt)
compile dev.txt pyproject.toml --extra operator --extra trainer-cpu --extra quickstart --extra dev \
  --extra bench "${everywhere[@]}"
compile operator.txt pyproject.toml --extra operator "${everywhere[@]}" "${as_tested[@]}"
compile trainer-cpu.txt pyproject.toml --extra trainer-cpu --extra quickstart "${everywhere[@]}" \
  "${as_tested[@]}"
# CUDA wheels exist for Linux only, and vLLM pins different versions with CUDA than without.
compile trainer-cuda.txt pyproject.toml --extra trainer-cuda --extra quickstart \
  --python-platform x86_64-manylinux_2_28
for group in agents checkov sbom uv; do
  compile "$group.txt" --group "$group" --universal
done
# The Python of a machine with a GPU. All packages of the bundle are named, so that it does not
# replace a package of the machine.
python=3.12
gpu=(--python-platform x86_64-manylinux_2_34)
compile gpu-bundle.txt --group gpu-bundle --no-deps "${gpu[@]}" \
  --constraint requirements/trainer-cuda.txt
compile gpu-machine.txt --group gpu-machine "${gpu[@]}" "${as_tested[@]}"
