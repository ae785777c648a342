"""The command line of `kubectl coil`: each command with its options, and what becomes of errors.

What a command does is imported when it runs, so that `--help` and completion take no longer than Python and click.

Exit codes: 0 fine, 1 something is wrong (in the cluster, or what was asked for does not exist), 2 the cluster could not
be asked, or the command line could not be read; 130 when interrupted.
"""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any, Final

import click

from kubectl_coil.options import ClusterCommand, Options, Period

ABSENT: Final = 1
UNREACHABLE: Final = 2
INTERRUPTED: Final = 128 + signal.SIGINT
_NAME: Final = "kubectl coil"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def cli() -> None:
    """See and check what Coil does in a cluster. Changes nothing."""


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


def _run(command: Coroutine[Any, Any, int]) -> None:
    """Run it to its end and exit with its code; an error becomes one sentence."""
    from coil.kube.access import AccessError
    from coil.kube.errors import ApiError, NotFoundError

    try:
        code = asyncio.run(command)
    except NotFoundError as error:
        click.echo(f"{_NAME}: {error}", err=True)
        code = ABSENT
    except (ApiError, AccessError) as error:
        click.echo(f"{_NAME}: {error}", err=True)
        code = UNREACHABLE
    raise click.exceptions.Exit(code)


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
