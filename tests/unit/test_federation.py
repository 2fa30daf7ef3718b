"""A server and its workers in settings and queries: what is filled in, who sees what, a sentence per mistake; and what
all parties must have in common."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tandem.client.request import build_spec
from tandem.config.schema import Config
from tandem.errors import ClusterError, ConfigError, QueryError, TandemError
from tandem.modes import SessionSpec
from tandem.sites.startup import HANDSHAKE_FIELDS, compare
from tandem.topology import PAIR, PARTIES, SERVER, Party, Topology, star

FILE = """
[decoding]
mode = "federated"
[server]
model = "bundled-drafter"
[workers.alice]
index = "notes"
weight = 3
[workers.bob]
num_documents = 0
"""
WORKERS = ["workers.alice.index=/home/ada/notes", "workers.bob.num_documents=0"]
FEDERATED = ["decoding.mode=federated", *WORKERS]


@pytest.fixture
def config() -> Config:
    return Config.load(None, [*FEDERATED, "workers.alice.weight=3"])


def described(config: Config) -> dict[str, dict[str, Any]]:
    return {party: {"decode_line": [], "eos_token_ids": [2]} for party in config.parties}


# ---- settings ------------------------------------------------------------------------------------------------------


def test_a_file_names_the_workers(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text(FILE)
    config = Config.load(tmp_path / "tandem.toml", ["workers.bob.weight=0.5"])
    assert config.parties == (SERVER, "alice", "bob")
    assert config.topology == star(SERVER, ("alice", "bob"))
    assert config.workers["alice"].index == str(tmp_path / "notes")
    assert [worker.weight for worker in config.workers.values()] == [3.0, 0.5]
    assert config.party("bob").num_documents == 0
    assert config.holders == ("alice",)
    assert config.with_paths(tmp_path) == config


def test_each_party_is_told_its_own_paths_alone(config: Config) -> None:
    assert "ada" in config.seen_by("alice").to_json()
    for other in (SERVER, "bob"):
        assert "ada" not in config.seen_by(other).to_json()
        assert config.seen_by(other).topology == config.topology


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["decoding.mode=federated"],
         'The mode "federated" needs 2 to 63 workers (got none); name each in a section of its own, such as '
         "[workers.alice]."),
        (["decoding.mode=federated", "workers.bob.num_documents=0"], "needs 2 to 63 workers (got bob)"),
        (WORKERS,
         'Workers (alice, bob) answer in mode "federated", but decoding.mode is "dual"; set it to "federated", or '
         "remove them."),
        ([*FEDERATED, "workers.cloud.num_documents=0"],
         "is not called device, cloud or server (got 'cloud'); rename [workers.cloud]."),
        ([*FEDERATED, "workers.a b.num_documents=0"], "(got 'a b'); rename [workers.a b]."),
        ([*FEDERATED, "workers.bob.num_documents=4"],
         'There are bundled documents of device and cloud only, but workers.bob.index is "auto"; name a folder '
         "that `tandem index` wrote, or set workers.bob.num_documents to 0."),
        ([*FEDERATED, "workers.alice.weight=0", "workers.bob.weight=0"],
         "The weights of all workers are 0 (alice, bob), so nobody has a vote; set one above 0."),
        ([*FEDERATED, "workers.bob.weigth=1"],
         "'workers.bob.weigth' is not a setting; the nearest is 'workers.bob.weight'."),
        ([*FEDERATED, "decoding.draft_rule=rejection"], 'The draft rule "rejection" is for mode "speculative"'),
        (["workers=3"], "'workers' is not a setting"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)) as refused:
        Config.load(None, overrides)
    assert "\n" not in str(refused.value)


# ---- queries -------------------------------------------------------------------------------------------------------


def test_a_spec_names_workers_with_weights_of_sum_1(config: Config) -> None:
    spec = build_spec(config, described(config), "Why?", seed=1)
    assert spec.roles.voters == ("alice", "bob")
    assert spec.roles.weights == (0.75, 0.25)
    assert (spec.home, spec.parties) == (SERVER, (SERVER, "alice", "bob"))
    assert spec.documents == {SERVER: 0, "alice": 4, "bob": 0}
    assert spec.rules.pacing == "pipelined", "no voter can go on alone"
    assert SessionSpec.from_json(spec.to_json()) == spec


def test_documents_may_say_how_much_a_worker_counts() -> None:
    config = Config.load(None, FEDERATED)
    spec = build_spec(config, described(config), "Why?", seed=1)
    assert spec.weights == ()
    assert spec.roles.voters == ("alice", "bob")
    assert spec.roles.weighs_by_documents
    assert SessionSpec.from_json(spec.to_json()) == spec


def test_a_worker_can_be_where_all_are_asked(config: Config) -> None:
    spec = build_spec(config, described(config), "Why?", home="alice")
    assert (spec.home, spec.parties) == ("alice", (SERVER, "alice", "bob"))
    assert spec.roles.topology.authority == spec.rules.first_decider == SERVER
    assert spec.roles.deciders == (SERVER,)
    assert SessionSpec.from_json(spec.to_json()) == spec
    by_setting = Config.load(None, [*FEDERATED, "decoding.home=bob"])
    assert build_spec(by_setting, described(config), "Why?").home == "bob"
    assert build_spec(by_setting, described(config), "Why?", home=SERVER).home == SERVER
    assert build_spec(by_setting, described(config), "Why?", only="alice").home == "alice"
    assert by_setting.topology == config.topology, "who dials whom does not depend on it"


def test_log_probabilities_at_a_worker_come_from_the_server(config: Config) -> None:
    known = {"race_depth": 8, "vocab_size": 100}
    loaded = {party: values | known for party, values in described(config).items()}
    spec = build_spec(config, loaded, "Why?", home="alice", num_logprobs=2)
    assert [party for party in spec.parties if spec.rules.num_named(party) is not None] == [SERVER, "alice"]
    assert all(spec.rules.sends_whole_votes(worker) for worker in ("alice", "bob"))


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"home": "alicf"}, ConfigError,
         r"^The setting decoding\.home must be a worker or the server, but it is 'alicf'; did you mean alice\?$"),
        ({"mode": "dual"}, ConfigError, r'^Workers \(alice, bob\) answer in mode "federated"'),
        ({"preset": "sqs"}, ConfigError, r"^The preset 'sqs' needs the codec"),
        ({"only": "cloud"}, ConfigError, r"^A party is server, alice or bob, not 'cloud'; name one of them\.$"),
        ({"device_filter": {"page": 1}}, QueryError,
         r"^device_filter is for documents of the device, but server, alice, bob are asked; leave it out\.$"),
    ],
)  # fmt: skip
def test_options_of_another_cluster_are_one_sentence(
    config: Config, options: dict[str, Any], error: type[TandemError], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        build_spec(config, described(config), "Why?", **options)


# ---- actors --------------------------------------------------------------------------------------------------------


def test_all_parties_are_compared(config: Config) -> None:
    same = dict.fromkeys(HANDSHAKE_FIELDS, "same")
    bare = {key: "same" for key in same if not key.endswith(("embedder_fingerprint", "scorer_fingerprint"))}
    without = {**bare, "factory": "none"}
    compare({SERVER: without, "alice": same, "bob": without})
    compare({SERVER: without, "alice": without, "bob": without})
    other = {**same, "vocabulary_fingerprint": "other", "tokenizer": "GPT-2"}
    sentence = (
        "All parties must have the same vocabulary, the server has 'None (same)' and bob 'GPT-2 (other)'; use"
    )
    with pytest.raises(ClusterError, match=f"^{re.escape(sentence)}"):
        compare({SERVER: without, "alice": same, "bob": other})


SAME = dict.fromkeys(HANDSHAKE_FIELDS, "same")


@pytest.mark.parametrize("key", HANDSHAKE_FIELDS)
def test_a_difference_is_an_error_that_names_both_values_and_the_remedy(key: str) -> None:
    compare({party: dict(SAME) for party in PARTIES})
    described = {Party.DEVICE: {**SAME, key: "one"}, Party.CLOUD: {**SAME, key: "other"}}
    what, remedy = HANDSHAKE_FIELDS[key]
    values = ("one", "other")
    if key == "vocabulary_fingerprint":  # a hash, so the tokenizer is named
        described[Party.DEVICE]["tokenizer"] = described[Party.CLOUD]["tokenizer"] = "GPT-2"
        values = ("GPT-2 (one)", "GPT-2 (other)")
    sentence = f"the same {what}, the device has {values[0]!r} and the cloud {values[1]!r}; {remedy}."
    with pytest.raises(ClusterError, match=re.escape(sentence)):
        compare(described)


def test_vocabularies_that_differ_by_their_last_tokens_are_the_same() -> None:
    few = {**SAME, "vocabulary_fingerprint": "b", "vocabulary_prefixes": ["b", "a"], "vocab_size": 9}
    more = {**SAME, "vocabulary_fingerprint": "d", "vocabulary_prefixes": ["d", "c", "b"], "vocab_size": 11}
    compare({Party.DEVICE: few, Party.CLOUD: more})
    compare({Party.DEVICE: more, Party.CLOUD: few})
    for prefixes in (["d", "c", "x"], ["d", "c"], []):
        with pytest.raises(ClusterError, match="must have the same vocabulary"):
            compare({Party.DEVICE: few, Party.CLOUD: {**more, "vocabulary_prefixes": prefixes}})


def test_every_party_knows_the_way_home() -> None:
    topology = star("server", ("ada", "ben"), "ada")
    assert (topology.home, topology.authority) == ("ada", "server")
    assert [topology.toward_home(party) for party in topology.parties] == ["ada", None, "server"]
    at_server = star("server", ("ada", "ben"))
    assert [at_server.toward_home(party) for party in topology.parties] == [None, "server", "server"]
    assert [PAIR.toward_home(party) for party in PAIR.parties] == [None, "device"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"parties": ()}, "A session has 1 to 64 parties (got 0); name that many."),
        ({"parties": ("a", "a")}, "Each party needs a name of its own, but 'a' is there 2 times; rename one."),
        ({"home": "claud"}, "'claud' is no party of this session; did you mean cloud?"),
        ({"authority": "x"}, "'x' is no party of this session; choose one of device, cloud."),
    ],
)  # fmt: skip
def test_a_topology_that_contradicts_itself_is_refused(changes: dict[str, Any], sentence: str) -> None:
    values: dict[str, Any] = {"parties": ("device", "cloud"), "home": "device", "authority": "device"}
    with pytest.raises(ConfigError) as refused:
        Topology(**(values | changes))
    assert str(refused.value) == sentence


def test_a_number_that_no_party_has_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        PAIR.name(2)
    assert str(refused.value) == "A session of 2 parties has no party number 2; check the sender."
