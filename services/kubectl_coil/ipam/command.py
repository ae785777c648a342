"""`kubectl coil ipam`, from the options to the exit code."""

from kubectl_coil.ipam.check import check_addresses
from kubectl_coil.ipam.lookup import look_up
from kubectl_coil.ipam.tables import render_check, render_ipam
from kubectl_coil.ipam.target import Target
from kubectl_coil.node_reader import ExecNodeReader
from kubectl_coil.options import Options
from kubectl_coil.output import print_document


async def show_ipam(options: Options, target: Target | None) -> int:
    """Print what there is about the target. Raises ApiError, NotFoundError among them, and AccessError."""
    async with options.connect() as cluster:
        document = await look_up(cluster, ExecNodeReader(cluster), target)
    print_document(document, options.output, lambda console: render_ipam(document, console))
    return 0


async def check_ipam(options: Options, *, settle: float) -> int:
    """Print what is wrong with addresses; 1 if there is something, or if a node could not be judged.

    Raises ApiError and AccessError.
    """
    async with options.connect() as cluster:
        document = await check_addresses(cluster, ExecNodeReader(cluster), settle=settle)
    print_document(document, options.output, lambda console: render_check(document, console))
    return 1 if document.findings or document.troubles else 0
