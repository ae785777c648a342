"""coild when something is not there: addresses, the API server, the controller, coild itself."""

import json
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from integration.apiserver.bare_node import NAME
from integration.apiserver.conftest import CoilNode
from integration.apiserver.event_record import EventRecord
from integration.apiserver.runtime import TRY_AGAIN_LATER, CniError, addresses_of
from integration.apiserver.sandbox import Sandbox
from integration.cluster.control_plane import KubectlError
from integration.deployment import apply
from integration.kernel_state import EXPORT_TABLE, POD_TABLE
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

MakePod = Callable[[str], Sandbox]

SHORTEST_WINDOW = 0.5  # seconds in which a refused pool is not asked about again
STOP_TIMEOUT = 60.0


def blocks_of(coil: CoilNode, pool: str) -> list[str]:
    """Names of the blocks of a pool, on whatever node."""
    blocks = coil.node.objects("addressblocks")
    return [
        entry["metadata"]["name"] for entry in blocks if entry["metadata"]["labels"]["coil.cybozu.com/pool"] == pool
    ]


def refused(coil: CoilNode, pod: Sandbox) -> CniError:
    """The error of an ADD that must not succeed."""
    with pytest.raises(CniError) as failure:
        coil.runtime.add(pod)
    assert coil.node.kernel.pod_links().get(f"COIL:{pod.pod.namespace}:{pod.container_id}:eth0") is None
    assert pod.kernel.link("eth0") is None
    return failure.value


def test_a_dry_pool_is_named_and_asked_for_once_in_a_while(coil: CoilNode, make_pod: MakePod) -> None:
    first, second, late = make_pod("dry"), make_pod("dry"), make_pod("dry")
    coil.runtime.add(first)
    coil.runtime.add(second)
    record = EventRecord(coil.node, "blockrequests")
    before = set(record.first_versions())

    started = time.monotonic()
    with ThreadPoolExecutor(max_workers=4) as pool:
        for failure in pool.map(lambda _: refused(coil, late), range(24)):
            assert failure.code == TRY_AGAIN_LATER
            assert "pool dry: out of blocks" in failure.message
    windows = (time.monotonic() - started) / SHORTEST_WINDOW

    wait_until(lambda: not record.present(), what="every request is deleted")
    requests = record.first_versions().keys() - before
    assert 1 <= len(requests) <= 1 + windows
    coil.runtime.delete(second)
    assert addresses_of(coil.runtime.add(late))


def test_a_pool_that_does_not_exist_is_named(coil: CoilNode, make_pod: MakePod) -> None:
    failure = refused(coil, make_pod("astray"))
    assert failure.code == TRY_AGAIN_LATER
    assert "nowhere" in failure.message


def test_a_namespace_that_does_not_exist_is_named(coil: CoilNode, make_pod: MakePod) -> None:
    failure = refused(coil, make_pod("no-such-namespace"))
    assert failure.code == 3
    assert "no-such-namespace" in failure.message


def test_without_the_api_server_pods_get_what_the_node_has(coil: CoilNode, make_pod: MakePod) -> None:
    holder, served, unserved = make_pod("dual"), make_pod("dual"), make_pod("v6")
    coil.runtime.add(holder)
    wait_until(lambda: not blocks_of(coil, "v6"), what="no block of v6 on the node")
    coil.node.plane.stop_apiserver()

    result = coil.runtime.add(served)
    assert served.kernel.global_addresses() == set(addresses_of(result))
    failure = refused(coil, unserved)
    assert failure.code == TRY_AGAIN_LATER
    assert "v6" in failure.message
    coil.runtime.delete(served, cached=result)

    coil.node.plane.start_apiserver()

    def comes_up() -> bool:
        with suppress(CniError):
            return bool(coil.runtime.add(unserved))
        return False

    wait_until(comes_up, what="the pod that was refused gets its address")


def test_after_a_kill_pods_keep_addresses_and_blocks_without_pods_go(coil: CoilNode, make_pod: MakePod) -> None:
    dual, single, doomed = make_pod("dual"), make_pod("v4"), make_pod("v6")
    kept = {pod.container_id: coil.runtime.add(pod) for pod in (dual, single)}
    coil.runtime.add(doomed)
    assert blocks_of(coil, "v6")
    coil.coild.kill()
    doomed.destroy()
    left = {"kind": "BlockRequest", "apiVersion": "coil.cybozu.com/v2", "spec": {"nodeName": NAME, "poolName": "v4"}}
    labels = {"coil.cybozu.com/node": NAME}
    apply(coil.node.plane, {**left, "metadata": {"name": f"req-{NAME}-0badcafe", "labels": labels}})

    coil.coild.start()
    coil.coild.wait_ready()

    for pod in (dual, single):
        coil.runtime.check(pod, cached=kept[pod.container_id])
        assert coil.runtime.add(pod) == kept[pod.container_id]
    taken = {address for result in kept.values() for address in addresses_of(result)}
    for namespace in ("dual", "v4"):
        assert not taken & set(addresses_of(coil.runtime.add(make_pod(namespace))))
    wait_until(lambda: not blocks_of(coil, "v6"), what="the block without a pod is released")
    wait_until(lambda: not coil.node.objects("blockrequests"), what="the request that nobody waits for is deleted")
    exported = coil.node.kernel.destinations(EXPORT_TABLE)
    assert not [network for network in exported if network.startswith("fd83:")]


def test_a_del_while_coild_is_away_succeeds_and_is_made_up_for_later(coil: CoilNode, make_pod: MakePod) -> None:
    pod = make_pod("dual")
    result = coil.runtime.add(pod)
    before = coil.node.kernel.destinations(POD_TABLE), coil.node.kernel.pod_links()
    coil.coild.kill()

    coil.runtime.delete(pod, cached=result)
    assert (coil.node.kernel.destinations(POD_TABLE), coil.node.kernel.pod_links()) == before

    coil.coild.start()
    coil.coild.wait_ready()
    assert f"COIL:default:{pod.container_id}:eth0" not in coil.node.kernel.pod_links()
    coil.runtime.delete(pod, cached=result)


def test_a_del_that_a_coild_on_its_feet_has_not_answered_is_carried_out_by_it(
    coil: CoilNode, make_pod: MakePod
) -> None:
    """As if the deadline had passed: it takes a minute, and the plugin's own test has that it is recorded then."""
    pod = make_pod("dual")
    coil.runtime.add(pod)
    link = f"COIL:default:{pod.container_id}:eth0"
    folder = coil.node.socket.with_name(f"{coil.node.socket.name}.deletes")
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.joinpath(f"{pod.container_id}:eth0:{time.monotonic_ns() // 1_000_000}").touch(mode=0o600)
    wait_until(lambda: link not in coil.node.kernel.pod_links(), what="the pod's link is gone")
    wait_until(lambda: not [*folder.iterdir()], what="the record is gone")


def test_a_stop_is_graceful_and_leaves_the_pods_their_network(coil: CoilNode, make_pod: MakePod) -> None:
    pod, waiting = make_pod("dual"), make_pod("v6")
    result = coil.runtime.add(pod)
    wait_until(lambda: not blocks_of(coil, "v6"), what="no block of v6 on the node")
    # Nobody answers its request, so its ADD is under way when the stop comes.
    coil.controller.kill()
    with ThreadPoolExecutor(max_workers=1) as pool:
        answer = pool.submit(refused, coil, waiting)
        wait_until(lambda: coil.node.objects("blockrequests"), what="the ADD waits for a block")
        coil.coild.process.send_signal(signal.SIGTERM)
        assert coil.coild.process.wait(STOP_TIMEOUT) == 0
        assert answer.result().code == TRY_AGAIN_LATER

    assert not coil.node.socket.exists()
    assert pod.kernel.global_addresses() == set(addresses_of(result))
    assert set(coil.node.kernel.destinations(POD_TABLE)) >= {entry["address"] for entry in result["ips"]}
    coil.coild.start()
    coil.coild.wait_ready()
    coil.runtime.check(pod, cached=result)
    wait_until(lambda: not coil.node.objects("blockrequests"), what="the request is taken back")


MAY = {
    ("", "nodes"): {"get"},
    # Of its own node, and its own conditions: test_own_node.py.
    ("", "nodes/status"): {"patch"},
    ("", "namespaces"): {"get", "list", "watch"},
    ("", "events"): {"create", "patch"},
    ("coil.cybozu.com", "addresspools"): {"get"},
    ("coil.cybozu.com", "addressblocks"): {"list", "watch", "patch", "delete"},
    ("coil.cybozu.com", "blockrequests"): {"list", "watch", "create", "delete"},
    ("", "pods"): {"get", "list", "watch"},
    ("", "services"): {"get", "list", "watch"},
    ("coil.cybozu.com", "egresses"): {"get", "list", "watch"},
    # Of its own node's clients: test_own_node.py.
    ("coil.cybozu.com", "egressclientslices"): {"list", "watch", "create", "patch", "delete"},
    ("discovery.k8s.io", "endpointslices"): {"list", "watch"},
}
"""The most that coild's account may do; that it may do enough, all the other tests show."""

EVERY_ACCOUNT = {
    ("certificates.k8s.io", "clustertrustbundles"): {"get", "list", "watch"},
}
"""What newer API servers let every service account do."""


def test_the_service_account_may_do_no_more_than_it_should(coil: CoilNode) -> None:
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": "dual"}}
    plane = coil.node.plane
    answer = plane.kubectl(
        "create",
        # It would ask for the kinds of all custom resources, which coild may not list.
        "--validate=false",
        "--filename=-",
        "--output=json",
        stdin=json.dumps(review),
        kubeconfig=plane.kubeconfig_for("coild"),
    )
    status = json.loads(answer)["status"]
    assert not status["incomplete"]
    granted = {
        (group, resource, verb)
        for rule in status["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if group not in ("authorization.k8s.io", "authentication.k8s.io")  # what every account may ask about itself
    }
    allowed = {(*kind, verb) for kind, verbs in {**MAY, **EVERY_ACCOUNT}.items() for verb in verbs}
    assert granted - allowed == set()
    with pytest.raises(KubectlError, match=r"cannot list resource .secrets."):
        plane.kubectl("get", "secrets", "--namespace=kube-system", kubeconfig=plane.kubeconfig_for("coild"))
