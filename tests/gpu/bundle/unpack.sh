# Prepares a shell for `gpu.job` on a machine with a GPU and without a package index. Source it in
# the root of the repository:
#     . tests/gpu/bundle/unpack.sh
# It needs the parts of `make gpu-bundle` in .gpu, and a `python3` 3.12 with the packages of
# requirements/gpu-machine.txt. Sourced again, it uses the unpacked files.

# A changed bundle gets a new folder.
bundle_site=${TMPDIR:-/tmp}/raggrpo-site-$(cat .gpu/*.tar.xz 2> /dev/null | cksum | cut -d ' ' -f 1 || true)
export QUICKSTART_INPUT=${QUICKSTART_INPUT:-$bundle_site/quickstart-input}

# Python runs code from this folder, and other users can create it in a shared temporary folder.
mkdir -p -m 700 "$bundle_site" || true
if [[ $(stat -c '%F %u %a' "$bundle_site") != "directory $(id -u) "*700 ]]; then
  echo "error: $bundle_site is not a folder of mode 700 that belongs to you; remove it, or set TMPDIR" >&2
  return 1
fi

bundle_unpack() {
  local part to job jobs=() failed=0
  mkdir -p "$QUICKSTART_INPUT"
  for part in .gpu/*.tar.xz; do
    case $part in
      */input.tar.xz) to=$QUICKSTART_INPUT ;;
      *) to=$bundle_site ;;
    esac
    python3 -m tarfile --filter data -e "$part" "$to" &
    jobs+=($!)
  done
  for job in "${jobs[@]}"; do wait "$job" || failed=1; done
  return "$failed"
}

if [ ! -e "$bundle_site/.complete" ]; then
  if ! bundle_unpack; then
    echo "error: cannot unpack .gpu/*.tar.xz; build the parts with 'make gpu-bundle'" >&2
    return 1
  fi
  mkdir -p "$bundle_site/bin"
  printf '#!/bin/sh\nexec python3 -m raggrpo_cli.main "$@"\n' > "$bundle_site/bin/raggrpo"
  chmod +x "$bundle_site/bin/raggrpo"
fi
# A job's processes start at the same time, and each would compile vLLM, which takes a minute. Files
# in the syntax of other Python versions are reported as errors; they are never imported.
python3 -m compileall -q -j 0 "$bundle_site" operator trainer_image tests > /dev/null || true
touch "$bundle_site/.complete"

export PATH=$bundle_site/bin:$PATH
export PYTHONPATH=$bundle_site:$PWD/operator:$PWD/trainer_image:$PWD/tests PYTHONUNBUFFERED=1
# No process may wait for a network that does not exist.
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 RAY_USAGE_STATS_ENABLED=0
export VLLM_HOST_IP=127.0.0.1 GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo
export VLLM_CACHE_ROOT=$bundle_site/cache/vllm TRITON_CACHE_DIR=$bundle_site/cache/triton
export TORCHINDUCTOR_CACHE_DIR=$bundle_site/cache/inductor
