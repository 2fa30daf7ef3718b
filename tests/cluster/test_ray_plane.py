"""With Ray calls as the data plane a dead actor is noticed, as it is with sockets."""

from __future__ import annotations

import pytest
import ray

from tandem import Tandem
from tandem.cluster.launch import find_party
from tandem.errors import QueryError
from tandem.topology import Party

pytestmark = pytest.mark.nightly("a cluster of its own: frames over Ray calls")


@pytest.fixture(scope="module")
def overrides() -> tuple[str, ...]:
    """Frames travel in Ray calls."""
    return ("link.data_plane=ray",)


@pytest.fixture
def events() -> None:
    """Says that actors are killed here (conftest): what is left cannot be asked of them."""


def test_a_dead_decoder_of_the_device_is_one_sentence(rag: Tandem, events: None) -> None:
    assert rag.query("Which game should Mira try?", seed=7).text
    ray.kill(find_party(Party.DEVICE, rag.config)["decoder"])
    for _ in range(2):  # also where it was dead before
        with pytest.raises(QueryError, match=r"^The device's decoder has stopped"):
            rag.query("Which game should Mira try?", timeout_s=20.0)
