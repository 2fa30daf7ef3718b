"""What is released: version, changelog and addresses agree, and only what was tested is published."""

from __future__ import annotations

import re
import runpy
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import tandem

ROOT = Path(tandem.__file__).parents[1]
SCRIPT, WORKFLOW = ROOT / ".ci" / "prepare_release.py", ROOT / ".github" / "workflows" / "release.yml"
ADDRESS = "https://example.org/somebody/tandem"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="an installed package releases nothing")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of what a release changes, of version 9.8."""
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "tandem" / "system").mkdir(parents=True)
    (tmp_path / "tandem" / "system" / "version.py").write_text('__version__ = "9.8"\n')
    changelog = (
        "## [Unreleased]\n\n## [9.8] - 2027-01-02\n\n- New ([how](docs/x.md)).\n\n## [9.7] - 2026-01-02\n"
    )
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    return tmp_path


def prepare(clone: Path, tag: str) -> str:
    return str(runpy.run_path(str(SCRIPT))["prepare"](clone, ADDRESS, tag))


def test_the_metadata_and_the_readme_get_addresses(clone: Path) -> None:
    assert prepare(clone, "v9.8") == f"- New ([how]({ADDRESS}/blob/v9.8/docs/x.md)).\n"
    urls = tomllib.loads((clone / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    assert set(urls) == {"Repository", "Documentation", "Changelog", "Issues"}
    assert all(url.startswith(ADDRESS) for url in urls.values())
    readme = (clone / "README.md").read_text("utf-8")
    assert f"]({ADDRESS}/raw/v9.8/docs/page-light.png)" in readme
    assert f"]({ADDRESS}/blob/v9.8/docs/how-to/install.md)" in readme
    targets = re.findall(r"\]\(([^)\s]+)\)", readme)
    assert all(target.startswith(("http", "#")) for target in targets)
    own = [target.removeprefix(ADDRESS) for target in targets if target.startswith(ADDRESS)]
    assert own
    assert all((ROOT / re.sub(r"^/\w+/v9\.8/|#.*", "", target)).exists() for target in own)


def test_what_disagrees_ends_in_a_sentence(clone: Path) -> None:
    with pytest.raises(SystemExit, match=r"The tag is v9\.9, but the version is 9\.8; "):
        prepare(clone, "v9.9")
    (clone / "CHANGELOG.md").write_text("## [Unreleased]: 9.8\n")
    with pytest.raises(SystemExit, match=r"CHANGELOG\.md has no section `## \[9\.8\] - YYYY-MM-DD`; "):
        prepare(clone, "v9.8")
    assert "urls" not in (clone / "pyproject.toml").read_text("utf-8")


def test_this_version_can_be_tagged_or_is_one_in_between() -> None:
    """Either its changelog is closed, or its name says that it is not released."""
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    heads = re.findall(r"^## (.*)$", changelog, re.MULTILINE)
    assert heads[0].startswith("[Unreleased]")
    assert ".dev" in tandem.__version__ or re.fullmatch(
        rf"\[{re.escape(tandem.__version__)}\] - \d{{4}}-\d\d-\d\d", heads[1]
    )


def test_the_workflow_publishes_what_it_built_and_tested() -> None:
    workflow: dict[Any, Any] = yaml.safe_load(WORKFLOW.read_text("utf-8"))
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML reads the key `on` so
    assert workflow["permissions"] == {}
    jobs = workflow["jobs"]
    assert {name: (job.get("needs"), job["permissions"]) for name, job in jobs.items()} == {
        "build": (None, {"contents": "read"}),
        "test": ("build", {}),
        "publish": (["build", "test"], {"id-token": "write"}),
        "release": (["build", "publish"], {"contents": "write"}),
    }
    assert jobs["publish"]["environment"]["name"] == "pypi"
    commands = {name: [step.get("run", "") for step in job["steps"]] for name, job in jobs.items()}
    assert [name for name, runs in commands.items() if any("-m build" in run for run in runs)] == ["build"]
    assert not any(
        "checkout" in step.get("uses", "") for name in ("test", "publish") for step in jobs[name]["steps"]
    )
    pythons = [
        line.rpartition(" :: ")[2]
        for line in tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["classifiers"]
        if re.search(r":: 3\.\d+$", line)
    ]
    assert jobs["test"]["strategy"]["matrix"]["python-version"] == pythons
    steps = [step["uses"].partition("@")[0] for step in jobs["publish"]["steps"]]
    assert steps == ["actions/download-artifact", "pypa/gh-action-pypi-publish"]
