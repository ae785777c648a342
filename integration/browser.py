"""A real headless Chromium, where a person at a node would have it: in the node's network namespace.

It has a profile of its own, and nothing of it is left afterwards. What it says to its console, and what it fetches, is
kept for the tests to judge.
"""

import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from playwright.async_api import BrowserContext, ConsoleMessage, Page, Request, async_playwright

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--no-sandbox",  # it runs as root, like everything here
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE = 60_000.0
"""Milliseconds in which what is awaited must come; only a failure takes so long."""

Scheme = Literal["light", "dark"]


@dataclass
class Visit:
    """A page that is open. `errors` are what went wrong in it, `requests` the URLs that it asked for."""

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def watch(self) -> None:
        """Begin to keep what it says and fetches."""
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.errors.append(message.text)

    def _on_request(self, request: Request) -> None:
        # What is in the document itself needs no network.
        if not request.url.startswith("data:"):
            self.requests.append(request.url)


class Browser:
    """Made by `open_browser`."""

    def __init__(self, context: BrowserContext) -> None:
        self._context = context

    async def open(self, url: str, *, scheme: Scheme = "light") -> Visit:
        """A page of its own, loaded."""
        visit = Visit(await self._context.new_page())
        visit.watch()
        visit.page.set_default_timeout(PATIENCE)
        await visit.page.emulate_media(color_scheme=scheme)
        await visit.page.goto(url)
        return visit


@asynccontextmanager
async def open_browser(
    folder: Path, *, entrance: Sequence[str], flags: Sequence[str] = (), size: tuple[int, int] = (1240, 1000)
) -> AsyncIterator[Browser]:
    """A browser with a profile in `folder`, started through `entrance`, the beginning of a command line."""
    program = folder / "chromium"
    program.write_text(f'#!/bin/sh\nexec {shlex.join([*entrance, CHROMIUM])} "$@"\n')
    program.chmod(0o700)
    width, height = size
    async with async_playwright() as playwright:
        context = await playwright.chromium.launch_persistent_context(
            folder / "profile",
            executable_path=program,
            args=[*FLAGS, *flags],
            viewport={"width": width, "height": height},
            timeout=PATIENCE,
        )
        try:
            yield Browser(context)
        finally:
            await context.close()
