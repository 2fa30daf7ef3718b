"""The registry of plugins: Tandem's own, those of other packages, and names that are neither."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from tandem import plugins
from tandem.errors import ConfigError
from tests.tiny_gguf import VOCABULARY, write_gguf

ROOT = Path(__file__).parents[2]
STRANGER = """
from tandem import plugins
from tandem.errors import ConfigError
print(plugins.names("codec")[-1], plugins.find("codec", "halves")(3), plugins.has("codec", "thirds"))
print(plugins.address_of("engine", "llama"))
try:
    plugins.find("store", "broken")
except ConfigError as error:
    print(error)
"""


def test_every_own_plugin_can_be_imported() -> None:
    for kind, own in plugins.OWN.items():
        for name in own:
            assert plugins.find(kind, name) is not None


def test_every_kind_has_a_row() -> None:
    assert tuple(plugins.OWN) == get_args(plugins.Kind)


def test_another_package_brings_plugins_by_its_entry_points(tmp_path: Path) -> None:
    (tmp_path / "halving.py").write_text("def halve(number):\n    return number / 2\n")
    record = tmp_path / "halving-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: halving\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text(
        "[tandem.plugins]\ncodec.halves = halving:halve\nengine.llama = halving:halve\n"
        "store.broken = halving:missing\n"
    )
    command = f"import sys; sys.path.append({str(tmp_path)!r})\n{STRANGER}"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    found, own, broken = done.stdout.splitlines()
    assert found == "halves 1.5 False"
    assert own == plugins.OWN["engine"]["llama"], "a name of Tandem's own stays its own"
    assert broken.startswith("The store 'broken' (halving:missing) cannot be imported (AttributeError: ")
    assert broken.endswith("; repair or uninstall its package.")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """That of processes that have the package of the examples installed."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    shutil.copytree(ROOT / "examples" / "plugins", source)
    options = ("-q", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(folder / "packages"))
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True)
    places = os.pathsep.join((str(ROOT), str(folder / "packages")))
    return {**os.environ, "PYTHONPATH": places, "XDG_CACHE_HOME": str(folder / "cache")}


def run(environment: dict[str, str], *arguments: str) -> str:
    """What a command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tandem", *arguments], capture_output=True, text=True, env=environment
    )
    assert done.returncode in (0, 4), done.stderr  # 4: the answer has as many tokens as were asked for
    return done.stdout


def test_a_command_of_another_package(environment: dict[str, str], tmp_path: Path) -> None:
    assert "vocabulary" in run(environment, "--help")
    model = write_gguf(tmp_path / "tiny.gguf")
    assert run(environment, "vocabulary", str(model)) == f"{model}: {len(VOCABULARY)} tokens\n"


def test_a_reader_of_another_package(environment: dict[str, str], tmp_path: Path) -> None:
    card = "BEGIN:VCARD\nVERSION:4.0\nFN:{}\nTEL:+1 555 010{}\nEND:VCARD\n"
    cards = "".join(card.format(name, number) for number, name in enumerate(("Mira Velt", "Tom Brandt")))
    (tmp_path / "people.vcf").write_text(cards)
    out = str(tmp_path / "index")
    run(environment, "index", "device", str(tmp_path / "people.vcf"), "--out", out)
    found = run(environment, "search", "device", "Brandt", "--set", f"device.index={out}")
    assert "+1 555 0101" in found


def test_a_codec_and_an_engine_of_another_package(environment: dict[str, str], tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "tiny.gguf", context=8192)
    options = f"--runtime inline --max-new-tokens 3 --json --model {model} --num-documents 1"
    ours = "--set codec.name=halves --set device.engine=careful --set cloud.engine=llama"
    answer = run(environment, "ask", "Who are you?", *options.split(), *ours.split())
    assert json.loads(answer)["tokens"]


def test_an_address_is_its_own_name() -> None:
    assert plugins.find("codec", "tests.unit.test_plugins:STRANGER") is STRANGER


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"There is no engine 'lama'; did you mean llama\?"):
        plugins.find("engine", "lama")
