"""charts/coil as Helm renders it, without a cluster: for the API server tests, and for the chart's own."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from integration.helm.program import run_helm

Document: TypeAlias = dict[str, Any]

CHART: Final = Path(__file__).resolve().parent.parent.parent / "charts" / "coil"
PROFILES: Final = CHART / "profiles"
RELEASE: Final = "coil"
NAMESPACE: Final = "kube-system"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SOURCE = re.compile(r"^# Source: .*\n", re.MULTILINE)


def profile_names() -> list[str]:
    """Of the values files that come with the chart, sorted."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def render(
    values: Mapping[str, object] | None = None,
    *profiles: str,
    namespace: str = NAMESPACE,
    kubernetes: str = "",
) -> list[Document]:
    """All documents but the kinds, tests included, in the order of an installation; the caller may change them.

    `values` win over `profiles`, and later profiles over earlier ones. `kubernetes` is the API server's version, for
    which some documents differ; empty: one of Helm's age. Raises HelmError, which names the value that is wrong.
    """
    text = _template(json.dumps(values or {}, sort_keys=True), profiles, namespace, kubernetes)
    return [document for document in yaml.load_all(text, Loader=_LOADER) if document]


def lint(*profiles: str) -> str:
    """What `helm lint --strict` says. Raises HelmError."""
    return run_helm(["lint", "--strict", str(CHART), *_files(profiles)])


def render_notes(values: Mapping[str, object] | None = None, *profiles: str) -> str:
    """What `helm install` tells its user at the end. Raises HelmError."""
    arguments = ["install", RELEASE, str(CHART), "--dry-run=client", f"--namespace={NAMESPACE}", *_files(profiles)]
    printed = run_helm([*arguments, *_as_flags(values or {})])
    return printed.partition("\nNOTES:\n")[2]


@cache
def _template(values: str, profiles: tuple[str, ...], namespace: str, kubernetes: str) -> str:
    arguments = ["template", RELEASE, str(CHART), f"--namespace={namespace}", *_files(profiles)]
    if kubernetes:
        arguments.append(f"--kube-version={kubernetes}")
    return _SOURCE.sub("", run_helm([*arguments, *_as_flags(json.loads(values))]))


def _as_flags(values: Mapping[str, object]) -> list[str]:
    # A dictionary as a whole, as --set would take commas and dots for its own.
    return [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]


def profile_files(profiles: Sequence[str], chart: Path = CHART) -> list[Path]:
    """The values files of these profiles."""
    return [chart / "profiles" / f"{profile}.yaml" for profile in profiles]


def _files(profiles: Sequence[str]) -> list[str]:
    return [f"--values={path}" for path in profile_files(profiles)]
