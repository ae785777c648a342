#!/bin/sh
# A kind cluster with Coil on it, for as long as this runs: process 1 of the service in docker-compose.kind.yaml.
#
# Once all is up there is the file $READY. SIGTERM takes the cluster down, whatever stage it is in. If something fails
# on the way this ends with code 1, without a cluster; one that an earlier run left behind goes first.
#
# From the environment: COIL_SOURCE, the checkout; READY; and what deploy.sh says.
set -eu

SOURCE=${COIL_SOURCE:-/source}
READY=${READY:-/run/ready}
NAME=coil
child=

remove() {
    rm -f "$READY"
    docker network disconnect --force kind "$(hostname)" 2>/dev/null || true
    kind delete cluster --name="$NAME"
}

stop() {
    if [ -n "$child" ]; then
        # Its whole session. Not all shells take a "--" here.
        kill -TERM "-$child" 2>/dev/null || kill -TERM "$child" 2>/dev/null || true
        wait "$child" || true
    fi
    remove
    exit 0
}

show_failure() {
    kubectl get pods --all-namespaces --output=wide || true
    kubectl get events --all-namespaces --field-selector=type=Warning --sort-by=.lastTimestamp || true
}

trap stop TERM INT
remove

# In the background, as a shell hears of no signal while it waits for a program in front; with a session of its own, so
# that the signal reaches all that it has started.
setsid sh "$SOURCE/integration/kind/create.sh" &
child=$!
if ! wait "$child"; then
    show_failure
    remove
    exit 1
fi

touch "$READY"
echo "The cluster is up: docker compose --file docker-compose.kind.yaml exec cluster kubectl get pods --all-namespaces"
setsid sleep infinity &
child=$!
wait "$child"
