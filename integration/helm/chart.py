"""charts/coil as Helm renders it, without a cluster: for the API server tests, and for the chart's own."""

import json
import re
from collections.abc import Mapping
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


@cache
def _template(values: str, profiles: tuple[str, ...], namespace: str, kubernetes: str) -> str:
    arguments = ["template", RELEASE, str(CHART), f"--namespace={namespace}", *_files(profiles)]
    if kubernetes:
        arguments.append(f"--kube-version={kubernetes}")
    # A dictionary as a whole, as --set would take commas and dots for its own.
    arguments += [f"--set-json={key}={json.dumps(value)}" for key, value in json.loads(values).items()]
    return _SOURCE.sub("", run_helm(arguments))


def _files(profiles: tuple[str, ...]) -> list[str]:
    return [f"--values={PROFILES / profile}.yaml" for profile in profiles]
