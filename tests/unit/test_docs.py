"""The documentation says what the code says: generated parts, cited equations, links, named files, settings, a site."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import tandem
from tandem import messages
from tandem.config.files import walk
from tandem.config.schema import Config

ROOT = Path(tandem.__file__).parent.parent
DOCS = ROOT / "docs"
SOURCES = [path for package in ("tandem", "tandem_lab") for path in (ROOT / package).rglob("*.py")]
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "examples").glob("*.md")])
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]

pytestmark = pytest.mark.skipif(not PAGES, reason="the documentation is not part of this installation")

PAPER = r"(DRAGON|SQS|QS|SpecFed|FlexSpec)"
CITED = {
    "Eq.": re.compile(rf"(?:{PAPER}[ -])?\bEqs?\. ?(\(?\d+\)?(?:(?:, | and | to |-|\u2013)\(?\d+\)?)*)"),
    "Algorithm": re.compile(rf"(?:{PAPER} )?\bAlg(?:orithm|\.) (\d+)"),
    "A.": re.compile(rf"(?:{PAPER} )?(?:Appendix )?\bA\.(\d+)"),
}


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tandem_docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbers(text: str) -> list[int]:
    """Every number of "(1)", "1 and 2", "7, 8", "6-9"."""
    found: list[int] = []
    for first, last in re.findall(r"(\d+)\)?(?:(?: to |-|\u2013)\(?(\d+))?", text):
        found += range(int(first), int(last or first) + 1)
    return found


def citations(text: str) -> set[tuple[str, str]]:
    """(paper, what is cited), such as ("DRAGON", "Eq. 4"), ("DRAGON", "A.1")."""
    return {
        (match[1] or "DRAGON", f"{kind}{'' if kind == 'A.' else ' '}{number}")
        for kind, pattern in CITED.items()
        for match in pattern.finditer(text)
        for number in numbers(match[2])
    }


def table() -> set[tuple[str, str]]:
    """What the table of symbols covers."""
    rows = re.findall(
        r"^\|(?:[^|\n]*\|){3} *(\w+) *\| *([^|\n]+?) *\|$", page("reference/notation.md"), re.MULTILINE
    )
    return {(paper, where.strip()) for paper, cell in rows for where in cell.split(",") if where.strip()}


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def anchors(text: str) -> set[str]:
    """What a page's headings are called in links."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", NAMES)
def test_no_page_installs_from_an_index_what_is_on_none(name: str) -> None:
    """Until a release is public; then this test goes, and docs/how-to/install.md says so."""
    if not name.startswith(("docs/log/", "CHANGELOG")):
        text = (ROOT / name).read_text("utf-8")
        assert not re.findall(r"^ *pip install (?!.*@ git)[^\n]*\btandem-rag\b.*", text, re.MULTILINE)


GENERATED = ["reference/wire-format.md", "reference/configuration.md", "reference/cli.md"]


@pytest.mark.parametrize("name", GENERATED)
def test_generated_parts_have_not_drifted(generate: ModuleType, name: str) -> None:
    # Versions of Python break the lines of a help page differently.
    assert page(name).split() == generate.rendered(name).split(), "run: python docs/generate.py"


def test_a_changed_page_is_noticed(
    generate: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference/configuration.md").write_text(
        page("reference/configuration.md").replace("`512`", "`64`"), "utf-8"
    )
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    text = generate.rendered("reference/configuration.md")
    assert text != (tmp_path / "reference/configuration.md").read_text("utf-8")
    assert text == page("reference/configuration.md")


def test_every_message_and_setting_is_described() -> None:
    headings = re.findall(r"^### (\w+) \(tag", page("reference/wire-format.md"), re.MULTILINE)
    known = [cls.__name__ for cls in (messages.LinkFrame, *messages.registry.body_classes)]
    assert sorted(headings) == sorted([*known, "Logprobs", "Tail"]), "parts of others"
    keys = re.findall(r"^\| `(\w+\.\w+)`", page("reference/configuration.md"), re.MULTILINE)
    settings = [(section, setting.name) for section, setting, _ in walk(Config())]
    assert keys == [f"{section}.{name}" for section, name in settings if section not in ("cloud", "server")]
    assert [name for section, name in settings if section == "cloud"] == [
        name for section, name in settings if section == "device"
    ]


def test_the_table_of_rights_names_every_body() -> None:
    table = page("explanation/protocol.md").partition("| body | who may send it")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == {cls.__name__ for cls in messages.registry.body_classes} | {"Tail"}


def test_every_field_of_a_link_message_has_a_meaning_or_follows_one(generate: ModuleType) -> None:
    for cls in (messages.LinkFrame, *messages.registry.body_classes):
        comments = generate.comments_of(cls)
        fields = [name for name in cls.__annotations__ if name != "body"]
        assert not fields or fields[0] in comments, cls


def test_every_cited_equation_is_in_the_table() -> None:
    covered = table()
    assert ("DRAGON", "Eq. 4") in covered
    cited = {
        (*citation, str(file.relative_to(ROOT)))
        for file in sorted(SOURCES)
        for citation in citations(file.read_text("utf-8"))
    }
    assert len({each[:2] for each in cited}) >= 5
    assert not {each for each in cited if each[:2] not in covered}, "add them to docs/reference/notation.md"


def test_the_table_names_things_that_exist() -> None:
    sources = "\n".join(file.read_text("utf-8") for file in SOURCES)
    cells = [row.split("|")[2] for row in page("reference/notation.md").splitlines() if row.count("|") == 6]
    names = {
        word for cell in cells for code in re.findall(r"`([^`]+)`", cell) for word in re.findall(r"\w+", code)
    }
    assert len(names) > 30
    assert not {name for name in names if not re.search(rf"\b{name}\b", sources)}


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_links_and_inclusions_lead_somewhere(path: Path) -> None:
    text = path.read_text("utf-8")
    for name in re.findall(r'^--8<-- "([^":]+)', text, re.MULTILINE):
        assert (ROOT / name).is_file(), name
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if "://" not in target:
            file, _, anchor = target.partition("#")
            there = path.parent / file if file else path
            assert there.exists(), target
            assert not anchor or anchor in anchors(there.read_text("utf-8")), target


FOLDERS = "tandem|tandem_lab|tests|docs|benchmarks|examples|actors|aggregation|codecs|engine|protocol|retrieval|transport"  # noqa: E501


@pytest.mark.parametrize("path", [path for path in PAGES if path.parent != DOCS / "log"])
def test_files_named_in_a_page_exist(path: Path) -> None:
    """Paths in code quotes that begin with a folder of the repository or of the package, and scripts in commands. The
    log names those of its days."""
    text = path.read_text("utf-8")
    names = re.findall(rf"`((?:{FOLDERS})/[a-z_][\w./-]*)`", text)
    names += re.findall(r"\bpython3? ((?:benchmarks|docs|examples)/\w+\.py)\b", text)
    for name in names:
        assert (ROOT / name).exists() or (ROOT / "tandem" / name).exists(), name


def test_the_lab_book_sums_up_each_month_and_keeps_it_out_of_the_search() -> None:
    months = sorted(path for path in (DOCS / "log").glob("*.md") if path.name != "index.md")
    assert months
    assert re.findall(r"^## \[.+\]\((.+)\)$", page("log/index.md"), re.MULTILINE) == [
        path.name for path in reversed(months)
    ]
    for month in months:
        _, head, _ = month.read_text("utf-8").split("---\n", 2)
        assert yaml.safe_load(head) == {"search": {"exclude": True}}, month.name


MAX_COLUMNS = 120


@pytest.mark.parametrize("name", sorted(NAMES))
def test_prose_is_wrapped(name: str) -> None:
    """Outside tables, code and generated parts no line is longer than 120 columns."""
    text = re.sub(r"<!-- generated: .*?<!-- end: ", "", (ROOT / name).read_text("utf-8"), flags=re.DOTALL)
    lines = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE).splitlines()
    assert not [line for line in lines if len(line) > MAX_COLUMNS and not line.startswith(("|", "    "))]


@pytest.mark.nightly("builds the whole site; `make docs` does it, too")
def test_the_site_builds_without_a_warning_and_needs_no_other_server(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    html = (tmp_path / "index.html").read_text("utf-8")
    assert not re.findall(r"""<(?:script|link|img)[^>]+(?:src|href)=["']?https?:""", html)
    api = (tmp_path / "reference/api/index.html").read_text("utf-8")
    assert 'id="tandem.client.tandem.Tandem.query"' in api, "the reference is made from docstrings"
    found = {
        entry["location"] for entry in json.loads((tmp_path / "search/search_index.json").read_text())["docs"]
    }
    assert "explanation/architecture/" in found
    assert not {location for location in found if location.startswith("log/2026")}


def test_every_dependency_has_a_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {re.split(r"[\[><=; ]", requirement)[0] for group in groups for requirement in group}
    reasons = set(re.findall(r"`([\w-]+)`", page("reference/dependencies.md")))
    assert names - {"tandem-rag"} <= reasons


def test_installation_names_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    rows = [row.split("|")[1] for row in page("how-to/install.md").splitlines() if row.startswith("| ")]
    assert set(re.findall(r"`([\w-]+)`", " ".join(rows))) == set(project["optional-dependencies"])


def test_the_workflow_runs_what_the_readme_says_and_units_on_every_supported_python() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))["jobs"]
    assert "`make test`" in (ROOT / "README.md").read_text("utf-8")
    assert {"run": "make test"} in workflow["test"]["steps"]
    assert {"run": "make lint"} in workflow["lint"]["steps"]
    assert {"run": "make test-units"} in workflow["units"]["steps"]
    assert workflow["units"]["strategy"]["matrix"]["python-version"] == ["3.12", "3.13"]
    nights = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text("utf-8"))["jobs"]
    for name in ("nightly", "weekly"):
        assert nights[name]["steps"][-1]["run"].split()[-1] == f"test-{name}"


def test_every_example_is_included_in_a_page() -> None:
    text = "\n".join(path.read_text("utf-8") for path in DOCS.rglob("*.md"))
    included = set(re.findall(r'^--8<-- "(examples/[\w./]+)', text, re.MULTILINE))
    examples = [path for path in (ROOT / "examples").rglob("*.*") if path.suffix != ".pyc"]
    assert included == {path.relative_to(ROOT).as_posix() for path in examples}
