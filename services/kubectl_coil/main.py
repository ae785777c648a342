"""The command line of `kubectl coil`: each command with its options, and what becomes of errors.

What a command does is imported when it runs, so that `--help` and completion take no longer than Python and click.

Exit codes: 0 fine, 1 something is wrong (in the cluster, or what was asked for does not exist), 2 the cluster could not
be asked, or the command line could not be read; 130 when interrupted, and 143 when ended by SIGTERM.
"""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

import click

from kubectl_coil.options import READABLE, ClusterCommand, Options, Output, Period

ABSENT: Final = 1
UNREACHABLE: Final = 2
INTERRUPTED: Final = 128 + signal.SIGINT
_NAME: Final = "kubectl coil"
_RIGHTS: Final = (
    "bind a ClusterRole to the user of this kubeconfig: coil-viewer to read, coil-node-reader to ask nodes, "
    "coil-connectivity for that command"
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def cli() -> None:
    """See and check what Coil does in a cluster. Nothing changes anything, but for `connectivity`."""


@cli.command()
def version() -> None:
    """Print the version of this command."""
    from importlib.metadata import version as package_version

    click.echo(package_version("coil"))


@cli.command(cls=ClusterCommand)
@click.option(
    "--wait",
    type=Period(),
    default=None,
    help="Look again until all is fine, for this time at most, such as 5m.",
)
@click.pass_obj
def status(options: Options, wait: float | None) -> None:
    """Show whether Coil is fine: programs, pools, Egresses, gateways, and the last warnings.

    The exit code is 0 if all is fine, 1 if something is wrong, and 2 if the cluster cannot be asked.
    """
    from kubectl_coil.status.command import show_status

    _run(show_status(options, wait=wait or 0.0))


@cli.group()
def ipam() -> None:
    """See who has which address, and whether all agree on it."""


@ipam.command(cls=ClusterCommand)
@click.argument("target", default="")
@click.option("-n", "--namespace", default="default", show_default=True, help="The namespace of pod/NAME.")
@click.pass_obj
def show(options: Options, target: str, namespace: str) -> None:
    """Show who has which address: of TARGET, or of all pools.

    TARGET is an address, pool/NAME, node/NAME, pod/NAMESPACE/NAME, or pod/NAME with --namespace.

    The exit code is 1 if there is no such pool, node or pod.
    """
    from kubectl_coil.ipam.command import show_ipam
    from kubectl_coil.ipam.target import TargetError, parse_target

    try:
        about = parse_target(target, namespace=namespace) if target else None
    except TargetError as error:
        raise click.UsageError(str(error)) from None
    _run(show_ipam(options, about))


@ipam.command(cls=ClusterCommand)
@click.option(
    "--settle",
    type=Period(),
    default="15s",
    show_default=True,
    help="How long a finding must last to be reported.",
)
@click.pass_obj
def check(options: Options, settle: float) -> None:
    """Compare the API server's objects, the nodes' coilds and kernels, and show where they disagree.

    The exit code is 0 if all agree, 1 if not, or if a node could not be asked, and 2 if the cluster cannot be asked.
    """
    from kubectl_coil.ipam.command import check_ipam

    _run(check_ipam(options, settle=settle))


@cli.command(cls=ClusterCommand)
@click.argument("pod")
@click.argument("destination")
@click.option("-n", "--namespace", default="default", show_default=True, help="The namespace of the pod.")
@click.option(
    "--protocol",
    type=click.Choice(["tcp", "udp", "sctp", "icmp"]),
    default="tcp",
    show_default=True,
    help="The protocol of the packet.",
)
@click.pass_obj
def trace(options: Options, pod: str, destination: str, namespace: str, protocol: str) -> None:
    """Show the way of a packet from POD to DESTINATION, hop by hop.

    POD is NAME or NAMESPACE/NAME, DESTINATION an address with a port where the protocol has one, such as 192.0.2.1:443
    or [2001:db8::1]:443.

    No packet is sent: the answer is from objects, and from what the nodes' kernels hold. The exit code is 0 if the
    packet reaches its destination or leaves the cluster, and 1 if not.
    """
    from kubectl_coil.trace.command import show_trace
    from kubectl_coil.trace.target import TraceTargetError, parse_destination, parse_pod

    try:
        whose, where = parse_pod(pod, namespace=namespace), parse_destination(destination)
    except TraceTargetError as error:
        raise click.UsageError(str(error)) from None
    _run(show_trace(options, whose, where, protocol=protocol))


@cli.command(cls=ClusterCommand, outputs=(*READABLE, Output.JUNIT))
@click.option(
    "--node", "nodes", multiple=True, help="A node to try it on; given twice, the other one. By default any two."
)
@click.option(
    "--image", default="", help="The image of the pods, which has coil-connectivity-probe. By default Coil's."
)
@click.option(
    "--outside",
    multiple=True,
    metavar="ADDRESS:PORT",
    help="Where coil-connectivity-probe serves outside of the cluster, once for each family.",
)
@click.option(
    "--timeout", type=Period(), default="2m", show_default=True, help="How long pods and policies may take to be ready."
)
@click.pass_obj
def connectivity(
    options: Options, nodes: tuple[str, ...], image: str, outside: tuple[str, ...], timeout: float
) -> None:
    """Send real packets between pods, nodes and Services, and out of the cluster, and show what arrives.

    Makes a namespace coil-connectivity-..., with pods on two nodes, and deletes it at the end, also after Ctrl-C.
    Nothing else in the cluster is changed.

    The exit code is 0 if every check passed or could not be tried, 1 if one failed, and 2 if the cluster cannot be
    asked.
    """
    from kubectl_coil.connectivity.command import ConnectivityError, Wishes, try_connectivity
    from kubectl_coil.connectivity.tour import OutsideServer
    from kubectl_coil.trace.target import TraceTargetError, parse_destination

    try:
        places = [parse_destination(each) for each in outside]
    except TraceTargetError as error:
        raise click.UsageError(str(error)) from None
    if any(place.port is None for place in places):
        raise click.UsageError("--outside has no port: such as 192.0.2.1:8080 or [2001:db8::1]:8080")
    servers = [OutsideServer(place.address, place.port or 0) for place in places]
    try:
        _run(try_connectivity(options, Wishes(image=image, nodes=nodes, outside=servers, seconds=timeout)))
    except ConnectivityError as error:
        raise click.ClickException(str(error)) from None


@cli.command(cls=ClusterCommand, outputs=())
@click.option(
    "-f",
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write, which must not exist. By default coil-sysdump-TIME.zip.",
)
@click.option("--node", "nodes", multiple=True, help="A node to read, given once or more.")
@click.option(
    "--most-nodes", type=click.IntRange(min=0), default=20, show_default=True, help="How many nodes to read otherwise."
)
@click.option(
    "--size-limit",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="What the files may have together, in MiB, before they are compressed.",
)
@click.pass_obj
def sysdump(options: Options, path: Path | None, nodes: tuple[str, ...], most_nodes: int, size_limit: int) -> None:
    """Collect what somebody who helps from afar needs, in one zip file.

    That is objects, Events, logs, metrics, what nodes hold, and what `status` and `ipam show` tell. Secrets are not
    read; values of environment variables and of unknown annotations are redacted. Logs are as they are: look at them
    before you hand them on.

    The exit code is 0 if the dump has everything, 1 if something could not be read, which index.json in it tells, and 2
    if the cluster cannot be asked.
    """
    from kubectl_coil.sysdump.command import Wishes, write_sysdump

    try:
        _run(write_sysdump(options, Wishes(path=path, nodes=nodes, most=most_nodes, limit=size_limit << 20)))
    except OSError as error:
        raise click.ClickException(f"the dump cannot be written: {error}") from None


def _run(command: Coroutine[Any, Any, int]) -> None:
    """Run it to its end and exit with its code; an error becomes one sentence."""
    from coil.kube.access import AccessError
    from coil.kube.errors import ApiError, ForbiddenError, NotFoundError

    try:
        code = asyncio.run(_end_with(signal.SIGTERM, command))
    except NotFoundError as error:
        click.echo(f"{_NAME}: {error}", err=True)
        code = ABSENT
    except (ApiError, AccessError) as error:
        remedy = f"; {_RIGHTS}" if isinstance(error, ForbiddenError) else ""
        click.echo(f"{_NAME}: {error}{remedy}", err=True)
        code = UNREACHABLE
    raise click.exceptions.Exit(code)


async def _end_with(number: signal.Signals, command: Coroutine[Any, Any, int]) -> int:
    """Its exit code; the signal cancels it, as SIGINT does, so that it cleans up."""
    task = asyncio.ensure_future(command)
    asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        if (this := asyncio.current_task()) is not None and this.cancelling():
            raise  # by SIGINT, which asyncio.run handles
        return 128 + number


def main() -> int:
    """The program. Standard output that is closed early, as by `head`, is no error."""
    try:
        code = cli.main(prog_name=_NAME, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    return code if isinstance(code, int) else 0
