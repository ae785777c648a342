"""A real Kubernetes on this machine: ``python -m integration.cluster up [--nodes N] | down [CLUSTER] | status``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from integration.cluster.build_steps import BuildError
from integration.cluster.cleanup import CleanupError, remove_cluster
from integration.cluster.cluster import Cluster, Ending
from integration.cluster.control_plane import KubectlError
from integration.cluster.image import ImageError
from integration.cluster.network import NetworkError
from integration.cluster.node import NodeCommandError
from integration.cluster.process import ComponentError
from integration.cluster.requirement import RequirementError
from integration.cluster.survey import Standing, survey_clusters

EXPECTED = (
    BuildError,
    CleanupError,
    ComponentError,
    ImageError,
    KubectlError,
    NetworkError,
    NodeCommandError,
    RequirementError,
)
"""Errors whose message is for the user, without a traceback."""


def up(nodes: int) -> None:
    """Start a cluster that stays, and say how to use it."""
    begun = time.monotonic()
    cluster = Cluster.up(nodes=nodes, ending=Ending.ON_REQUEST)
    print(f"cluster {cluster.workspace.id} is up after {time.monotonic() - begun:.0f} s; its nodes await a CNI plugin:")
    for node in cluster.nodes:
        print(f"  {node.name}  {node.ipv4}  {node.ipv6}")
        print(f"    configuration: {node.cni_conf_dir}")
        print(f"    plugins:       {node.cni_bin_dir}")
    print(f"export KUBECONFIG={cluster.plane.admin_kubeconfig}")


def down(wanted: str | None) -> None:
    """Remove the cluster ``wanted``, or every one that no running program owns."""
    for survey in survey_clusters():
        if wanted is not None and survey.cluster != wanted:
            continue
        if survey.standing is Standing.OWNED:
            print(f"cluster {survey.cluster} is left alone: {survey.standing}")
        else:
            remove_cluster(survey.cluster)
            print(f"cluster {survey.cluster} is down")


def status() -> None:
    """Print every cluster."""
    for survey in survey_clusters():
        print(f"cluster {survey.cluster}: {survey.standing}")
        print(f"  {survey.processes} processes, {survey.memory / 1e6:.0f} MB resident")
        for node in survey.record.get("nodes", []):
            print(f"  {node['name']}  {node['ipv4']}  {node['ipv6']}")
        if survey.record:
            print(f"  export KUBECONFIG={survey.record['kubeconfig']}")


def main(arguments: Sequence[str]) -> int:
    """Run one command; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m integration.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up_parser = commands.add_parser("up", help="start a cluster that stays")
    up_parser.add_argument("--nodes", type=int, default=2, choices=range(1, 11), metavar="N")
    down_parser = commands.add_parser("down", help="remove the clusters that no running program owns")
    down_parser.add_argument("cluster", nargs="?", help="only this one")
    commands.add_parser("status", help="tell what is running")
    parsed = parser.parse_args(arguments)
    try:
        if parsed.command == "up":
            up(parsed.nodes)
        elif parsed.command == "down":
            down(parsed.cluster)
        else:
            status()
    except EXPECTED as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
