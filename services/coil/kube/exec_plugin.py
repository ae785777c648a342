"""Programs that give credentials: the exec plugins of client-go (client.authentication.k8s.io, v1 and v1beta1), and
gcloud.

kubernetes-asyncio's own runners wait for ever, leave a program behind that is cancelled, and give it the terminal.
"""

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from coil.kube.client_config import ConfigError

SECONDS: Final = 60.0
"""How long a program may take."""


class _Variable(Struct, frozen=True):
    name: str
    value: str


class ExecPlugin(Struct, frozen=True, kw_only=True, rename="camel"):
    """`exec` of a user in a kubeconfig (k8s.io/client-go, tools/clientcmd/api/v1/types.go)."""

    api_version: str
    command: str
    args: tuple[str, ...] = ()
    env: tuple[_Variable, ...] = ()
    install_hint: str = ""
    interactive_mode: str = ""
    provide_cluster_info: bool = False


class Credential(Struct, frozen=True, kw_only=True, rename="camel"):
    """A token, or a certificate with its key (PEM), or both."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class _ExecCredential(Struct, frozen=True, kw_only=True):
    status: Credential


async def run_exec_plugin(plugin: ExecPlugin, folder: Path) -> Credential:
    """What the plugin prints; a command with a slash is relative to the kubeconfig's folder, as for kubectl.

    Cancelled, it ends the plugin. Raises ValueError, and ConfigError for what is not supported.
    """
    if plugin.interactive_mode == "Always":
        raise ConfigError(f"the exec plugin {plugin.command} wants a terminal (interactiveMode: Always)")
    if plugin.provide_cluster_info:
        raise ConfigError(
            f"the exec plugin {plugin.command} wants to know the cluster (provideClusterInfo): not supported"
        )
    command = str((folder / plugin.command).absolute()) if "/" in plugin.command else plugin.command
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
    environment = {
        **{variable.name: variable.value for variable in plugin.env},
        "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode(),
    }
    what = f"exec plugin {command}"
    output = await run_program([command, *plugin.args], what=what, environment=environment, hint=plugin.install_hint)
    credential = msgspec.json.decode(output, type=_ExecCredential).status
    if not credential.token and not (credential.client_certificate_data and credential.client_key_data):
        raise ConfigError(f"the {what} gave neither a token nor a certificate with its key")
    return credential


async def run_program(argv: Sequence[str], *, what: str, environment: Mapping[str, str], hint: str = "") -> bytes:
    """Its standard output. `environment` is added to this process's; `hint` says how to get a program that is missing.

    Cancelled, it ends the program. Raises ConfigError if it is not there, fails, or takes longer than SECONDS.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, env={**os.environ, **environment}, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
        )
    except FileNotFoundError:
        raise ConfigError(f"there is no {what}. {hint}".rstrip()) from None
    try:
        async with asyncio.timeout(SECONDS):
            output, complaint = await process.communicate()
    except TimeoutError:
        raise ConfigError(f"the {what} did not answer within {SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        reason = complaint.decode(errors="replace").strip()
        raise ConfigError(f"the {what} failed with exit code {process.returncode}: {reason}")
    return output
