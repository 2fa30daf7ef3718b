"""Chat models on both sides: a template that writes the date, and vocabularies that differ by tokens at their end."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tandem import Config, Tandem
from tests import chat_model

QUESTION = "Which game should Mira try?"
NUM_TOKENS = 1024


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tandem]:
    from transformers import AutoModelForCausalLM

    device, cloud = (
        chat_model.build(tmp_path_factory.mktemp(name) / "model", seed=seed)
        for seed, name in enumerate(("device", "cloud"))
    )
    template = cloud / "chat_template.jinja"
    template.write_text("{{ strftime_now('%d %B %Y') }}" + template.read_text())
    state = json.loads((cloud / "tokenizer.json").read_text())
    for number in range(2):
        token = {**state["added_tokens"][-1], "id": NUM_TOKENS + number, "content": f"<tool {number}>"}
        state["added_tokens"].append(token)
    (cloud / "tokenizer.json").write_text(json.dumps(state))
    model = AutoModelForCausalLM.from_pretrained(cloud)
    model.resize_token_embeddings(NUM_TOKENS + 64)  # outputs for the two tokens and more
    model.save_pretrained(cloud)
    config = Config.load(None, [f"device.model={device}", f"cloud.model={cloud}", "link.on_peer_loss=wait"])
    with Tandem.launch(config, runtime="inline") as tandem:
        yield tandem


def ask(tandem: Tandem, **options: str) -> list[int]:
    answer = tandem.query(
        QUESTION,
        seed=3,
        max_new_tokens=24,
        temperature=1.0,
        num_documents=1,
        **options,  # type: ignore[arg-type]
    )
    assert not answer.is_degraded
    return list(answer.token_ids)


def test_an_answer_is_of_the_tokens_that_both_have(together: Tandem) -> None:
    sizes = [together.described[party]["vocab_size"] for party in ("device", "cloud")]
    assert sizes == [NUM_TOKENS, NUM_TOKENS + 2]
    for placement in ("mirror", "device", "cloud"):
        assert max(ask(together, day="2026-11-25", placement=placement)) < NUM_TOKENS


def test_the_day_is_part_of_the_question(together: Tandem) -> None:
    first, again, other = (ask(together, day=day) for day in ("2026-11-25", "2026-11-25", "2026-12-24"))
    assert first == again != other
    assert ask(together, day="2026-11-25", only="device") == ask(together, day="2026-12-24", only="device")
