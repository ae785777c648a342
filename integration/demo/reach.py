"""Who reaches whom: real HTTP over TCP, from inside pods by `kubectl exec` and from the nodes' own namespaces."""

import shlex
from concurrent.futures import ThreadPoolExecutor

from integration.cluster.control_plane import ControlPlane, KubectlError
from integration.cluster.node import Node, NodeCommandError
from integration.demo.inventory import PodRow
from integration.demo.workload import PORT

# Bounded from outside: Debian's static busybox crashes on wget's own -T.
_WGET = ("busybox", "wget", "-q", "-O", "-")
_TIMEOUT = 15
"""Seconds for one request. Only what is broken takes so long, and starting programs on a machine that is busy else."""

FETCH = ("timeout", str(_TIMEOUT), *_WGET)
"""Prints what the URL that follows answers."""

TRY_FETCH = ("timeout", "3", *_WGET)
"""The same of what need not answer: it is asked again, or must not answer at all."""


def url(address: str) -> str:
    """Where a pod answers with its name."""
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{PORT}/name"


def find_gaps(plane: ControlPlane, nodes: list[Node], pods: list[PodRow]) -> list[str]:
    """Try every pod and node against every pod in both families; returns a sentence for each pair that failed.

    A pod reaches itself too. The answer must be the name of the pod that was asked.
    """
    with ThreadPoolExecutor(max_workers=4) as pool:
        from_pods = pool.map(lambda source: _from_pod(plane, source, pods), pods)
        from_nodes = pool.map(lambda node: _from_node(node, pods), nodes)
        return [gap for gaps in (*from_pods, *from_nodes) for gap in gaps]


def _from_pod(plane: ControlPlane, source: PodRow, targets: list[PodRow]) -> list[str]:
    try:
        printed = plane.kubectl(
            "exec",
            f"--namespace={source.namespace}",
            source.name,
            "--",
            "busybox",
            "sh",
            "-c",
            render_requests(targets),
        )
    except KubectlError as error:
        return [f"{source.namespace}/{source.name}: {error}"]
    return compare_answers(f"{source.namespace}/{source.name} on {source.node}", printed, targets)


def _from_node(node: Node, targets: list[PodRow]) -> list[str]:
    try:
        printed = node.run(["busybox", "sh", "-c", render_requests(targets)], timeout=_TIMEOUT * 2 * len(targets) + 10)
    except NodeCommandError as error:
        return [str(error)]
    return compare_answers(node.name, printed, targets)


def render_requests(targets: list[PodRow]) -> str:
    """A shell script that prints one line for each address of the targets: the answer, or nothing."""
    fetch = shlex.join(FETCH)
    addresses = [address for target in targets for address in target.addresses if address]
    return "; ".join(f'echo "$({fetch} {url(address)})"' for address in addresses)


def compare_answers(source: str, printed: str, targets: list[PodRow]) -> list[str]:
    """A sentence for each address of which `printed`, what that script printed at `source`, has not the pod's name."""
    answers = [line.strip() for line in printed.split("\n")]
    gaps = []
    expected = [(target, address) for target in targets for address in target.addresses if address]
    for number, (target, address) in enumerate(expected):
        answer = answers[number] if number < len(answers) else ""
        if answer != target.name:
            gaps.append(f"{source} asked {target.name} at {address} and got {answer!r}")
    return gaps
