#!/bin/sh
# Coil on an empty cluster: the kinds, the chart, the sample pools and an Egress; then two pods talk. May be repeated.
#
# The end of docker-compose.kind.yaml; it works on any cluster. From the environment:
#   KUBECONFIG     which cluster; its nodes have the image
#   COIL_CHART     folder of the chart
#   COIL_SAMPLES   folder of the sample manifests
#   COIL_IMAGE     the image, name:tag
#   COIL_VALUES    a file of values
#   COIL_EGRESS    "false" where the nodes' kernel has no Foo-over-UDP: then there is no Egress
# A command that fails ends it, with code 1.
set -eu

chart=${COIL_CHART:?folder of the chart}
samples=${COIL_SAMPLES:?folder of the sample manifests}
image=${COIL_IMAGE:?the image, name:tag}
values=${COIL_VALUES:?a file of values}
egress=${COIL_EGRESS:-true}
namespace=kube-system
patience=300s

say() {
    printf '\n== %s\n' "$1"
}

# The API server hears of webhooks some time after their controllers have become ready. 45 seconds in all.
apply() {
    attempt=1
    until kubectl apply --filename="$1"; do
        if [ "$attempt" -ge 10 ]; then
            return 1
        fi
        sleep "$attempt"
        attempt=$((attempt + 1))
    done
}

rolled_out() {
    kubectl --namespace="$namespace" rollout status "$1" --timeout="$patience"
}

say "the kinds"
# Helm does not upgrade those that are there.
kubectl apply --server-side --force-conflicts --filename="$chart/crds"
kubectl wait --for=condition=Established --timeout="$patience" --filename="$chart/crds"

say "the chart"
helm upgrade coil "$chart" --install --skip-crds --namespace="$namespace" --values="$values" \
    --set-string="image.repository=${image%:*}" --set-string="image.tag=${image##*:}" --set=image.pullPolicy=Never
rolled_out deployment/coil-ipam-controller
rolled_out deployment/coil-egress-controller
rolled_out daemonset/coild

say "two pools, one of them a namespace's own"
apply "$samples/default-pool.yaml"
apply "$samples/shop-pool.yaml"
kubectl wait --for=condition=Ready --timeout="$patience" addresspool/default addresspool/shop

say "all nodes are ready"
kubectl wait --for=condition=Ready --timeout="$patience" node --all

if [ "$egress" != false ]; then
    say "an Egress with two router pods"
    apply "$samples/egress.yaml"
    # A controller makes the Deployment of it.
    attempt=1
    until kubectl --namespace=internet get deployment nat >/dev/null || [ "$attempt" -ge 10 ]; do
        sleep "$attempt"
        attempt=$((attempt + 1))
    done
    if ! kubectl --namespace=internet rollout status deployment/nat --timeout="$patience"; then
        kubectl --namespace=internet logs --selector=app.kubernetes.io/component=egress --tail=20 || true
        echo "No router is ready. Where the kernel has no modules fou and fou6, set COIL_EGRESS=false." >&2
        exit 1
    fi
fi

say "two pods talk"
helm test coil --namespace="$namespace" --logs --timeout="$patience"

say "Coil runs"
kubectl get nodes,addresspools,addressblocks --output=wide
