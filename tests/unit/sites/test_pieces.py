"""Parties with different vocabularies: answers of pieces are those of the loop without drafts, here and over a link."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandem import Config, Tandem
from tandem.client.request import build_spec, spec_of
from tandem.errors import ProtocolError, QueryError
from tandem.events import ProvisionalEvent, TokenEvent
from tandem.joining.handshakes import describe_publicly
from tandem.plugins.embedders import Embedder
from tandem.plugins.setup.status import summary_lines
from tandem.retrieval.retriever import build_given_index
from tandem.sites import host
from tandem.sites.host import Address, served
from tandem_lab.quality.document_sets import Counts
from tandem_lab.quality.local import LocalPair, answer_uncompressed
from tandem_lab.quality.memoized import local_pair
from tandem_lab.quality.methods import select_methods
from tandem_lab.quality.qa import evaluate_questions
from tandem_lab.quality.questions import Question
from tandem_lab.quality.setup import load
from tandem_lab.quality.workers import LocalWorkers
from tandem_lab.simulation.specs import change_spec
from tests import chat_model
from tests.unit.engine.builders import byte_level, many_texts, sentence_piece

QUESTION = "Which game should Mira try?"
OPTIONS: dict[str, Any] = {"max_new_tokens": 16}
ASKED: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.0, "draft_rule": "coupled", "placement": "cloud"},
    {"temperature": 0.7, "mode": "speculative"},
    {"temperature": 0.0, "mode": "speculative"},
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    llama = sentence_piece("<|im_start|>", "<|im_end|>", texts=many_texts(), vocab_size=700)
    digits = byte_level(*chat_model.SPECIAL, texts=many_texts(), vocab_size=500, digits=True)
    return [
        chat_model.build(folder / "bytes"),
        chat_model.build(folder / "llama", family="llama", seed=1, own=llama, end="</s>"),
        chat_model.build(folder / "digits", seed=2, own=digits),
    ]


@pytest.fixture(scope="module")
def config(models: list[Path]) -> Config:
    plain = (
        "link.on_peer_loss=wait",
        "decoding.steps=never",
    )  # what these toys say of documents is arbitrary
    return Config.load(None, [f"device.model={models[0]}", f"cloud.model={models[1]}", *plain])


@pytest.fixture(scope="module")
def pair(config: Config) -> LocalPair:
    return local_pair(config)


@pytest.fixture(scope="module")
def inline(config: Config) -> Iterator[Tandem]:
    lines = list[str]()
    with Tandem.launch(config, runtime="inline", progress=lines.append) as tandem:
        (shared,) = (line for line in lines if line.startswith("vocabularies: "))
        assert shared.endswith("% of the fewest shared")
        yield tandem


def wanted(config: Config, pair: LocalPair, seed: int, **changes: Any) -> list[int]:
    spec = change_spec(spec_of(config), query=QUESTION, seed=seed, **OPTIONS, **changes)
    return answer_uncompressed(spec, pair.engines, pair.retrievers)


@pytest.mark.parametrize("options", ASKED, ids=str)
def test_answers_are_those_of_the_loop_without_drafts(
    options: dict[str, Any], inline: Tandem, config: Config, pair: LocalPair
) -> None:
    for seed in range(3):
        answer = inline.query(QUESTION, seed=seed, **OPTIONS, **options)
        assert list(answer.token_ids) == wanted(config, pair, seed, **options)
        assert not answer.is_degraded


def test_owners_with_three_vocabularies(models: list[Path], config: Config) -> None:
    folder = build_given_index("device", Embedder.load(), config.with_names().device.index)
    owners = [
        setting
        for number, model in enumerate(models)
        for setting in (f"workers.o{number}.model={model}", f"workers.o{number}.index={folder}")
    ]
    settings = [*owners, f"cloud.model={models[1]}", "decoding.mode=federated", "link.on_peer_loss=wait"]
    federated = Config.load(None, settings)
    loop = LocalWorkers(federated)
    with Tandem.launch(federated, runtime="inline") as tandem:
        for seed, temperature in enumerate((0.0, 1.0)):
            asked = {"temperature": temperature, "max_new_tokens": 8}
            answer = tandem.query(QUESTION, seed=seed, **asked)
            assert list(answer.token_ids) == loop.answer(loop.make_spec(QUESTION, seed, **asked))


def test_they_are_evaluated_as_others_are(config: Config, inline: Tandem) -> None:
    asked = [Question(QUESTION, ("puzzle",), needs="device")]
    methods, counts = select_methods("rag,device,evidence,pced"), [Counts(2, 2)]
    limited = replace(config, sampling=replace(config.sampling, temperature=0.0, max_new_tokens=8))
    result = evaluate_questions(load(limited), asked, methods, counts, limited)
    given = {row["method"]: row["given"] for row in result.predictions}
    assert given["evidence"] == inline.query(QUESTION, temperature=0.0, max_new_tokens=8).text
    assert all(given.values())


def test_text_and_names_are_those_of_pieces(inline: Tandem, pair: LocalPair) -> None:
    pieces = pair.engines["device"].detokenizer  # type: ignore[index]
    options = {"seed": 3, "temperature": 1.0, **OPTIONS}
    events = list(inline.stream(QUESTION, show_drafts=True, num_logprobs=2, **options))
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    assert any(isinstance(event, ProvisionalEvent) for event in events)
    ids = [event.token for event in tokens]
    assert "".join(event.text for event in tokens) == pieces.text(ids)
    for event in tokens:
        assert event.logprob is not None
        assert (event.logprob.text, event.logprob.utf8) == pieces.spell(event.token)
    word = pieces.text(ids).split()[1]
    assert word not in inline.query(QUESTION, stop=(word,), **options).text


def test_a_party_alone_answers_in_its_own_tokens(inline: Tandem, models: list[Path]) -> None:
    spec = build_spec(inline.config, inline.described, QUESTION, only="device")
    assert (spec.pieces, spec.vocab_size) == ("", inline.described["device"]["vocab_size"])
    together = build_spec(inline.config, inline.described, QUESTION)
    assert (spec.frame.ends_thought, together.frame.ends_thought) == (False, True)
    assert inline.query(QUESTION, only="cloud", seed=1, **OPTIONS).token_ids


def test_a_grammar_is_followed_in_pieces(inline: Tandem) -> None:
    pytest.importorskip("llguidance")
    for mode in ("dual", "speculative"):
        answer = inline.query(
            QUESTION, seed=1, mode=mode, grammar={"regex": "(Yes|No), [0-9]{3} lamps"}, **OPTIONS
        )
        assert answer.text[:2] in ("Ye", "No")
        assert answer.text.endswith(" lamps")


def test_a_bias_of_tokens_is_refused(inline: Tandem) -> None:
    with pytest.raises(
        QueryError, match=r"^The parties have different vocabularies .*; leave it out, ask one party"
    ):
        inline.query(QUESTION, logit_bias={5: 1.0})
    assert inline.query(QUESTION, logit_bias={5: 1.0}, only="device", seed=1, **OPTIONS).token_ids


def test_a_query_of_other_pieces_fails_in_one_sentence(
    inline: Tandem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(inline.described["device"], "pieces", "0" * 32)
    monkeypatch.setitem(inline.described["cloud"], "pieces", "0" * 32)
    with pytest.raises(
        QueryError, match=r"pieces of this answer .* are listed by another party alone; start it again"
    ):
        inline.query(QUESTION, seed=1, **OPTIONS)


def test_the_status_says_so(inline: Tandem) -> None:
    lines = list(summary_lines(inline.status()))
    assert lines[1].startswith("answers  of ")
    assert " pieces of " in lines[1]


# ---- over a join link ----------------------------------------------------------------------------------------


def test_a_device_joins_a_cloud_of_another_vocabulary(
    config: Config, pair: LocalPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vocabularies cross once. Answers are the same."""
    monkeypatch.setattr(host, "cache_folder", lambda: tmp_path / "cache")
    with served(config, Address("127.0.0.1", 0), tmp_path / "keys") as cloud:
        link = str(cloud.link_for("phone"))
        for start in range(2):
            with Tandem.join(link, config) as phone:
                for options in ASKED[1:4:2]:
                    answer = phone.query(QUESTION, seed=start, **OPTIONS, **options)
                    assert list(answer.token_ids) == wanted(config, pair, start, **options)
            kept = [list((tmp_path / name / "vocabularies").iterdir()) for name in ("cache", "keys")]
            assert list(map(len, kept)) == [1, 1]


def test_a_question_from_before_the_exchange_is_refused_by_the_cloud(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokens are not the cloud's."""
    monkeypatch.setattr(host, "cache_folder", lambda: tmp_path / "cache")
    with (
        served(config, Address("127.0.0.1", 0), tmp_path / "keys") as cloud,
        Tandem.join(str(cloud.link_for("phone")), config) as phone,
    ):
        for party in ("device", "cloud"):
            phone.described[party]["pieces"] = ""
        with pytest.raises(
            QueryError, match="before device and cloud knew each other's vocabulary; ask again"
        ):
            phone.query(QUESTION, seed=1, **OPTIONS)


def test_a_cloud_that_cannot_answer_in_pieces_is_refused(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older one, or one whose tokenizer changes texts."""
    monkeypatch.setattr(
        host, "describe_publicly", lambda about: describe_publicly({**about, "pieces_digest": ""})
    )
    fails = Config.load(
        None,
        [
            f"device.model={config.device.model}",
            f"cloud.model={config.cloud.model}",
            "link.on_peer_loss=fail",
        ],
    )
    with served(fails, Address("127.0.0.1", 0), tmp_path / "keys") as cloud:
        link = str(cloud.link_for("phone"))
        with pytest.raises(ProtocolError, match="must have the same vocabulary"):
            Tandem.join(link, fails)
