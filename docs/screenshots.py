"""Pictures of the page for the documentation, with SmolLM2 and the household's documents.

python -m docs.screenshots --out docs
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tandem.corpora import SMOLLM2, example_question
from tests.server.served_page import ServedPage, served_page, start_chromium

WIDE, NARROW = (1180, 860), (390, 844)
QUESTION = example_question("household")
NUM_TOGETHER = 12
"""Tokens before the link is lost: the page's half of the answer is there, the note's is not."""


def ask(page: Page) -> None:
    """Ask with a seed."""
    page.click("#options > summary")
    page.fill("[name=seed]", "7")
    page.click("#options > summary")
    page.fill("#question", QUESTION)
    page.keyboard.press("Enter")
    page.wait_for_selector("#stop", state="visible")


def wait_for_end(page: Page) -> None:
    """Of the answer, drafts that fade included."""
    page.wait_for_selector("#ask", state="visible")
    page.wait_for_timeout(600)


def take_light(page: Page, served: ServedPage) -> None:
    """An answer."""
    ask(page)
    wait_for_end(page)
    page.evaluate("document.activeElement.blur()")


def take_dark(page: Page, served: ServedPage) -> None:
    """The same in the dark, with the details of one token."""
    ask(page)
    wait_for_end(page)
    page.hover(".token.cloud >> nth=0")


def take_cited(page: Page, served: ServedPage) -> None:
    """A word and the passage that said it."""
    ask(page)
    wait_for_end(page)
    page.hover(".token[data-cite] >> nth=0")


def take_lost(page: Page, served: ServedPage) -> None:
    """An answer that the device finished by itself."""
    ask(page)
    page.wait_for_selector(f".token >> nth={NUM_TOGETHER - 1}")
    served.relay.hold()
    try:
        wait_for_end(page)
        page.evaluate("document.activeElement.blur()")
    finally:
        served.relay.release()


PICTURES: dict[str, tuple[str, tuple[int, int], Callable[[Page, ServedPage], None]]] = {
    "page-light.png": ("light", WIDE, take_light),
    "page-dark.png": ("dark", WIDE, take_dark),
    "page-cited.png": ("light", WIDE, take_cited),
    "page-cited-phone.png": ("dark", NARROW, take_cited),
    "page-lost-link.png": ("light", NARROW, take_lost),
}


def take_all(browser: Browser, served: ServedPage, out: Path) -> None:
    """Every picture, each by a browser that has seen nothing before."""
    for name, (scheme, (width, height), prepare) in PICTURES.items():
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(served.url)
        page.wait_for_selector("#link[data-state=connected]")
        prepare(page, served)
        page.screenshot(path=out / name)
        context.close()


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder of the pictures")
    out: Path = parser.parse_args().out
    with (
        tempfile.TemporaryDirectory() as folder,
        served_page(Path(folder), SMOLLM2) as served,
        sync_playwright() as playwright,
    ):
        browser = start_chromium(playwright)
        take_all(browser, served, out)
        browser.close()


if __name__ == "__main__":
    main()
