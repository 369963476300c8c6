#!/bin/sh
# A server in a container of this machine:
#
#   deploy/docker/run.sh single Qwen/Qwen3-0.6B               # one device
#   deploy/docker/run.sh mp meta-llama/Llama-3.3-70B -tp 4    # ranks in processes of the container
#   deploy/docker/run.sh ray meta-llama/Llama-3.3-70B -tp 4   # ranks that Ray starts there; an image with EXTRAS=webui,ray
#
# The mode rpc is mp: an engine sends its ranks messages over sockets of lsv's own in each mode.
#
# IMAGE is the image (lsv:cuda), MOUNT a folder of models at the same path inside (/fsx), and OPTIONS are those of docker
# run (--gpus all). What follows the mode is handed to lsv serve. Only this machine reaches the server; ADDRESS=0.0.0.0 opens
# it to others: set LSV_API_KEY then.
set -eu
mode=${1:-}
case $mode in
single | mp | ray | rpc) shift ;;
*)
  echo "the first word must be single, mp, ray or rpc, not '$mode'" >&2
  exit 2
  ;;
esac
if [ "$mode" = rpc ]; then mode=mp; fi
if [ "$mode" != single ]; then set -- "$@" --distributed-executor-backend "$mode"; fi
mount=${MOUNT:-/fsx}

# shellcheck disable=SC2086
exec docker run --rm --init --stop-timeout 60 --network host --ipc host --volume "$mount:$mount" \
  --cap-drop ALL --security-opt no-new-privileges --env "LSV_HOST=${ADDRESS:-127.0.0.1}" \
  --volume lsv-cache:/cache --env HF_TOKEN --env LSV_API_KEY ${OPTIONS---gpus all} "${IMAGE:-lsv:cuda}" "$@"
