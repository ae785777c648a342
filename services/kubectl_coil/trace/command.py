"""`kubectl coil trace`, from the options to the exit code."""

from kubectl_coil.node_reader import ExecNodeReader
from kubectl_coil.options import Options
from kubectl_coil.output import print_document
from kubectl_coil.trace.cluster_view import ClusterView
from kubectl_coil.trace.document import Verdict
from kubectl_coil.trace.tables import render_trace
from kubectl_coil.trace.target import Destination
from kubectl_coil.trace.walk import Walk


async def show_trace(options: Options, pod: tuple[str, str], destination: Destination, *, protocol: str) -> int:
    """Print the way of the packet; 0 if it arrives or leaves the cluster, 1 if not.

    Raises ApiError, NotFoundError among them, and AccessError.
    """
    async with options.connect() as cluster:
        view = ClusterView(cluster, ExecNodeReader(cluster))
        walk = Walk(view, await view.pod(*pod), destination.address, protocol, destination.port)
        document = await walk.trace()
    print_document(document, options.output, lambda console: render_trace(document, console))
    return 0 if document.verdict is Verdict.DELIVERED else 1
