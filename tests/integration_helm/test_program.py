"""Helm is taken out of the one wheel that is meant."""

import zipfile
from pathlib import Path

import pytest

from integration.helm.program import HelmError, extract_helm, run_helm


def test_another_wheel_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "other.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("helm/helm", b"#!/bin/sh\n")
    with pytest.raises(HelmError, match=r"other\.whl has the digest"):
        extract_helm(wheel, tmp_path / "helm")
    assert not (tmp_path / "helm").exists()


def test_what_helm_says_is_the_message() -> None:
    with pytest.raises(HelmError, match=r"helm lint ended with code 1: .*nowhere"):
        run_helm(["lint", "nowhere"])


def test_the_version_of_the_specification() -> None:
    assert run_helm(["version", "--template={{.Version}}"]) == "v4.3.1"
