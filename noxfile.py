"""The parts of `make test` and of `make test-all`, one session each, in the `.venv` that integration/bootstrap.py made.

`integration/verdict` runs them for both commands: which, in what order, and what follows from their results.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import nox

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "none"
nox.options.sessions = []

PYTHON = sys.executable


ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",
    # Programs are started hundreds of times: their modules are compiled once, even where somebody has asked for this.
    "PYTHONDONTWRITEBYTECODE": "",
}
CALLS = Path("build/access").resolve()
RESULTS = Path("build/results").resolve()

PARTS = {
    "neutron": ["integration/neutron"],
    "eip": ["integration/eip"],
    "apiserver": ["integration/apiserver"],
    "kernel": ["integration/netns", "integration/plugin"],
    "image": ["integration/image"],
    "aws": ["integration/aws"],
}
"""Of the session `integration`, with their folders; what takes long comes first."""
ALL_PARTS = ["integration/soak", *(folder for folders in PARTS.values() for folder in folders)]
CLUSTER = ["integration/nodes", "integration/docs"]
EGRESS = ["integration/egress", "integration/fou", "integration/wireguard"]
"""The folder that takes longer comes first."""
GUEST = ["--numprocesses=2", "--dist=loadscope", "--no-loadscope-reorder"]
"""A guest's processors are slow, and one process of tests leaves one of them idle."""
TRIO = ["--numprocesses=3", "--dist=loadfile", "--no-loadscope-reorder"]
PAIR = ["--numprocesses=2", "--dist=loadfile"]
"""Most of the time is waiting, so two clusters are in use at a time: integration/scheduling.py."""

PACKETS = [
    *("-m", "slow or not slow"),
    *("integration/egress/test_packet_path.py", "integration/egress/test_originating_only.py"),
]
"""Of the session `egress`, what depends on how kube-proxy translates the addresses of Services."""
IPVS = ["integration/egress/test_packet_path.py::test_the_host_outside_sees_the_router"]
"""Of these, what goes the whole way once in each family."""
FAMILIES = [*PACKETS, "integration/egress/test_chained.py"]
"""And on the cluster's IP families."""


def run_name(session: nox.Session) -> str:
    """What the records of this run are called: by the session, unless it is repeated for a part of its tests."""
    return os.environ.get("COIL_RUN", session.name)


def forget(run: str) -> None:
    """Remove what a run has left, and what its repetitions have: results and calls of different runs prove nothing."""
    for name in (run, f"{run}-rerun-*"):
        for folder in CALLS.glob(name):
            shutil.rmtree(folder, ignore_errors=True)
        for path in RESULTS.glob(f"{name}.xml"):
            path.unlink()


def environment(session: nox.Session) -> dict[str, str]:
    """With a folder where API servers leave what programs asked of them; what an earlier run left is removed."""
    forget(run_name(session))
    return {**ENVIRONMENT, "COIL_API_CALLS": str(CALLS / run_name(session))}


def results(session: nox.Session) -> list[str]:
    """pytest's arguments by which each test's result is left for the verdict (integration/verdict/result.py)."""
    return [f"--junitxml={RESULTS / run_name(session)}.xml"]


def run_pytest(session: nox.Session, folders: Sequence[str], *options: str, spread: Sequence[str] = ()) -> None:
    """Run pytest in a fresh interpreter. `nox -s PART -- ARGS` runs those in place of the folders, in one process."""
    chosen = session.posargs or [*spread, *folders]
    session.run(PYTHON, "-m", "pytest", *results(session), *options, *chosen, env=environment(session))


def run_side_by_side(session: nox.Session, *parts: str) -> None:
    """Run these parts in three processes. A test waits for half of its time, so that two would leave processors idle.

    Which tests share what they start, and so a process, is in integration/scheduling.py.
    """
    folders = [folder for part in parts for folder in PARTS[part]]
    if run_name(session) == session.name:
        # The same tests, run at another time: the whole, or the parts that ran alone.
        for other in {*parts, "integration"} - {session.name}:
            forget(other)
    run_pytest(session, folders, spread=TRIO)


@nox.session
def lint(session: nox.Session) -> None:
    """Style and likely mistakes."""
    session.run(PYTHON, "-m", "ruff", "check", ".")
    session.run(PYTHON, "-m", "ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Static types, strict, tests included."""
    session.run(PYTHON, "-m", "mypy")


@nox.session
def contracts(session: nox.Session) -> None:
    """Which room may import which."""
    session.run(str(Path(PYTHON).with_name("lint-imports")), external=True)


@nox.session
def unit(session: nox.Session) -> None:
    """Pure code and shells with fakes; no root needed."""
    run_pytest(session, ["tests"], spread=["--numprocesses=auto"])


@nox.session
def explore(session: nox.Session) -> None:
    """The tests of `unit` that Hypothesis finds examples for, with new ones: in `unit` they are always the same."""
    options = ["--hypothesis-profile=explore", "-m", "hypothesis"]
    run_pytest(session, ["tests"], *options, spread=["--numprocesses=auto"])


@nox.session
def integration(session: nox.Session) -> None:
    """The six parts that follow, in one run."""
    run_side_by_side(session, *PARTS)


@nox.session
def kernel(session: nox.Session) -> None:
    """The data plane in network namespaces of this machine's kernel, the plugin in a root of its own; needs root."""
    run_side_by_side(session, "kernel")


@nox.session
def apiserver(session: nox.Session) -> None:
    """The services against a real etcd and kube-apiserver; needs root."""
    run_side_by_side(session, "apiserver")


@nox.session
def image(session: nox.Session) -> None:
    """The container image: built without a registry, twice, and started with a read-only root; needs root."""
    run_side_by_side(session, "image")


@nox.session
def aws(session: nox.Session) -> None:
    """EC2's API, strict, and the client of it."""
    run_side_by_side(session, "aws")


@nox.session
def neutron(session: nox.Session) -> None:
    """Neutron itself on this machine, and coil-raven between it and a real API server; needs root."""
    run_side_by_side(session, "neutron")


@nox.session
def aws_nodes(session: nox.Session) -> None:
    """The chart by Helm on two instances in a VPC: kubelet, containerd, kube-proxy, the strict EC2; needs root."""
    run_pytest(session, ["integration/aws_nodes", "integration/aws_modes"])


@nox.session
def neutron_nodes(session: nox.Session) -> None:
    """The chart by Helm on two nodes with kubelet, whose pods are plugged into ports of a real Neutron; needs root."""
    run_pytest(session, ["integration/neutron_nodes"])


@nox.session
def aws_simulation(session: nox.Session) -> None:
    """A thousand pods under faults of EC2, and 2 000 nodes within an account's limits, in virtual time."""
    run_pytest(session, ["tests/coild/eni/simulation"], "-m", "slow")


@nox.session
def eip(session: nox.Session) -> None:
    """Floating addresses on three nodes in network namespaces, against a real API server; needs root."""
    run_side_by_side(session, "eip")


@nox.session
def egress(session: nox.Session) -> None:
    """Egress NAT on a kernel with Foo-over-UDP, in a virtual machine where this one has none; needs root."""
    chosen = [*results(session), *(session.posargs or [*GUEST, *EGRESS])]
    session.run(PYTHON, "-m", "integration.egress", *chosen, env=environment(session))


@nox.session
def egress_kubelet(session: nox.Session) -> None:
    """Egress NAT on a node with kubelet and containerd, in a virtual machine where egress is; needs root."""
    chosen = [*results(session), *(session.posargs or ["integration/egress_kubelet"])]
    session.run(PYTHON, "-m", "integration.egress_kubelet", *chosen, env=ENVIRONMENT)


@nox.session
def kernel_guest(session: nox.Session) -> None:
    """What needs a kernel with SCTP, Open vSwitch's datapath or IPVS, in a virtual machine."""
    chosen = session.posargs or [f"integration/netns/test_{name}.py" for name in ("sctp", "openvswitch", "ipvs")]
    RESULTS.mkdir(parents=True, exist_ok=True)
    session.run(
        *(PYTHON, "-m", "integration.vm", "--guest", f"--results={RESULTS}", "--"),
        *(PYTHON, "-m", "pytest", "-p", "no:cacheprovider", *results(session), *chosen),
        env=environment(session),
    )


@nox.session
def cluster(session: nox.Session) -> None:
    """The chart by Helm on two real nodes: kubelet, containerd, kube-proxy, BIRD; needs root."""
    run_pytest(session, CLUSTER, spread=PAIR)


@nox.session
def slow(session: nox.Session) -> None:
    """What `integration` leaves out for its time; needs root."""
    run_pytest(session, ALL_PARTS, "-m", "slow", spread=TRIO)


@nox.session
def cluster_slow(session: nox.Session) -> None:
    """What `cluster` leaves out for its time, such as every command of the pages; needs root."""
    run_pytest(session, CLUSTER, "-m", "slow", spread=PAIR)


@nox.session
def egress_slow(session: nox.Session) -> None:
    """What `egress` leaves out, for its time or for what it depends on, such as Coil v2's programs; needs root."""
    chosen = [*results(session), "-m", "slow or timing", *(session.posargs or EGRESS)]
    session.run(PYTHON, "-m", "integration.egress", *chosen, env=environment(session) | {"COIL_V2": "1"})


def run_families(session: nox.Session, families: str) -> None:
    """Run the packets of egress NAT in a cluster of other IP families than that of the session `egress`."""
    chosen = [*results(session), *(session.posargs or FAMILIES)]
    session.run(PYTHON, "-m", "integration.egress", *chosen, env=environment(session) | {"COIL_FAMILIES": families})


@nox.session
def egress_ipv6_first(session: nox.Session) -> None:
    """Egress NAT in a dual-stack cluster whose first family is IPv6; needs root."""
    run_families(session, "ipv6-first")


@nox.session
def egress_ipv4_only(session: nox.Session) -> None:
    """Egress NAT in a cluster without IPv6; needs root."""
    run_families(session, "ipv4-only")


@nox.session
def egress_ipv6_only(session: nox.Session) -> None:
    """Egress NAT in a cluster without IPv4; needs root."""
    run_families(session, "ipv6-only")


@nox.session
def egress_ipvs(session: nox.Session) -> None:
    """The way of egress NAT's packets where kube-proxy uses IPVS; needs root."""
    chosen = [*results(session), *(session.posargs or IPVS)]
    session.run(PYTHON, "-m", "integration.egress", *chosen, env=environment(session) | {"COIL_PROXY_MODE": "ipvs"})


@nox.session
def timing(session: nox.Session) -> None:
    """The tests whose verdict depends on how fast the machine is, in one process: leave it alone; needs root."""
    run_pytest(session, [*ALL_PARTS, *CLUSTER], "-m", "timing")


@nox.session
def oldest(session: nox.Session) -> None:
    """The oldest Kubernetes that is supported, and kube-proxy's other mode; needs root.

    The services against its API server, two nodes, and the packets of egress NAT.
    """
    old = {"COIL_KUBERNETES": "1.34", "COIL_PROXY_MODE": "iptables"}
    env = environment(session) | old
    for spread, folders in ((TRIO, PARTS["apiserver"]), (PAIR, CLUSTER)):
        chosen = session.posargs or ["-m", "not timing", *folders]
        session.run(PYTHON, "-m", "pytest", *spread, *chosen, env=env)
    if not session.posargs:
        session.run(PYTHON, "-m", "integration.egress", *PACKETS, env=env)


@nox.session
def conformance(session: nox.Session) -> None:
    """Kubernetes' own network conformance tests, in clusters of four kinds; `-- ipv4-first` for one; needs root."""
    session.run(PYTHON, "-m", "integration.conformance", *session.posargs, env=ENVIRONMENT)


@nox.session
def arm64(session: nox.Session) -> None:
    """The image and the plugin for linux/arm64, built and executed under QEMU's user emulation; needs root."""
    run_pytest(session, ["integration/arm64"])


@nox.session
def upgrade(session: nox.Session) -> None:
    """An upgrade from the former release by Helm on two real nodes, and back; `-- --from=REVISION`; needs root."""
    # Without a record of what was asked of the API server: half of it are the former release's questions.
    session.run(PYTHON, "-m", "pytest", "integration/upgrade", *session.posargs, env=ENVIRONMENT)


@nox.session
def access(session: nox.Session) -> None:
    """The chart's roles against the calls that the programs made in all sessions before."""
    run_pytest(session, ["integration/access"])


@nox.session
def bench(session: nox.Session) -> None:
    """Measure, beside the peers, into build/bench.json; `-- NAME...` for a part."""
    session.run(PYTHON, "-m", "integration.bench", *session.posargs)


@nox.session
def generate(session: nox.Session) -> None:
    """Write again what is generated: the CRDs and the gRPC messages."""
    for module in ("integration.generate", "protos.generate"):
        session.run(PYTHON, "-m", module)
