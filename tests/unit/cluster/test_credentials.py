"""Where the token of a cluster comes from: the environment, the registry, Ray's own file, in this order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tandem.config.schema import Config
from tandem.errors import ClusterError
from tandem.plugins.ray import attach, registry
from tandem.plugins.ray.nodes import NodeInfo
from tandem.system.paths import state_folder

ADDRESS = "10.0.0.1:6379"
NAMES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, an empty registry, and nothing in the environment."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that what the code under test sets is undone
        monkeypatch.delenv(name)
    return tmp_path


def chosen() -> tuple[str | None, ...]:
    return tuple(os.environ.get(name) for name in NAMES)


def record(token: str | None) -> None:
    state_folder().mkdir(parents=True, exist_ok=True)
    registry.register(NodeInfo("cloud", ADDRESS, os.getpid(), "", "", token=token))


def write_default_file(home: Path) -> Path:
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("theirs")
    return home / ".ray" / "auth_token"


def test_the_recorded_token_counts_before_rays_own_file(home: Path) -> None:
    write_default_file(home)
    record("recorded")
    assert registry.find_token(ADDRESS) == "recorded"
    assert chosen() == ("token", "recorded", None)


@pytest.mark.parametrize("name", ["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"])
def test_the_environment_counts_first_and_sets_the_mode(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record("recorded")
    monkeypatch.setenv(name, "mine")
    registry.find_token(ADDRESS)
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert registry.describe_source().startswith(name)


def test_a_token_file_that_ray_would_die_of(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(home / "nowhere"))
    registry.find_token(ADDRESS)
    with pytest.raises(ClusterError, match=r"^The token file .*nowhere cannot be read \(No such file"):
        registry.check_token_file()


@pytest.mark.parametrize("host", ["", "127.0.0.1", "::1", "[::1]", "localhost"])
def test_what_stays_on_this_machine_needs_no_protection(host: str) -> None:
    registry.require_protection(host, Config())


def test_a_node_that_others_reach_is_refused_without_tls_and_token(monkeypatch: pytest.MonkeyPatch) -> None:
    host, plain = "10.0.0.1", Config.load(None, ["link.allow_plain=true"])
    with pytest.raises(
        ClusterError, match=r"\(10\.0\.0\.1\) needs TLS \(RAY_USE_TLS=1 and certificates\), since"
    ):
        registry.require_protection(host, Config())
    registry.require_protection(host, plain)
    monkeypatch.setenv("RAY_USE_TLS", "1")
    registry.require_protection(host, Config())
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(ClusterError, match=r"needs a token \(RAY_AUTH_MODE=token\), since"):
        registry.require_protection(host, Config())
    monkeypatch.delenv("RAY_USE_TLS")
    with pytest.raises(ClusterError, match=r"certificates\) and a token"):
        registry.require_protection("cloud.example", Config())


@pytest.mark.parametrize(("join", "settings"), [(None, ["link.host=10.0.0.1"]), ("10.0.0.1:6379", [])])
def test_no_such_node_is_started(join: str | None, settings: list[str]) -> None:
    with pytest.raises(ClusterError, match=r"10\.0\.0\.1\) needs TLS"):
        attach.start_node("device", join=join, config=Config.load(None, settings))
