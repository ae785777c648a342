"""Transactions with the database of Open vSwitch over its Unix socket: the OVSDB management protocol (RFC 7047), as far
as ports of a bridge need it.

One connection is one transaction. `ovs-vsctl` would say the same, and bring eight libraries into the image.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

DATABASE: Final = "Open_vSwitch"
MOST_BYTES: Final = 16 * 1024 * 1024
"""Of an answer."""
_CHUNK: Final = 65536


class OvsdbError(Exception):
    """The transaction was not carried out, or nobody knows; the message says why."""


async def transact(path: Path, operations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The result of each operation; all of them are carried out, or none.

    Raises OvsdbError. It has no time of its own; cancelled, nobody knows whether it was carried out.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(path)
    except OSError as error:
        raise OvsdbError(f"no Open vSwitch at {path}: {error.strerror or error}") from error
    try:
        writer.write(_message({"method": "transact", "params": [DATABASE, *operations], "id": 0}))
        answer = await _receive(reader, writer)
    except (OSError, ValueError) as error:
        raise OvsdbError(f"no answer of Open vSwitch at {path}: {error}") from error
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return _results(answer)


async def _receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> dict[str, Any]:
    """The answer. The server's questions whether anybody is there are answered meanwhile (RFC 7047, section 4.1.11)."""
    decoder, text = json.JSONDecoder(), ""
    size = 0
    while chunk := await reader.read(_CHUNK):
        size += len(chunk)
        if size > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES} bytes")
        # What the protocol carries here is ASCII, but for names that others have given to their ports.
        text += chunk.decode(errors="replace")
        while text := text.lstrip():
            try:
                message, end = decoder.raw_decode(text)
            except json.JSONDecodeError:
                break
            text = text[end:]
            if message.get("method") == "echo":
                writer.write(_message({"result": message.get("params"), "error": None, "id": message.get("id")}))
            elif message.get("id") == 0:
                return dict(message)
    raise ValueError("the connection was closed")


def _results(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    if answer.get("error"):
        raise OvsdbError(f"Open vSwitch refuses it: {answer['error']}")
    results = answer.get("result") or []
    for result in results:
        if result and "error" in result:
            raise OvsdbError(f"Open vSwitch refuses it: {result['error']}: {result.get('details', '')}")
    return [result or {} for result in results]


def _message(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode()
