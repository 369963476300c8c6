#!/bin/sh
# An engine whose ranks are on several machines, in a container on each, on an overlay network of Docker Swarm. Services of
# Swarm can't have devices, so these are plain containers. The image is built with EXTRAS=webui,ray.
#
#   docker swarm init --advertise-addr IP     # on the first machine; it prints what the others run to join
#   docker network create --driver overlay --attachable --opt encrypted lsv
#   OPTIONS="--device /dev/dri" deploy/swarm/node.sh head lsv:xpu Qwen/Qwen3-32B -tp 2 --max-model-len 20000
#   OPTIONS="--device /dev/dri" deploy/swarm/node.sh worker lsv:xpu      # on each other machine
#
# OPTIONS are further ones of docker run (--gpus all, --env NAME=value, …); CACHE is a folder that has the same models on
# all machines; DEVICES counts the cards of this one, where Ray does not find them itself. Only the first machine reaches the
# server; ADDRESS=0.0.0.0 opens it to others: set LSV_API_KEY then.
set -eu
role=$1 image=$2
shift 2

# Ray would take the address that leads out of the machine, not the one in the overlay network.
start="ray start --disable-usage-stats --node-ip-address \$(getent hosts \"\$(hostname)\" | cut -d' ' -f1)"
start="$start ${DEVICES:+--num-gpus=$DEVICES}"

case $role in
head)
  set -- --name lsv-head --network-alias lsv-head --publish "${ADDRESS:-127.0.0.1}:8000:8000" --entrypoint /bin/sh "$image" -c \
    "$start --head --port=6379 --include-dashboard=false && exec lsv serve \"\$@\"" \
    lsv "$@" --distributed-executor-backend ray
  ;;
worker)
  set -- --entrypoint /bin/sh "$image" -c \
    "until ray health-check --address lsv-head:6379; do sleep 2; done; exec $start --address lsv-head:6379 --block"
  ;;
*)
  echo "the first word must be head or worker, not $role" >&2
  exit 2
  ;;
esac

# shellcheck disable=SC2086
exec docker run --rm --init --stop-timeout 60 --network lsv --cap-drop ALL --security-opt no-new-privileges \
  --shm-size 32g --volume "${CACHE:-lsv-cache}:/cache" \
  --env LSV_API_KEY --env HF_TOKEN ${OPTIONS:-} "$@"
