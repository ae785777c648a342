"""coil-migrator: from Coil v1 or v2 while pods run. A command for a person, not a service.

    coil-migrator check                                     tells what changes for a cluster of Coil v2; changes nothing

    coil-migrator dump --etcd-endpoints=… > data.yaml      ends v1 in the cluster and converts what it knows
    kubectl apply -f data.yaml                              then v2 is installed
    coil-migrator replace                                   replaces v1's pods, and frees what was reserved for them

Exit codes: 0 done, 1 not done (the last lines say why and what has been changed), 2 for flags that cannot be read,
130 when interrupted. Of check: 3 if something changes, 4 if something must be mended first.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from coil.kube.access import SERVICE_ACCOUNT, AccessError
from coil.kube.client import KubeClient
from coil.kube.errors import ApiError
from coil.runtime.flag import parse_settings
from coil_migrator.check.cluster import Cluster, read_cluster
from coil_migrator.check.finding import exit_code, render_json, render_text
from coil_migrator.check.manifest_object import with_manifests
from coil_migrator.check.report import check
from coil_migrator.convert import ConversionError, convert_manifests
from coil_migrator.dump import DumpError, dump
from coil_migrator.etcd_reader import EtcdError, EtcdReader
from coil_migrator.manifest_reader import ManifestError, read_manifests
from coil_migrator.progress import Progress
from coil_migrator.replace import Outlook, ReplaceError, look, replace
from coil_migrator.settings import CheckSettings, ClusterSettings, ConvertSettings, DumpSettings, ReplaceSettings

NAME = "coil-migrator"
USAGE = f"""usage: {NAME} check|convert|dump|replace [flags]

  check    tell what changes for a cluster that Coil v2 or egressgateway runs, and what must be mended first
  convert  print manifests of egressgateway as they are needed here
  dump     remove Coil v1 from the cluster and print its pools and blocks as v2's objects
  replace  replace the pods that v1 has given addresses, and remove the blocks reserved for them

{NAME} check --help tells the flags of check, and so on."""

INTERRUPTED = 128 + signal.SIGINT
FAILURES = (ManifestError, ConversionError, DumpError, ReplaceError, EtcdError, ApiError, AccessError, OSError)
AGREEMENT = frozenset({"y", "yes"})

T = TypeVar("T")


def main() -> int:
    command, arguments = sys.argv[1:2], sys.argv[2:]
    if command == ["check"]:
        about = (
            "Tells what these programs would do with what Coil v2 or egressgateway has in a cluster, or in manifests. "
            "It reads, and changes nothing. "
            "Exit code: 0 nothing changes, 3 something changes, 4 something must be mended first, 1 no answer."
        )
        return _guarded(partial(_check, _parse(CheckSettings, "check", arguments, about)))
    if command == ["convert"]:
        about = "Prints manifests; those of egressgateway as they are needed here, all others as they are."
        return _guarded(partial(_convert, _parse(ConvertSettings, "convert", arguments, about)))
    if command == ["dump"]:
        about = "Removes Coil v1 from the cluster and prints its pools and blocks as objects of v2. Can be repeated."
        return _guarded(partial(_dump, _parse(DumpSettings, "dump", arguments, about)))
    if command == ["replace"]:
        about = "Replaces the pods that v1 has given addresses, then removes the reserved blocks. Can be repeated."
        return _guarded(partial(_replace, _parse(ReplaceSettings, "replace", arguments, about)))
    asked = command in (["--help"], ["-h"])
    print(USAGE, file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


def _parse(settings: type[T], command: str, arguments: list[str], about: str) -> T:
    return parse_settings(settings, arguments, os.environ, program=f"{NAME} {command}", about=about)


def _guarded(command: Callable[[Progress, list[str]], int]) -> int:
    """Run it; whatever ends it, tell why and what has been changed by then."""
    progress = Progress(sys.stderr, columns=_columns if sys.stderr.isatty() else None)
    done: list[str] = []
    try:
        return command(progress, done)
    except (KeyboardInterrupt, asyncio.CancelledError):
        reason, code = "interrupted", INTERRUPTED
    except FAILURES as error:
        reason, code = str(error), 1
    progress.end()
    progress.say(f"{NAME}: {reason}")
    for deed in done:
        progress.say(f"  {deed}")
    progress.say("run it again to go on" if done else "nothing was changed")
    return code


def _check(settings: CheckSettings, _progress: Progress, _done: list[str]) -> int:
    manifests = read_manifests(settings.filename)
    cluster = Cluster() if settings.local else _read_cluster(settings, settings.namespace)
    findings = check(with_manifests(cluster, manifests))
    sys.stdout.write(render_json(findings) if settings.output == "json" else render_text(findings))
    sys.stdout.flush()
    return exit_code(findings)


def _convert(settings: ConvertSettings, _progress: Progress, _done: list[str]) -> int:
    manifests = read_manifests(settings.filename)
    cluster = _read_cluster(settings, ()) if settings.pin else None
    sys.stdout.write(convert_manifests(manifests, cluster))
    sys.stdout.flush()
    return 0


def _read_cluster(settings: ClusterSettings, namespaces: Sequence[str]) -> Cluster:
    async def work() -> Cluster:
        async with KubeClient.connect(_kubeconfig(settings)) as kube:
            return await read_cluster(kube, namespaces=namespaces)

    return asyncio.run(_stoppable(work()))


def _dump(settings: DumpSettings, progress: Progress, done: list[str]) -> int:
    async def work() -> str:
        async with EtcdReader(settings.etcd) as keys, KubeClient.connect(_kubeconfig(settings)) as kube:
            return await dump(kube, keys, settings.options, progress=progress, done=done)

    if settings.output is not None and not settings.output.parent.is_dir():
        raise DumpError(f"--output: there is no folder {settings.output.parent}")
    text = asyncio.run(_stoppable(work()))
    progress.end()
    if settings.output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_whole(settings.output, text)
    return 0


def _replace(settings: ReplaceSettings, progress: Progress, done: list[str]) -> int:
    async def see() -> Outlook:
        async with KubeClient.connect(_kubeconfig(settings)) as kube:
            return await look(kube, settings.options)

    async def work() -> None:
        async with KubeClient.connect(_kubeconfig(settings)) as kube:
            await replace(kube, settings.options, progress=progress, done=done)

    outlook = asyncio.run(_stoppable(see()))
    if not outlook:
        progress.say("nothing of v1 is left")
        return 0
    for line in outlook.lines():
        progress.say(line)
    if settings.dry_run:
        return 0
    # Outside of any event loop, so that Ctrl-C ends the question.
    if not settings.yes and not _agreed():
        progress.say("nothing was changed")
        return 1
    asyncio.run(_stoppable(work()))
    progress.end()
    progress.say(f"{len(done)} changes; nothing of v1 is left")
    return 0


def _agreed() -> bool:
    sys.stderr.write("Do you want to proceed? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in AGREEMENT


async def _stoppable(work: Coroutine[Any, Any, T]) -> T:
    """Run it; SIGTERM ends it as Ctrl-C does."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await task
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def _kubeconfig(settings: ClusterSettings) -> Path | None:
    """As kubectl finds it: the one that is named, the pod's own account, the person's own."""
    own = Path.home() / ".kube" / "config"
    if settings.kubeconfig is None and not SERVICE_ACCOUNT.exists() and own.is_file():
        return own
    return settings.kubeconfig


def _columns() -> int:
    return shutil.get_terminal_size().columns


def write_whole(path: Path, text: str) -> None:
    """All of it under that name, or what was there before. Raises OSError."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


if __name__ == "__main__":
    sys.exit(main())
