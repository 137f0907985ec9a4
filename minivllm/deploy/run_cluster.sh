#!/bin/sh
# sh minivllm/deploy/run_cluster.sh IMAGE HEAD_ADDRESS --head CACHE      on the first machine
# sh minivllm/deploy/run_cluster.sh IMAGE HEAD_ADDRESS --worker CACHE    on each other one
set -eu
case "$# ${3-}" in
    "4 --head") start="ray start --block --head --node-ip-address=$2 --port=6379 --include-dashboard=false" ;;
    "4 --worker") start="ray start --block --address=$2:6379" ;;
    *) sed -n 2,3p "$0" >&2; exit 2 ;;
esac
exec docker run --rm --name node --network host --shm-size 10g --gpus all \
    --volume "$4:/home/minivllm/.cache/huggingface" --env RAY_USAGE_STATS_ENABLED=0 \
    --entrypoint /bin/sh "$1" -c "$start"
