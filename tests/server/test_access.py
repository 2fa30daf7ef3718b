"""Without a key a server answers this machine's programs and its own page, and no other web page."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers
from starlette.types import ASGIApp

from tandem import Tandem
from tandem.config.schema import HttpConfig
from tandem.plugins.server.access import Guard
from tandem.plugins.server.app import create_app
from tandem.plugins.server.http import ApiError
from tests.server.running import KEY, Served

OWN = "127.0.0.1:8000"
CHAT, DOCUMENTS, STATUS = "/v1/chat/completions", "/v1/tandem/documents?name=note.md", "/v1/tandem/status"
SIMPLE_TYPES = ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded")
"""What a page may send elsewhere without asking first."""


def refusal(guard: Guard, path: str = CHAT, *headers: tuple[str, str]) -> str | None:
    """The code of the error."""
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    with contextlib.suppress(ApiError):
        guard.check(path, Headers(raw=raw))
        return None
    with pytest.raises(ApiError) as refused:
        guard.check(path, Headers(raw=raw))
    assert refused.value.status == (401 if refused.value.code == "invalid_api_key" else 403)
    return refused.value.code


@pytest.mark.parametrize("host", [
    "localhost", "LocalHost:8000", "127.0.0.1", OWN, "127.8.9.10:1", "[::1]", "[::1]:8000",
    "box.lan:8000", "BOX.lan", "192.0.2.7", "[2001:db8::7]:8000",  # in the settings, or listened at
])  # fmt: skip
def test_names_of_this_machine_are_answered(host: str) -> None:
    guard = Guard("", "192.0.2.7", ("box.lan", "2001:db8::7"))
    assert refusal(guard, CHAT, ("Host", host)) is None
    assert refusal(guard, CHAT, ("Host", host), ("Origin", f"http://{host}".lower())) is None


@pytest.mark.parametrize("host", [
    "", "tandem.example", "tandem.example:8000", "127.0.0.1.example", "localhost.example", "localhost.",
    "evil@127.0.0.1", "127.0.0.1/x", "127.0.0.1:80:80", "127.0.0.1:x", "[", "[::1", "[::2]", "::1",
    "0.0.0.0", "10.0.0.1", "192.0.2.7", "2130706433", "127.0.0.1,127.0.0.1", "127.0.0.1 ", "\xff",
])  # fmt: skip
def test_other_names_are_refused_whatever_the_page(host: str) -> None:
    """As by a page whose own name leads to this machine."""
    for own in ((), (("Origin", f"http://{host}"),)):
        assert refusal(Guard("", "127.0.0.1"), CHAT, ("Host", host), *own) == "foreign_host"


@pytest.mark.parametrize("origin", [
    "null", "", "https://evil.example", "http://evil.example:8000", "http://127.0.0.1:8000.evil.example",
    "http://127.0.0.1", "http://127.0.0.1:8001", "http://localhost:8000", "http://[", "http://", "http:",
    "file://", "chrome-extension://127.0.0.1:8000", f"http://{OWN}/", f"//{OWN}", OWN, f"http://x@{OWN}",
])  # fmt: skip
@pytest.mark.parametrize("path", [CHAT, DOCUMENTS, STATUS, "/metrics", "/health", "/"])
def test_other_pages_are_refused_with_and_without_a_key(origin: str, path: str) -> None:
    headers = (("Host", OWN), ("Origin", origin), ("Authorization", f"Bearer {KEY}"))
    for key in ("", KEY):
        assert refusal(Guard(key, "127.0.0.1"), path, *headers) == "foreign_origin"


def test_headers_that_come_twice_are_refused() -> None:
    guard, own = Guard("", "127.0.0.1"), ("Origin", f"http://{OWN}")
    assert refusal(guard, CHAT, ("Host", OWN), ("Host", "evil.example")) == "foreign_host"
    assert refusal(guard, CHAT, ("Host", OWN), own, ("Origin", "https://evil.example")) == "foreign_origin"


@pytest.mark.parametrize(
    ("site", "is_own"),
    [("same-origin", True), ("none", True), ("cross-site", False), ("same-site", False), ("x", False)],
)
def test_images_scripts_and_links_of_other_pages_reach_the_page_alone(site: str, is_own: bool) -> None:
    """Browsers send them without Origin. A link to the page is no harm."""
    guard, headers = Guard("", "127.0.0.1"), (("Host", OWN), ("Sec-Fetch-Site", site))
    for path in (STATUS, "/v1/models", "/metrics"):
        assert refusal(guard, path, *headers) == (None if is_own else "foreign_origin")
    assert refusal(guard, "/", *headers) is None
    assert refusal(Guard(KEY, "127.0.0.1"), STATUS, *headers) == "invalid_api_key"  # as ever


@pytest.mark.parametrize("origin", ["null", "https://evil.example"])
def test_no_page_asks_uploads_or_reads_over_the_wire(http: httpx.Client, origin: str) -> None:
    """The sentence names the page, and nothing lets that page read it."""
    for kind in (*SIMPLE_TYPES, "application/json", "application/octet-stream"):
        headers = {"Origin": origin, "Content-Type": kind}
        for method, path in (("POST", CHAT), ("POST", DOCUMENTS), ("GET", STATUS), ("OPTIONS", CHAT)):
            response = http.request(method, path, content=b'{"model": "tandem"}', headers=headers)
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (403, "foreign_origin")
            assert error["message"] == f"Web pages of {origin} may not use this server; open its own page."
            assert not [name for name in response.headers if name.startswith("access-control-")]
    handshake = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    key = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Origin": origin}
    assert http.get(STATUS, headers=handshake | key).status_code == 403


def test_the_setting_reaches_the_server_and_web_sockets_reach_nothing(
    tandem: Tandem, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(tandem.config, http=HttpConfig(allowed_hosts=("box.lan",)))
    monkeypatch.setattr(tandem, "config", settings)
    asyncio.run(try_app(create_app(tandem)))


async def try_app(app: ASGIApp) -> None:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://box.lan:8000") as client:
        assert (await client.get("/health")).status_code == 200
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "websocket", "path": "/v1/tandem/status", "headers": []}, asyncio.Event().wait, send)  # type: ignore[arg-type]
    assert sent == []


PAGE = """<!doctype html><title>trying</title><body><script>
const api = new URLSearchParams(location.search).get("api"), upload = api + "/v1/tandem/documents?name=note.md";
const tries = [], attempt = (name, work) => tries.push(
  Promise.race([work(), new Promise(end => setTimeout(() => end("late"), 5000))]).then(
    value => [name, value], () => [name, "failed"]));
const loaded = element => new Promise(end => {
  element.onload = () => end("loaded"); element.onerror = () => end("failed"); document.body.append(element) });
for (const type of ["text/plain", "application/x-www-form-urlencoded", "application/json"]) {
  attempt("ask " + type, async () => (await fetch(api + "/v1/chat/completions", { method: "POST", body: "{}",
    headers: { "Content-Type": type } })).text());
  attempt("upload " + type, async () => { await fetch(upload, { method: "POST", mode: "no-cors", body: "x",
    headers: { "Content-Type": type } }); return "sent" }) }
attempt("no referrer", async () => { await fetch(upload, { method: "POST", mode: "no-cors", body: "x",
  referrerPolicy: "no-referrer" }); return "sent" });
attempt("read", async () => (await fetch(api + "/v1/tandem/status")).text());
attempt("image", () => loaded(Object.assign(new Image(), { src: api + "/v1/models" })));
attempt("script", () => loaded(Object.assign(document.createElement("script"), { src: api + "/v1/tandem/status" })));
attempt("events", () => new Promise(end => { const source = new EventSource(api + "/v1/tandem/status");
  source.onopen = () => end("opened"); source.onerror = () => { source.close(); end("failed") } }));
attempt("socket", () => new Promise(end => { const socket = new WebSocket(api.replace("http", "ws") + "/v1/models");
  socket.onopen = () => end("opened"); socket.onerror = () => end("failed") }));
const frame = Object.assign(document.createElement("iframe"), { name: "frame" }); document.body.append(frame);
const form = Object.assign(document.createElement("form"),
  { action: upload, method: "post", enctype: "text/plain", target: "frame" });
document.body.append(form); form.submit();
attempt("form", () => new Promise(end => frame.onload = () => end("sent")));
Promise.all(tries).then(all => { window.result = Object.fromEntries(all) });
</script>"""


@contextmanager
def foreign_page() -> Iterator[int]:
    """The port of a server whose page tries all that pages can do."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(PAGE.encode())

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.timed
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_page_in_a_real_browser_gets_nothing(served: Served, name: str) -> None:
    """One of another site, and one of the same site at another port."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (extra [test])"
    )
    from tests.server.served_page import find_chromium, start_chromium

    if find_chromium() is None:
        pytest.skip("there is no Chromium (Debian's package chromium)")
    before = answered(served)
    with foreign_page() as port, playwright.sync_playwright() as started:
        browser = start_chromium(started)
        page = browser.new_page()
        page.goto(f"http://{name}:{port}/?api={served.url}")
        page.wait_for_function("window.result", timeout=120_000)
        result = page.evaluate("window.result")
        browser.close()
    can_send = {"sent"}  # what leaves the page unread: whether it was taken is what the server counts
    assert {attempt: text for attempt, text in result.items() if text not in {"failed"} | can_send} == {}
    assert len(result) == 13
    after = answered(served)
    assert after.pop("403") >= before.pop("403", 0) + 11
    assert after.pop("200") - before.pop("200", 0) == 1  # our own look at the metrics
    assert after == before


def answered(served: Served) -> dict[str, int]:
    """Requests so far by status."""
    counts: dict[str, int] = {}
    pattern = r'^tandem_http_requests_total\{.*status="(\d+)".*\} (\d+)'
    for status, count in re.findall(pattern, httpx.get(f"{served.url}/metrics").text, re.MULTILINE):
        counts[status] = counts.get(status, 0) + int(count)
    return counts
