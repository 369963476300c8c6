#!/bin/bash
# A Ray cluster of containers, one on each machine, in which engines are started. The image is built with
# EXTRAS=webui,ray. Ray lets whoever reaches it run code: these machines belong in a network of their own.
#
#   deploy/ray/cluster.sh lsv:cuda 10.0.0.1 --head   /models/huggingface --gpus all       # on the first machine
#   deploy/ray/cluster.sh lsv:cuda 10.0.0.1 --worker /models/huggingface --gpus all       # on each other one
#   docker exec lsv-node ray status
#   docker exec lsv-node lsv serve MODEL -tp 8 -pp 2 --distributed-executor-backend ray
#
# The address is the first machine's for all of them. The folder holds the same models everywhere, under one path, and the
# image's user (10001) reads it. Further words are options of docker run: --env NCCL_IB_HCA=mlx5, --cap-add IPC_LOCK, --privileged, …; what
# is set here counts for this machine alone. The shell that runs this holds its machine in the cluster.
set -euo pipefail
if (($# < 4)) || [[ $3 != --head && $3 != --worker ]]; then
  echo "usage: $0 IMAGE ADDRESS_OF_HEAD --head|--worker HF_HOME [options of docker run]" >&2
  exit 2
fi
image=$1 head=$2 role=$3 models=$4
shift 4

start="ray start --block --disable-usage-stats"
if [[ $role == --head ]]; then
  start+=" --head --port=6379 --include-dashboard=false --node-ip-address=$head"
else
  start="until ray health-check --address $head:6379; do sleep 2; done; exec $start --address=$head:6379"
fi
trap 'docker stop lsv-node >/dev/null 2>&1 || true' EXIT
docker run --rm --init --name lsv-node --network host --ipc host --volume "$models:/cache/huggingface" \
  --cap-drop ALL --security-opt no-new-privileges --env HF_TOKEN --env LSV_API_KEY "$@" --entrypoint /bin/sh "$image" -c "$start"
