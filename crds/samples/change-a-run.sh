#!/usr/bin/env bash
# Train, stop, change values, continue, and compare the steps before and after the change.
#
#     crds/samples/change-a-run.sh JOB.yaml DIR STEP BEFORE AFTER [OPTION…]
#     crds/samples/change-a-run.sh sales.yaml runs/sales 40 "rollout.n=5" "rollout.n=3"
#
# The job is stopped after STEP steps, as by Ctrl-C. BEFORE and AFTER are values for --set.
# Every OPTION, such as --mount NAME=DIR or --endpoint NAME=URL, is passed to both runs.
set -euo pipefail
job=$1 dir=$2 step=$3
before=() after=()
for value in $4; do before+=(--set "$value"); done
for value in $5; do after+=(--set "$value"); done
shift 5

current_step() {
  raggrpo status --dir "$dir" --json 2>/dev/null |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["progress"]["step"])' 2>/dev/null ||
    echo 0
}

raggrpo run "$job" --dir "$dir" "${before[@]}" "$@" &
run=$!
until [ "$(current_step)" -ge "$step" ]; do
  kill -0 "$run" # exit if the run has failed
  sleep 0.2
done
kill -TERM "$run" # saves a checkpoint, as Ctrl-C does
wait "$run" || [ $? -eq 130 ] # 130: suspended

raggrpo run "$job" --dir "$dir" "${after[@]}" "$@"
raggrpo compare "$dir"
