"""The options that all commands share: which cluster, how long a call may take, and how the answer is printed.

kubectl does not hand its own flags to a plugin, so each command takes them after its name: `kubectl coil status
--context=production`. Names and meanings are kubectl's.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kubectl_coil.cluster import Cluster

DEFAULT_KUBECONFIG: Final = Path(".kube/config")
"""Below the home folder, as kubectl has it."""


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    JUNIT = "junit"
    """For CI systems, where an answer is a list of checks."""


READABLE: Final = (Output.TABLE, Output.JSON, Output.YAML)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`timeout` is in seconds and bounds each call to the API server."""

    kubeconfig: Path | None
    context: str
    timeout: float
    output: Output

    def connect(self) -> "AbstractAsyncContextManager[Cluster]":
        """The cluster of these options; entering raises AccessError."""
        return _connect(self)


@asynccontextmanager
async def _connect(options: Options) -> "AsyncIterator[Cluster]":
    from coil.kube.access import Access
    from kubectl_coil.cluster import Cluster

    paths = find_kubeconfigs(options.kubeconfig, os.environ, home=Path.home())
    access = Access.kubeconfig(*paths, context=options.context) if paths else Access.in_cluster()
    await access.read()
    async with Cluster.connect(access.config, timeout=options.timeout) as cluster:
        yield cluster


def find_kubeconfigs(chosen: Path | None, environment: Mapping[str, str], *, home: Path) -> list[Path]:
    """The files to merge: the chosen one, those of KUBECONFIG, or the one in the home folder; none in a pod that has
    none. Of several in KUBECONFIG, those that do not exist are passed over, as by kubectl.
    """
    if chosen is not None:
        return [chosen]
    named = [Path(part) for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]
    if named:
        return [path for path in named if path.exists()] or named
    usual = home / DEFAULT_KUBECONFIG
    return [usual] if usual.exists() or "KUBERNETES_SERVICE_HOST" not in environment else []


class Period(click.ParamType[float]):
    """A duration as Go programs write it, such as 10s or 2m; in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        from coil.runtime.flag import parse_period

        try:
            return parse_period(value)
        except ValueError as error:
            self.fail(f"{value!r} is not {error}", param, ctx)


class ClusterCommand(click.Command):
    """A command that asks a cluster: it has the shared options, and its function gets them by `click.pass_obj`."""

    def __init__(
        self,
        name: str | None,
        *,
        params: Sequence[click.Parameter] = (),
        outputs: Sequence[Output] = READABLE,
        **keywords: Any,
    ) -> None:
        super().__init__(name, params=[*params, *_shared_options(outputs)], **keywords)

    def invoke(self, ctx: click.Context) -> Any:
        take = ctx.params.pop
        ctx.obj = Options(
            kubeconfig=take("kubeconfig"),
            context=take("context"),
            timeout=take("request_timeout"),
            output=Output(take("output", Output.TABLE)),
        )
        return super().invoke(ctx)


def _shared_options(outputs: Sequence[Output]) -> Iterator[click.Option]:
    """Without `outputs`, a command has one way to tell what it does."""
    if outputs:
        yield click.Option(
            ["-o", "--output"],
            type=click.Choice([each.value for each in outputs]),
            default=Output.TABLE.value,
            show_default=True,
            help="How to print the answer.",
        )
    yield click.Option(
        ["--kubeconfig"],
        type=click.Path(dir_okay=False, path_type=Path),
        help="The kubeconfig to use in place of $KUBECONFIG or ~/.kube/config.",
    )
    yield click.Option(["--context"], default="", help="The context of the kubeconfig to use.")
    yield click.Option(
        ["--request-timeout"],
        type=Period(),
        default="10s",
        show_default=True,
        help="How long one call to the API server may take.",
    )
