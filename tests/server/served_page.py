"""What the page is tested against: a served cloud, a device that joined it through a relay, and the device's server."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Playwright
from starlette.types import ASGIApp

from tandem import Config, Tandem
from tandem.plugins.server.app import create_app
from tandem.plugins.server.document_store import open_store
from tandem.plugins.server.http import ServerLimits
from tandem.plugins.server.runner import Server, bind
from tandem.sites.host import Address, served
from tests.server.relay import Relay, relayed

DELAY_S = 0.01
"""Of each way of the link."""
PATIENCE_S = 6.0
"""How long the device waits for a silent cloud, beyond half a second."""


class ServedPage:
    """The server of a device's page, which can be stopped and started at the same address."""

    def __init__(self, tandem: Tandem, app: ASGIApp, relay: Relay) -> None:
        self.tandem = tandem
        self.relay = relay
        self._app = app
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        """Of the page."""
        return f"http://127.0.0.1:{self._port}/"

    def start(self) -> None:
        """Serve, and wait until it listens."""
        listener, ready = bind("127.0.0.1", self._port), threading.Event()
        self._port = listener.getsockname()[1]
        self._server = Server(self._app, ready.set, ServerLimits(drain_timeout_s=0.5))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]})
        self._thread.start()
        assert ready.wait(180)

    def stop(self) -> None:
        """Serve no more."""
        self._server.should_exit = True
        self._thread.join()


@contextmanager
def served_page(folder: Path, model: str = "bundled") -> Iterator[ServedPage]:
    """Both parties run this model with the documents that suit it; what the device keeps goes to `folder`."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_DATA_HOME", str(folder / "data"))
        settings = [f"link.peer_loss_margin_s={PATIENCE_S}", f"device.model={model}", f"cloud.model={model}"]
        # Under mode speculative the device shall have its say, however fast the cloud is.
        proposing = ["decoding.pacing=stop_and_wait"]
        config, documents = open_store(Config.load(None, settings + proposing))
        with served(Config.load(None, settings), Address("127.0.0.1", 0), folder / "keys") as cloud:
            link = cloud.link_for("page")
            with (
                relayed(link.host, link.port, DELAY_S) as relay,
                Tandem.join(str(replace(link, port=relay.port)), config) as tandem,
            ):
                page = ServedPage(tandem, create_app(tandem, documents=documents), relay)
                try:
                    yield page
                finally:
                    page.stop()


def find_chromium() -> str | None:
    """Path of the browser."""
    return shutil.which("chromium") or shutil.which("google-chrome")


def start_chromium(playwright: Playwright) -> Browser:
    """The browser, without its sandbox where that cannot work."""
    arguments = ["--no-sandbox"] if os.getuid() == 0 else []
    return playwright.chromium.launch(executable_path=find_chromium(), args=arguments)
