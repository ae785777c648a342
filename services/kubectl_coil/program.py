"""The pods of Coil's own programs, and their metrics. `coil-node-dump` reads these beside each program, as their page
may be reachable from the pod or the node alone.
"""

from typing import Final

import msgspec

from coil.crd.meta import ObjectMeta, Struct
from coil.crd.names import LABEL_APP_COMPONENT, LABEL_APP_INSTANCE
from coil.crd.resource import NamespacedName, Resource
from coil.page.node_dump import NodeDump, Part
from kubectl_coil.cluster import ExecError, Executor

NODE_DUMP: Final = "coil-node-dump"
_LIMIT: Final = 16 << 20
"""Bytes of one program's metrics."""


class Port(Struct, frozen=True, kw_only=True):
    name: str = ""
    container_port: int = 0


class Container(Struct, frozen=True, kw_only=True):
    name: str
    args: tuple[str, ...] = ()
    ports: tuple[Port, ...] = ()

    @property
    def metrics(self) -> str:
        """Where it serves its metrics, as a flag has it; "" where it does not."""
        for argument in self.args:
            if argument.startswith("--metrics-addr="):
                return argument.partition("=")[2]
        return next((f":{port.container_port}" for port in self.ports if port.name == "metrics"), "")


class ProgramSpec(Struct, frozen=True, kw_only=True):
    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()


class Program(Struct, frozen=True, kw_only=True):
    """A Pod of Coil's own."""

    metadata: ObjectMeta
    spec: ProgramSpec = ProgramSpec()

    @property
    def key(self) -> NamespacedName:
        return NamespacedName(self.metadata.namespace, self.metadata.name)

    @property
    def component(self) -> str:
        return self.metadata.labels.get(LABEL_APP_COMPONENT, "")

    @property
    def instance(self) -> str:
        """Of routers, the name of their Egress."""
        return self.metadata.labels.get(LABEL_APP_INSTANCE, "")


PROGRAMS: Final[Resource[Program]] = Resource("", "v1", "pods", "Pod", namespaced=True, type=Program)


async def read_metrics(cluster: Executor, program: Program, container: Container, *, seconds: float) -> bytes:
    """In Prometheus' text format. Raises ApiError, ExecError, and ValueError if it serves none, or no text."""
    command = [NODE_DUMP, f"--parts={Part.METRICS}", f"--metrics-addr={container.metrics}"]
    output = await cluster.execute(program.key, command, container=container.name, seconds=seconds, limit=_LIMIT)
    dump = msgspec.json.decode(output, type=NodeDump)
    if dump.metrics is None:
        raise ExecError("; ".join(dump.troubles) or "it serves no metrics")
    return dump.metrics.encode()
