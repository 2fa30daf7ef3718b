"""Settings from code: their relative paths count from the working folder, wherever the actors work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.config.schema import Config, PartyConfig
from tandem.errors import ClusterError
from tandem.plugins.ray import bootstrap


def test_paths_are_absolute_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Config] = []

    def stop(config: Config, progress: object) -> None:
        seen.append(config)
        raise ClusterError("Enough.")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bootstrap, "check_files", stop)
    with pytest.raises(ClusterError, match=r"^Enough\.$"):
        bootstrap.launch(Config(device=PartyConfig(model="./small", index="notes")), None, print)
    assert seen[0].device.model == str(tmp_path / "small")
    assert seen[0].device.index == str(tmp_path / "notes")
