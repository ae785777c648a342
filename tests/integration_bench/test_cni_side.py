import json
from pathlib import Path

import pytest

from integration.bench.cni_side import BridgeSide, PeerSide, pod_operations


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    for name in ("ptp", "bridge", "host-local"):
        (tmp_path / name).touch()
    return tmp_path


def test_container_ids_are_as_containerds_and_never_come_again(plugins: Path) -> None:
    with PeerSide(plugins) as side:
        rounds = [pod_operations(side, "ADD", netns=["/n/a", "/n/b"], serial=serial) for serial in (1, 2)]
    ids = [operation.container_id for operations in rounds for operation in operations]
    assert len(set(ids)) == 4
    assert {len(container) for container in ids} == {64}
    assert all(int(container, 16) for container in ids)


def test_add_and_del_of_a_pod_agree(plugins: Path) -> None:
    with PeerSide(plugins) as side:
        add, delete = (pod_operations(side, command, netns=["/n/a"], serial=7)[0] for command in ("ADD", "DEL"))
    assert (add.container_id, add.netns, add.netconf) == (delete.container_id, delete.netns, delete.netconf)
    assert f"K8S_POD_INFRA_CONTAINER_ID={add.container_id}" in add.arguments
    assert add.arguments == delete.arguments


def test_a_pod_is_named_with_its_uid_as_containerd_does_it(plugins: Path) -> None:
    with PeerSide(plugins) as side:
        operations = pod_operations(side, "ADD", netns=["/n/a", "/n/b"], serial=1)
        for number, operation in enumerate(operations):
            given = dict(argument.split("=") for argument in operation.arguments.split(";"))
            assert given == {
                "IgnoreUnknown": "1",
                "K8S_POD_NAMESPACE": "default",
                "K8S_POD_NAME": f"bench-{number:03}",
                "K8S_POD_INFRA_CONTAINER_ID": operation.container_id,
                "K8S_POD_UID": side.pod(number).uid,
            }


@pytest.mark.parametrize("other", [PeerSide, BridgeSide])
def test_the_peers_addresses_are_kept_apart_and_forgotten(plugins: Path, other: type[PeerSide]) -> None:
    with PeerSide(plugins) as one, other(plugins) as two:
        folders = [Path(json.loads(side.netconf)["ipam"]["dataDir"]) for side in (one, two)]
        assert folders[0] != folders[1]
        assert all(folder.is_dir() for folder in folders)
    assert not any(folder.exists() for folder in folders)


def test_a_missing_peer_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "ptp").touch()
    with (
        pytest.raises(FileNotFoundError, match="no host-local: install containernetworking-plugins"),
        PeerSide(tmp_path),
    ):
        pass


def test_the_peers_are_two_networks_with_a_gateway_each(plugins: Path) -> None:
    with PeerSide(plugins) as ptp, BridgeSide(plugins) as bridge:
        configurations = [json.loads(side.netconf) for side in (ptp, bridge)]
        assert [side.plugin.name for side in (ptp, bridge)] == ["ptp", "bridge"]
    assert [conf["type"] for conf in configurations] == ["ptp", "bridge"]
    assert (
        len({conf["name"] for conf in configurations}) == len({conf["ipam"]["subnet"] for conf in configurations}) == 2
    )
    assert [(conf["ipMasq"], conf.get("isGateway")) for conf in configurations] == [(False, None), (False, True)]
