"""The decoder's store of caches: its counters and its notes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.actors.base import Runtime
from tandem.actors.decoder import DecoderActor
from tandem.config.schema import Config
from tandem.engine.prompt import Prompt
from tandem.retrieval.retriever import kv_folder
from tandem.topology import Party
from tests.unit.transport.conftest import PLANES

TEXTS = ["Mira likes puzzle games.", "The best rated puzzle game is Vantelu Cor."]


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


async def decoder(party: Party, tmp_path: Path, *settings: str) -> DecoderActor:
    config = Config.load(None, settings)
    actor = DecoderActor(party, Runtime(secret=b"s", directory=str(tmp_path / "sockets"), config=config))
    PLANES.append(actor)
    await actor.prepare()
    return actor


def answer(actor: DecoderActor) -> Prompt:
    """As a prefill does."""
    engine = actor.engine
    opened = engine.open("s", "Which game should Mira try?", TEXTS, 8)
    engine.next_logits("s", [])
    engine.close("s")
    return opened


def counters(extra: dict[str, float]) -> tuple[float, float]:
    return extra["kv_hits"], extra["kv_misses"]


async def test_a_restarted_decoder_finds_what_the_first_one_computed(tmp_path: Path) -> None:
    first = await decoder(Party.DEVICE, tmp_path)
    assert (await first.statistics()).extra["kv_bytes"] == 0
    answer(first)
    assert counters((await first.statistics()).extra) == (0, 2)
    again = await decoder(Party.DEVICE, tmp_path)
    answer(again)
    extra = (await again.statistics()).extra
    assert counters(extra) == (2, 0)
    files = list(kv_folder(Party.DEVICE, again.config).glob("*/*/*"))
    assert extra["kv_bytes"] == sum(path.stat().st_size for path in files) > 0


async def with_damaged_store(party: Party, folder: Path) -> DecoderActor:
    """The decoder of a party whose stored caches have lost their last byte."""
    first = await decoder(party, folder)
    answer(first)
    for path in kv_folder(party, first.config).glob("*/*/*"):
        path.write_bytes(path.read_bytes()[:-1])
    return await decoder(party, folder)


async def test_what_the_store_left_unused_is_noted_once(tmp_path: Path) -> None:
    again = await with_damaged_store(Party.DEVICE, tmp_path)
    notes = again.notes(answer(again), is_home=True)
    assert len(notes) == 2
    assert all("is damaged or of another kind" in note for note in notes)
    assert again.notes(answer(again), is_home=True) == ()
    other = await decoder(Party.DEVICE, tmp_path, "device.dtype=bfloat16")
    assert (again.description["has_stale_caches"], other.description["has_stale_caches"]) == (False, True)
    assert other.notes(answer(other), is_home=True) == (), "that nothing is wrong with"


async def test_no_path_of_this_machine_goes_elsewhere(tmp_path: Path) -> None:
    again = await with_damaged_store(Party.CLOUD, tmp_path)
    notes = again.notes(answer(again), is_home=False)
    assert notes == ("The cloud cannot use its stored caches; its log says why.",)
