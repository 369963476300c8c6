#!/bin/sh
# The throughput of an engine without a server, in a container of this machine or without one:
#
#   deploy/docker/bench.sh --model meta-llama/Llama-3.1-8B --input-len 1024 --output-len 128 --num-prompts 200
#   deploy/docker/bench.sh --image lsv:cuda --nsys --model meta-llama/Llama-3.3-70B --tensor-parallel-size 4
#
#   --image IMAGE     run in a container of this image
#   --nsys            under Nsight Systems: a report in ./nsys-offline
#   --viztracer FILE  record Python's calls by VizTracer: rank 0's in FILE, for ui.perfetto.dev, all in FILE.ranks
#
# What follows is handed to lsv bench throughput. With --nnodes, run the same on each machine with its --node-rank. MOUNT
# is a folder of models at the same path in the container (/fsx), and OPTIONS are those of docker run (--gpus all).
set -eu

# value NAME COUNT: refuse an option without its value.
value() {
  if [ "$2" -lt 2 ]; then
    echo "$1 needs a value" >&2
    exit 2
  fi
}

image='' nsys='' file='' count=$#
while [ "$count" -gt 0 ]; do
  word=$1 taken=1
  case $word in
  --image) value "$word" "$count" && image=$2 taken=2 ;;
  --viztracer) value "$word" "$count" && file=$2 taken=2 ;;
  --nsys) nsys=1 ;;
  *) set -- "$@" "$word" ;;
  esac
  shift "$taken"
  count=$((count - taken))
done
if [ -n "$nsys" ] && [ -n "$file" ]; then
  echo "--nsys and --viztracer record each in its own way: take one of them" >&2
  exit 2
fi

set -- bench throughput "$@"
if [ -n "$nsys" ]; then set -- nsys --output nsys-offline "$@" --profile; fi
if [ -n "$file" ]; then
  traces=$(realpath -m "$file").ranks
  mkdir -p "$traces"
  set -- "$@" --profile --profiler-config "{\"profiler\": \"viztracer\", \"torch_profiler_dir\": \"$traces\"}"
fi
if [ -z "$image" ]; then
  lsv "$@"
else
  mount=${MOUNT:-/fsx}
  # As the user, whose folder the results are in.
  # shellcheck disable=SC2086
  docker run --rm --init --user "$(id -u):$(id -g)" --network host --ipc host --ulimit memlock=-1 \
    --volume "$mount:$mount" --volume "$PWD:$PWD" ${file:+--volume "$traces:$traces"} --workdir "$PWD" --env HOME=/tmp \
    --env "LSV_CACHE_ROOT=$PWD/lsv-cache" --env "HF_HOME=${HF_HOME:-$mount/huggingface}" --env HF_TOKEN \
    --env LSV_CLUSTER_KEY ${OPTIONS---gpus all} --entrypoint lsv "$image" "$@"
fi
if [ -n "$file" ]; then
  newest=$(find "$traces" -name 'rank0.*.calls.json.gz' | sort | tail -n 1)
  if [ -n "$newest" ]; then gzip -dc "$newest" >"$file"; fi
fi
