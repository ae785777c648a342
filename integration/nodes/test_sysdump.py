"""`kubectl coil sysdump` on two real nodes: everything is in it, and nothing that is secret."""

import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from integration.kubectl_plugin import ask_coil, collect_sysdump
from integration.nodes.coil_cluster import CoilCluster
from integration.patience import wait_until_clean

pytestmark = pytest.mark.cluster


def find_gaps(coil: CoilCluster) -> list[str]:
    """What `kubectl coil status` could not learn from the programs: other tests may still be restarting some."""
    _, status = ask_coil(coil.plane.admin_kubeconfig, "status")
    gaps = [] if status["nodes"] == {"total": 2, "asked": 2, "blockedPods": 0} else [json.dumps(status["nodes"])]
    for each in status["components"]:
        certificates = each["certificateEnd"] is not None or each["kind"] != "Deployment"
        if each["cacheAge"] is None or not certificates:
            gaps.append(json.dumps(each))
    return gaps


def read(dump: ZipFile, name: str) -> Any:
    return json.loads(dump.read(name))


def test_programs_tell_of_themselves(coil: CoilCluster) -> None:
    """The age of each one's oldest cache, the end of the webhooks' certificates, and how many pods are blocked."""
    wait_until_clean(lambda: find_gaps(coil), after="what other tests have done")


def test_everything_is_in_it(coil: CoilCluster, tmp_path: Path) -> None:
    """With a Secret, a variable and an annotation that must not be."""
    with coil.room() as room:
        secret = "hunter2"  # noqa: S105
        pod = room.pod("keeper", coil.nodes[0])
        pod["metadata"]["annotations"] = {"example.com/password": secret}
        pod["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "value": secret}]
        room.run(pod)
        room.kubectl("create", "secret", "generic", "keeper", f"--from-literal=password={secret}")
        done = collect_sysdump(coil.plane.admin_kubeconfig, tmp_path / "dump.zip")
    assert (done.returncode, done.stderr) == (0, "")
    with ZipFile(tmp_path / "dump.zip") as dump:
        names = set(dump.namelist())
        index = read(dump, "index.json")
        assert [each for each in index["files"] if each["error"]] == []
        assert names == {each["name"] for each in index["files"]} | {"index.json"}
        for node in coil.nodes:
            found = read(dump, f"nodes/{node.name}.json")
            assert (found["troubles"], found["node"]["path"]) == ([], "")
            assert {"coil-eip"} <= {entry["table"]["name"] for entry in found["tables"] if "table" in entry}
        assert {"keeper"} <= {each["metadata"]["name"] for each in read(dump, "objects/pods.json")}
        helm = read(dump, "helm.json")
        assert (helm["release"], helm["values"]["egress"]["enabled"]) == ("coil", True)
        assert read(dump, "status.json")["nodes"]["total"] == 2
        for component in ("coild", "ipam-controller", "egress-controller", "egress-agent-node"):
            pods = {each["metadata"]["name"] for each in coil.programs.of(component)}
            for folder, suffix in (("logs", ".log"), ("metrics", ".txt")):
                inside = {name for name in names if name.startswith(f"{folder}/") and name.endswith(suffix)}
                assert {pod for pod in pods if any(f"/{pod}/" in name for name in inside)} == pods
        metrics = next(name for name in names if name.startswith("metrics/") and "/coild" in name)
        assert b"\ncoil_" in dump.read(metrics)
        assert not any(secret.encode() in dump.read(name) for name in names)


def test_a_node_that_is_named_and_little_room(coil: CoilCluster, tmp_path: Path) -> None:
    second = coil.nodes[1].name
    done = collect_sysdump(coil.plane.admin_kubeconfig, tmp_path / "dump.zip", f"--node={second}", "--size-limit=1")
    with ZipFile(tmp_path / "dump.zip") as dump:
        index = read(dump, "index.json")
        assert index["leftOut"] == [coil.nodes[0].name]
        assert sum(each["bytes"] for each in index["files"]) <= 1 << 20
        left_out = [each["name"] for each in index["files"] if each["error"]]
    assert done.returncode == (1 if left_out else 0)
    assert "1 nodes were not asked" in done.stderr
