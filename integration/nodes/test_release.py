"""What `helm install` has put on two real nodes: programs come and go, and the pods that talk do not notice."""

from collections.abc import Iterator

import pytest

from integration.helm.release import COILD
from integration.nodes.coil_cluster import CoilCluster
from integration.nodes.program_pods import CONTROLLERS, names
from integration.nodes.talk import Talk, kernels
from integration.patience import wait_until, wait_until_clean

pytestmark = pytest.mark.cluster

NET_ADMIN, SYS_ADMIN = 1 << 12, 1 << 21  # linux/capability.h


@pytest.fixture(scope="module")
def talk(coil: CoilCluster) -> Iterator[Talk]:
    with coil.room() as room:
        yield Talk.begin(room)


def test_every_program_is_a_pod_under_its_own_account(coil: CoilCluster) -> None:
    nodes = [node.name for node in coil.nodes]
    for component in CONTROLLERS:
        pods = coil.programs.of(component)
        assert {pod["spec"]["serviceAccountName"] for pod in pods} == {f"coil-{component}"}
        # One on each node, so that a node that is lost takes one of them.
        assert [pod["spec"]["nodeName"] for pod in pods] == nodes
    daemons = coil.programs.of("coild")
    assert {pod["spec"]["serviceAccountName"] for pod in daemons} == {"coild"}
    assert [pod["spec"]["nodeName"] for pod in daemons] == nodes


def test_the_kernel_gives_the_programs_what_they_asked_for_and_nothing_else(coil: CoilCluster) -> None:
    programs = coil.programs
    daemons = programs.of("coild")
    assert {programs.kernel_says(pod, "CapEff") for pod in daemons} == {f"{NET_ADMIN | SYS_ADMIN:016x}"}
    for pod in [pod for component in CONTROLLERS for pod in programs.of(component)]:
        assert programs.kernel_says(pod, "CapEff") == f"{0:016x}"
        assert programs.kernel_says(pod, "Uid").split() == ["65532"] * 4
    for pod in [pod for component in ("coild", *CONTROLLERS) for pod in programs.of(component)]:
        assert programs.kernel_says(pod, "NoNewPrivs") == "1"


def test_helm_test_has_two_pods_talk(coil: CoilCluster) -> None:
    with coil.room(pool="default"):
        coil.release.test()


def test_a_rolling_restart_touches_no_pod_and_new_ones_come_up_meanwhile(coil: CoilCluster, talk: Talk) -> None:
    before, daemons, room = kernels(coil), names(coil.programs.of("coild")), talk.room
    with talk.unbroken():
        coil.programs.kubectl("rollout", "restart", COILD)
        newcomers = [f"newcomer-{number}" for number in range(6)]
        room.create(*(room.pod(name, coil.nodes[number % 2]) for number, name in enumerate(newcomers)))
        coil.release.wait_rolled_out(COILD)
        room.wait_ready(*newcomers)
        assert daemons.isdisjoint(names(coil.programs.of("coild")))
        assert talk.find_gaps() == []
        room.kubectl("delete", "pod", *newcomers)
        wait_until_clean(lambda: changes(coil, before), after="the newcomers have gone")


def test_a_coild_that_dies_is_started_by_the_kubelet(coil: CoilCluster, talk: Talk) -> None:
    before, restarts, room = kernels(coil), coil.programs.restarts("coild"), talk.room
    with talk.unbroken():
        coil.programs.kill("coild")
        wait_until(lambda: coil.programs.restarts("coild") == restarts + 2, what="both are started again")
        coil.release.wait_rolled_out(COILD)
        room.create(room.pod("after", coil.nodes[0]))
        room.wait_ready("after")
        room.kubectl("delete", "pod", "after")
        wait_until_clean(lambda: changes(coil, before), after="the pod has gone")


@pytest.mark.slow
def test_the_other_controller_takes_over(coil: CoilCluster, talk: Talk) -> None:
    before, leader, room = kernels(coil), coil.programs.leader(), talk.room
    assert leader
    coil.programs.kubectl("delete", "pod", leader, "--wait=false")
    wait_until(lambda: coil.programs.leader() not in ("", leader), what="another one leads")
    # More pods than the node's blocks have room for.
    crowd = [f"crowd-{number}" for number in range(9)]
    with talk.unbroken():
        room.create(*(room.pod(name, coil.nodes[0]) for name in crowd))
        room.wait_ready(*crowd)
    room.kubectl("delete", "pod", *crowd)
    wait_until_clean(lambda: changes(coil, before), after="the crowd has gone")
    coil.release.wait_rolled_out()


@pytest.mark.slow
def test_an_upgrade_with_other_values_touches_no_pod(coil: CoilCluster, talk: Talk) -> None:
    before = kernels(coil)
    with talk.unbroken():
        coil.release.upgrade({"coild.cooling": "2s", "ipam.poolNearlyFull": 91})
        coil.release.wait_rolled_out()
    assert "--cooling=2s" in coil.programs.of("coild")[0]["spec"]["containers"][0]["args"]
    assert kernels(coil) == before
    assert talk.find_gaps() == []


def test_no_program_was_refused_a_right_or_met_what_it_was_not_made_for(coil: CoilCluster) -> None:
    assert coil.programs.complaints("coild", *CONTROLLERS, "egress-agent-node") == []


def changes(coil: CoilCluster, before: object) -> list[str]:
    return [] if kernels(coil) == before else ["the kernels hold something else for pods"]
