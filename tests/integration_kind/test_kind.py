"""docker-compose.kind.yaml and what it is made of: files that exist and fit together, scripts that a shell can read.

Docker is not at hand, so this is as far as it goes; deploy.sh is executed by stand-ins here and on the real cluster by
the cluster's tests.
"""

import os
import re
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.docs.command import parse_commands
from integration.helm.chart import CHART, render
from integration.patience import wait_until
from tests.docs.manifest import complaints

ROOT = Path(__file__).resolve().parents[2]
KIND = ROOT / "integration" / "kind"
SAMPLES = ROOT / "docs" / "samples"
COMPOSE_FILE = ROOT / "docker-compose.kind.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_FILE.read_text())
CLUSTER: dict[str, Any] = yaml.safe_load((KIND / "cluster.yaml").read_text())
SCRIPTS = sorted(KIND.glob("*.sh"))
RECORDER = """#!/bin/sh
echo "${0##*/} $*" >> "$RECORD"
case "$*" in *"$FAILING"*) [ -z "$FAILING" ] || exit 1;; esac
case "$*" in *"$STUCK"*) [ -z "$STUCK" ] || { echo $$ > "$RECORD.stuck"; exec tail -f /dev/null; };; esac
"""
DELETION = "kind delete cluster --name=coil"
PATIENCE = 60.0


def service() -> dict[str, Any]:
    found: dict[str, Any] = COMPOSE["services"]["cluster"]
    return found


def test_the_compose_file_has_one_service_and_nothing_that_compose_does_not_know() -> None:
    assert set(COMPOSE) == {"name", "services"}
    assert set(COMPOSE["services"]) == {"cluster"}
    assert set(service()) == {
        *("build", "entrypoint", "environment", "volumes", "healthcheck", "stop_grace_period"),
    }


def test_the_compose_file_refers_to_what_there_is() -> None:
    context = ROOT / service()["build"]["context"]
    assert (context / "Dockerfile").is_file()
    (shell, script) = service()["entrypoint"]
    mounts = {volume["target"]: volume["source"] for volume in service()["volumes"]}
    assert shell == "sh"
    assert mounts["/source"] == "."
    assert (ROOT / Path(script).relative_to("/source")).is_file()
    assert mounts["/var/run/docker.sock"] == "/var/run/docker.sock"
    ready = service()["healthcheck"]["test"][-1]
    assert f"READY=${{READY:-{ready}}}\n" in (KIND / "up.sh").read_text()


def test_the_usage_names_the_file_and_the_service() -> None:
    lines = [
        line.removeprefix("#").strip() for line in COMPOSE_FILE.read_text().splitlines() if "docker compose" in line
    ]
    usage = [command.words for command in parse_commands("\n".join(lines))]
    assert [words[:4] for words in usage] == [("docker", "compose", "--file", COMPOSE_FILE.name)] * 3
    assert [words[4] for words in usage] == ["up", "exec", "down"]
    assert usage[1][5] == "cluster"


def test_the_cluster_has_three_nodes_of_one_version_and_no_plugin() -> None:
    assert (CLUSTER["kind"], CLUSTER["apiVersion"]) == ("Cluster", "kind.x-k8s.io/v1alpha4")
    assert [node["role"] for node in CLUSTER["nodes"]] == ["control-plane", "worker", "worker"]
    (image,) = {node["image"] for node in CLUSTER["nodes"]}
    assert f"--from={image} /usr/bin/kubectl" in (KIND / "Dockerfile").read_text()
    assert CLUSTER["networking"]["disableDefaultCNI"] is True
    assert CLUSTER["networking"]["ipFamily"] == "dual"


def test_the_sample_pools_are_in_the_clusters_pod_network() -> None:
    pods = [ip_network(text) for text in CLUSTER["networking"]["podSubnet"].split(",")]
    services = [ip_network(text) for text in CLUSTER["networking"]["serviceSubnet"].split(",")]
    for file in ("default-pool.yaml", "shop-pool.yaml"):
        pool = next(yaml.safe_load_all((SAMPLES / file).read_text()))
        networks = [ip_network(text) for subnet in pool["spec"]["subnets"] for text in subnet.values()]
        assert {network.version for network in networks} == {4, 6}
        for network in networks:
            assert any(network.version == each.version and network.subnet_of(each) for each in pods)  # type: ignore[arg-type]
            assert not any(network.overlaps(each) for each in services)


def test_the_cluster_has_one_name() -> None:
    for script in ("up.sh", "create.sh"):
        assert re.findall(r"^NAME=(\w+)$", (KIND / script).read_text(), re.MULTILINE) == [CLUSTER["name"]]


def test_the_profile_that_is_installed_routes_by_itself() -> None:
    assert 'COIL_VALUES="$COIL_CHART/profiles/dual-stack.yaml"' in (KIND / "create.sh").read_text()
    (coild,) = [
        each
        for each in render(None, "dual-stack")
        if each["metadata"]["name"] == "coild" and each["kind"] == "DaemonSet"
    ]
    assert "--route-sync=true" in coild["spec"]["template"]["spec"]["containers"][0]["args"]


def test_images_have_short_names() -> None:
    images = re.findall(r"(?m)(?:^FROM |--from=)([\w./:-]+)", (KIND / "Dockerfile").read_text())
    images += [node["image"] for node in CLUSTER["nodes"]]
    assert len(images) == 8
    assert not [image for image in images if re.match(r"[^/]*[.:][^/]*/", image)]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_shell_can_read_the_script(script: Path) -> None:
    text = script.read_text()
    assert text.startswith("#!/bin/sh\n")
    assert "\nset -eu\n" in text
    assert "eval" not in text
    assert script.stat().st_mode & stat.S_IXUSR
    assert subprocess.run(["sh", "-n", script], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_refers_to_what_there_is(script: Path) -> None:
    named = re.findall(r"\$(SOURCE|KIND|COIL_CHART|samples|chart)/([\w./-]+)", script.read_text())
    folders = {"SOURCE": ROOT, "KIND": KIND, "COIL_CHART": CHART, "samples": SAMPLES, "chart": CHART}
    assert named
    for folder, rest in named:
        assert (folders[folder] / rest).exists(), rest


def write_stand_ins(folder: Path, *names: str) -> None:
    """Programs that write down how they were called, and fail when that has $FAILING in it."""
    for name in names:
        (folder / name).write_text(RECORDER)
        (folder / name).chmod(0o755)


def deploy(tmp_path: Path, *, failing: str = "", **environment: str) -> tuple[int, list[str]]:
    """Run deploy.sh with stand-ins; its exit code, and what it has called."""
    write_stand_ins(tmp_path, "kubectl", "helm", "sleep")
    record = tmp_path / "record"
    variables = {
        "PATH": f"{tmp_path}{os.pathsep}{os.defpath}",
        "RECORD": str(record),
        "FAILING": failing,
        "STUCK": "",
        "COIL_CHART": str(CHART),
        "COIL_SAMPLES": str(SAMPLES),
        "COIL_IMAGE": "example.com:5000/coil:kind",
        "COIL_VALUES": "my values.yaml",
        **environment,
    }
    done = subprocess.run(["sh", KIND / "deploy.sh"], env=variables, capture_output=True, check=False)
    return done.returncode, record.read_text().splitlines() if record.exists() else []


def test_coil_is_deployed_in_this_order(tmp_path: Path) -> None:
    code, calls = deploy(tmp_path)
    assert code == 0
    what = [call for call in calls if "rollout" not in call and " wait " not in call]
    assert [call.split()[:2] for call in what] == [
        ["kubectl", "apply"],
        ["helm", "upgrade"],
        ["kubectl", "apply"],
        ["kubectl", "apply"],
        ["kubectl", "apply"],
        ["kubectl", "--namespace=internet"],
        ["helm", "test"],
        ["kubectl", "get"],
    ]
    assert "--values=my values.yaml" in what[1]
    assert "--set-string=image.repository=example.com:5000/coil --set-string=image.tag=kind" in what[1]
    assert [Path(call.rpartition("=")[2]).name for call in what[2:5]] == [
        "default-pool.yaml",
        "shop-pool.yaml",
        "egress.yaml",
    ]


def test_without_egress_there_is_none(tmp_path: Path) -> None:
    code, calls = deploy(tmp_path, COIL_EGRESS="false")
    assert code == 0
    assert not [call for call in calls if "egress.yaml" in call or "internet" in call]
    assert any("helm test" in call for call in calls)


@pytest.mark.parametrize(
    ("failing", "last"),
    [
        ("crds", "kubectl apply"),
        ("upgrade coil", "helm upgrade"),
        ("daemonset/coild", "kubectl --namespace=kube-system rollout"),
        ("deployment/nat", "kubectl --namespace=internet logs"),
        ("test coil", "helm test"),
    ],
)
def test_it_ends_at_what_fails(tmp_path: Path, failing: str, last: str) -> None:
    code, calls = deploy(tmp_path, failing=failing)
    assert code == 1
    assert calls[-1].startswith(last)


def test_a_pool_is_tried_ten_times_with_longer_and_longer_pauses(tmp_path: Path) -> None:
    code, calls = deploy(tmp_path, failing="default-pool.yaml")
    assert code == 1
    assert [call for call in calls if call.startswith("sleep")] == [f"sleep {seconds}" for seconds in range(1, 10)]
    assert sum("default-pool.yaml" in call for call in calls) == 10


@pytest.mark.parametrize("missing", ["COIL_CHART", "COIL_SAMPLES", "COIL_IMAGE", "COIL_VALUES"])
def test_what_it_needs_to_know_is_asked_for(tmp_path: Path, missing: str) -> None:
    code, calls = deploy(tmp_path, **{missing: ""})
    assert code != 0
    assert calls == []


def test_the_samples_that_are_applied_would_be_accepted() -> None:
    for file in ("default-pool.yaml", "shop-pool.yaml", "egress.yaml"):
        for document in yaml.safe_load_all((SAMPLES / file).read_text()):
            assert complaints(document) == []


class Up:
    """up.sh with stand-ins for all that it calls, in a process of its own."""

    def __init__(self, folder: Path, *, failing: str = "", stuck: str = "") -> None:
        write_stand_ins(folder, "docker", "kind", "kubectl", "helm", "hostname")
        self.ready = folder / "ready"
        self._record = folder / "record"
        variables = {
            "PATH": f"{folder}{os.pathsep}{os.defpath}",
            "RECORD": str(self._record),
            "FAILING": failing,
            "STUCK": stuck,
            "COIL_SOURCE": str(ROOT),
            "READY": str(self.ready),
        }
        self.process = subprocess.Popen(
            ["sh", KIND / "up.sh"], env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def calls(self) -> list[str]:
        found = self._record.read_text().splitlines() if self._record.exists() else []
        return [call for call in found if not call.startswith("hostname")]

    def stop(self) -> int:
        """As `docker compose down` does."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def stuck(self) -> int:
        """The process that does not end by itself; 0 while there is none."""
        path = self._record.with_name("record.stuck")
        text = path.read_text() if path.exists() else ""
        return int(text) if text.endswith("\n") else 0

    def clear(self) -> None:
        """Leave no process behind, whatever the test has found."""
        if self.process.poll() is None:
            self.stop()
        if self.stuck() and is_alive(self.stuck()):
            os.kill(self.stuck(), signal.SIGKILL)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@contextmanager
def running(folder: Path, *, failing: str = "", stuck: str = "") -> Iterator[Up]:
    up = Up(folder, failing=failing, stuck=stuck)
    try:
        yield up
    finally:
        up.clear()


def test_the_cluster_stays_until_it_is_told_to_go(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        wait_until(up.ready.exists, what="the cluster is said to be up", timeout=PATIENCE)
        before = up.calls()
        assert before.count(DELETION) == 1, "one that was left behind"
        assert [call.split()[1] for call in before if call.startswith("kind")] == ["delete", "create", "export", "load"]
        assert before[-1].startswith("kubectl get nodes")
        assert up.process.poll() is None
        assert up.stop() == 0
        assert up.calls()[-1] == DELETION
        assert not up.ready.exists()


@pytest.mark.parametrize("stuck", ["create cluster", "build --provenance", "rollout status"])
def test_the_cluster_goes_at_any_stage(tmp_path: Path, stuck: str) -> None:
    with running(tmp_path, stuck=stuck) as up:
        wait_until(up.stuck, what=f"it has come to {stuck}", timeout=PATIENCE)
        assert up.stop() == 0
        assert up.calls()[-1] == DELETION
        assert not up.ready.exists()
        wait_until(lambda: not is_alive(up.stuck()), what="what was under way has ended", timeout=PATIENCE)


@pytest.mark.parametrize("failing", ["create cluster", "build --provenance", "upgrade coil"])
def test_no_cluster_is_left_of_a_failure(tmp_path: Path, failing: str) -> None:
    with running(tmp_path, failing=failing) as up:
        assert up.process.wait(PATIENCE) == 1
        assert up.calls()[-1] == DELETION
        assert any("get events" in call for call in up.calls())
        assert not up.ready.exists()
