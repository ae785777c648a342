#!/bin/sh
# Makes the kind cluster, builds the image, has it on every node, and puts Coil on the cluster. Part of up.sh.
set -eu

SOURCE=${COIL_SOURCE:-/source}
IMAGE=coil:kind
NAME=coil

kind create cluster --name="$NAME" --config="$SOURCE/integration/kind/cluster.yaml"
# This container talks to the API server by the nodes' own network, which kind has made by now.
docker network connect kind "$(hostname)"
kind export kubeconfig --name="$NAME" --internal

# With a provenance it would be an index of manifests, which not every kind can load.
docker build --provenance=false --tag="$IMAGE" "$SOURCE"
kind load docker-image "$IMAGE" --name="$NAME"

export COIL_IMAGE="$IMAGE"
export COIL_CHART="$SOURCE/charts/coil"
export COIL_SAMPLES="$SOURCE/docs/samples"
export COIL_VALUES="$COIL_CHART/profiles/dual-stack.yaml"
exec sh "$SOURCE/integration/kind/deploy.sh"
