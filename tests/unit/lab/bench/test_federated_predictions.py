"""The answer that the benchmark predicts is that of the draft-free loop, for models that are close to each other."""

from __future__ import annotations

from typing import Any

from tandem.config.schema import Config
from tandem_lab.bench.federated import configure, follow
from tandem_lab.bench.models import close_federation
from tandem_lab.quality.workers import LocalWorkers

NUM_TOKENS = 6


def test_the_predicted_answer_is_that_of_the_draft_free_loop() -> None:
    config = configure(Config.load(None, ["retrieval.embedder=offline"]))
    with close_federation(config, ("ada", "ben")) as close:
        assert close.parties == ("server", "ada", "ben")
        local = LocalWorkers(close)
        options: Any = {"temperature": 1.0, "max_new_tokens": NUM_TOKENS}
        spec = local.make_spec("Why?", 3, **options, draft_rule="coupled")
        path = follow(local, spec)
        assert list(path.tokens) == local.answer(spec)
        assert (
            local.voter(spec, "ada").distribution(()).tolist()
            != local.voter(spec, "ben").distribution(()).tolist()
        )
    assert len(path.accepted) == NUM_TOKENS
    assert 30 < path.vote_bytes <= 60
    assert 0 <= path.certified <= 1
