"""How the source tree is built: sizes, imports, layers.

`make structure` prints the figures; test_structure.py holds the limits.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tandem.config.checks import Settings, settings_of
from tandem.config.schema import Config

ROOT = Path(__file__).parents[1]
PACKAGE, LAB = ROOT / "tandem", ROOT / "tandem_lab"
PLUGINS = "plugins"
"""The package whose folders hang on the core."""
LIMITS = {
    "lines of the core": 31053,
    "lines of the product": 47047,
    "lines of the tests": 45620,
    "lines of the laboratory": 15300,
    "lines of the benchmarks": 6250,
    "modules of the core": 114,
    "commands": 14,
    "settings": 61,
    "class names that exist twice": 3,
}
"""The most there may be of what a reader has to hold in mind. A rise is a commit of its own that says why; a test reads
git for it. The aim: 29,000 lines of core, 41,000 of the product, 42,000 of tests, 15,000 of the laboratory, 6,000 of
benchmarks, 120 modules, 14 commands, 60 settings, 3 names."""
FILES_OF_A_FEATURE = 5
"""Product files that a commit whose subject begins with "Add " may change."""
SINCE = "0ce87150"
"""The commit from which on the last two hold."""
FORBIDDEN = {
    "messages": {"ray", "torch", "transformers", "asyncio"},
    "protocol": {"ray", "torch", "transformers", "asyncio"},
    "modes": {"ray", "torch", "transformers", "asyncio"},
    "aggregation": {"ray", "torch", "transformers", "asyncio"},
    "codecs": {"ray", "torch", "transformers", "asyncio"},
    "scheduler": {"ray", "torch", "transformers", "asyncio"},
    "profiler": {"ray", "transformers", "asyncio"},
    "sites": {"ray", "torch", "transformers"},
}
"""What a package of the pure core never imports, not even inside a function."""
LAYERS = {
    "plugins": {"errors"},
    "topology": {"errors"},
    "system": {"corpora", "errors", "plugins", "topology"},
    "corpora": {"errors"},
    "conversation": {"errors", "tools"},
    "config": {"conversation", "corpora", "errors", "plugins", "system", "topology"},
    "aggregation": {"config", "errors", "topology"},
    "messages": {"errors", "topology"},
    "modes": {
        "aggregation",
        "citations",
        "codecs",
        "config",
        "conversation",
        "errors",
        "messages",
        "scheduler",
        "topology",
    },
    "codecs": {"aggregation", "config", "errors", "messages"},
    "scheduler": {"aggregation", "config", "errors", "plugins", "topology"},
    "protocol": {
        "aggregation",
        "citations",
        "codecs",
        "config",
        "conversation",
        "errors",
        "events",
        "messages",
        "modes",
        "profiler",
        "scheduler",
        "topology",
    },
    "engine": {
        "aggregation",
        "codecs",
        "config",
        "conversation",
        "corpora",
        "errors",
        "plugins",
        "system",
        "topology",
    },
    "retrieval": {"config", "corpora", "errors", "plugins", "system", "topology"},
    "transport": {"errors", "messages", "protocol", "system", "topology"},
    "actors": {
        "aggregation",
        "codecs",
        "config",
        "corpora",
        "engine",
        "errors",
        "events",
        "messages",
        "modes",
        "plugins",
        "profiler",
        "protocol",
        "retrieval",
        "scheduler",
        "system",
        "topology",
        "transport",
    },
    "joining": {"errors", "messages", "protocol", "system", "transport"},
    "sites": {
        "actors",
        "config",
        "corpora",
        "engine",
        "errors",
        "events",
        "joining",
        "messages",
        "modes",
        "protocol",
        "retrieval",
        "system",
        "topology",
        "transport",
    },
}
"""Packages and modules of tandem that a package may import besides itself."""
MAX_PARTS = 2
"""Objects of its own package that the constructor of a class takes; what takes three has its border in the wrong
place."""
KNOWN_CIRCLES: list[list[str]] = []
"""Modules that import each other for annotations until they are one, or have a port between them."""
BASELINE_METHODS = ("sequence", "written", "cloud_texts", "cloud_caches", "lend_caches")
"""Methods that `Tandem` had in version 0.1 for the laboratory's baselines."""


class Import(NamedTuple):
    """One import of a module of Tandem or of another distribution."""

    source: str  # the importing module, such as tandem.cli.ask
    target: str
    is_typing: bool  # under `if TYPE_CHECKING`


def module_name(path: Path) -> str:
    """Dotted name of a file below the repository."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> Mapping[str, Path]:
    """Every module of the product and of the laboratory by its dotted name."""
    return {module_name(path): path for package in (PACKAGE, LAB) for path in sorted(package.rglob("*.py"))}


@cache
def imports() -> tuple[Import, ...]:
    """Every import statement of both packages, at module level or inside functions."""
    return tuple(found for name, path in modules().items() for found in _imports_of(name, path))


def _imports_of(name: str, path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text("utf-8"))
    typing_lines = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            targets = [target if target in modules() else node.module for target in full]
        else:
            continue
        for target in dict.fromkeys(targets):
            yield Import(name, target, node.lineno in typing_lines)


def package_of(module: str) -> str:
    """The part of tandem that a module belongs to: a package, a single module, or a plugin (`PLUGINS.name`); "" for
    tandem itself. The laboratory is one part."""
    parts = module.split(".")
    if parts[0] == LAB.name:
        return LAB.name
    if parts[1:2] == [PLUGINS] and len(parts) > 2:
        return ".".join(parts[1:3])
    return parts[1] if len(parts) > 1 else ""


def is_plugin(package: str) -> bool:
    """Whether a part of tandem is one plugin; the registry of all is the core's."""
    return package.startswith(f"{PLUGINS}.")


def plugin_breaks() -> list[str]:
    """Imports of a plugin by the core or by another plugin, for annotations too, as sentences."""
    return sorted(
        f"{each.source} imports {each.target}"
        for each in imports()
        if is_plugin(package_of(each.target))
        and package_of(each.source) not in (package_of(each.target), LAB.name)
    )


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected groups of more than one node, each sorted (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(edges.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                groups.append(sorted(group))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return groups


def module_circles() -> list[list[str]]:
    """Modules that import each other, in a round of any length, also for type annotations alone."""
    edges: dict[str, set[str]] = {}
    for each in imports():
        if each.target in modules() and each.target != each.source:
            edges.setdefault(each.source, set()).add(each.target)
    return circles(edges)


def package_circles() -> list[list[str]]:
    """Packages that import each other, type annotations apart; the laboratory counts as one package."""
    edges: dict[str, set[str]] = {}
    for each in imports():
        source, target = package_of(each.source), package_of(each.target)
        is_own = each.target.split(".")[0] in (PACKAGE.name, LAB.name)
        if is_own and source and source != target and not each.is_typing:
            edges.setdefault(source, set()).add(target)
    return circles(edges)


def num_parts(source: str, parts: Collection[str]) -> dict[str, int]:
    """Of every class of a module: how many objects of its own package its constructor takes. Records are values, and
    do not count. parts: the names of the classes with state of its package."""
    return {
        node.name: _num_parts(node, parts)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
    }


def classes_of_many_parts() -> list[str]:
    """Classes of the product that are several things in one, as sentences."""
    stateful: dict[str, set[str]] = {}
    for path in product_files():
        stateful.setdefault(path.parent.name, set()).update(_stateful_classes(path.read_text("utf-8")))
    return [
        f"{path.parent.name}.{name} takes {number} objects of its package"
        for path in product_files()
        for name, number in num_parts(path.read_text("utf-8"), stateful[path.parent.name]).items()
        if number > MAX_PARTS
    ]


def _stateful_classes(source: str) -> set[str]:
    """Classes that are neither records, nor protocols, nor errors."""
    values = {"NamedTuple", "Protocol", "TypedDict", "Enum", "IntEnum", "StrEnum"}
    return {
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        and not _names_in(*node.decorator_list) & {"dataclass"}
        and not _names_in(*node.bases) & values
        and not node.name.endswith("Error")
    }


def _num_parts(node: ast.ClassDef, parts: Collection[str]) -> int:
    """Arguments of a constructor that are, or hold, such parts."""
    made = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    arguments = [
        each for init in made for each in (*init.args.args, *init.args.kwonlyargs) if each.annotation
    ]
    return sum(bool(_names_in(each.annotation) & set(parts)) for each in arguments if each.annotation)


def _names_in(*nodes: ast.expr) -> set[str]:
    names = {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}
    return names | {each.attr for node in nodes for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def lab_imports() -> list[Import]:
    """Imports of the laboratory from outside of it."""
    return [
        each
        for each in imports()
        if package_of(each.target) == LAB.name and package_of(each.source) != LAB.name
    ]


def layer_breaks() -> list[str]:
    """Imports that the layering does not allow, as sentences."""
    breaks = []
    for each in imports():
        package, target = package_of(each.source), package_of(each.target)
        if each.target.split(".")[0] in FORBIDDEN.get(package, ()):
            breaks.append(f"{each.source} imports {each.target}")
        if (
            package in LAYERS
            and each.target.startswith("tandem.")
            and target not in LAYERS[package] | {package}
        ):
            breaks.append(f"{each.source} imports {each.target}")
    return sorted(set(breaks))


def num_lines(path: Path) -> int:
    """Lines of a file."""
    return path.read_text("utf-8").count("\n")


def product_files() -> list[Path]:
    """The product's files, without the laboratory's."""
    return [path for name, path in modules().items() if package_of(name) != LAB.name]


def figures() -> dict[str, int]:
    """What `LIMITS` limits, as it is."""
    core = [path for path in product_files() if not is_plugin(package_of(module_name(path)))]
    return {
        "lines of the core": sum(map(num_lines, core)),
        "lines of the product": sum(map(num_lines, product_files())),
        "lines of the tests": _lines_below("tests"),
        "lines of the laboratory": _lines_below("tandem_lab"),
        "lines of the benchmarks": _lines_below("benchmarks"),
        "modules of the core": len(core),
        "commands": len(_commands()),
        "settings": sum(len(settings_of(group)) for group in _groups()),
        "class names that exist twice": len(doubled_classes()),
    }


def _lines_below(folder: str) -> int:
    return sum(map(num_lines, (ROOT / folder).rglob("*.py")))


def _commands() -> list[str]:
    from tandem.cli import build_command

    return [name for name in build_command().commands if name != "lab"]  # which comes with a clone alone


def _groups() -> set[type[Settings]]:
    """The groups of settings; a party's counts once."""
    return {type(value) for value in vars(Config()).values() if isinstance(value, Settings)}


def doubled_classes() -> list[str]:
    """Names of classes that more than one module of the product defines; private ones are their module's own."""
    names = Counter(
        node.name
        for path in product_files()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, count in names.items() if count > 1)


def lines_by_part() -> dict[str, int]:
    """Lines of each part of the product, "" for the modules beside the packages."""
    lines: Counter[str] = Counter()
    for path in product_files():
        lines[package_of(module_name(path)) if path.parent != PACKAGE else ""] += num_lines(path)
    return dict(lines)


class Commit(NamedTuple):
    """What one commit changed."""

    name: str
    subject: str
    files: tuple[str, ...]


def commits() -> list[Commit]:
    """Those after `SINCE`, newest first; none where there is no history."""
    command = ("git", "log", "--no-merges", "--format=%x00%h%n%s", "--name-only", f"{SINCE}..HEAD")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    entries = [entry.split("\n") for entry in done.stdout.split("\0")[1:]]
    return [Commit(name, subject, tuple(filter(None, files))) for name, subject, *files in entries]


def raised_beside(commit: Commit) -> list[str]:
    """Limits that a commit raised although it changes other files too."""
    this = Path(__file__).relative_to(ROOT).as_posix()
    if this not in commit.files or commit.files == (this,):
        return []
    before, after = (_limits_in(f"{commit.name}{parent}:{this}") for parent in ("~", ""))
    return [f"{commit.name} raises {name}" for name, most in after.items() if most > before.get(name, most)]


def _limits_in(revision: str) -> dict[str, int]:
    done = subprocess.run(("git", "show", revision), cwd=ROOT, capture_output=True, text=True)
    values = [
        node.value
        for node in ast.parse(done.stdout).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LIMITS"
    ]
    limits: dict[str, int] = ast.literal_eval(values[0]) if values else {}
    return limits


def wide_features(history: Iterable[Commit]) -> list[str]:
    """Commits that add something in more than `FILES_OF_A_FEATURE` files of the product, as sentences."""
    return [
        f"{commit.name} ({commit.subject}) changes {number} files"
        for commit in history
        if commit.subject.startswith("Add ")
        and (number := sum(file.startswith(f"{PACKAGE.name}/") for file in commit.files)) > FILES_OF_A_FEATURE
    ]


def experiment_settings() -> list[str]:
    """Settings of the product that exist for experiments only, by what they say of themselves."""
    text = (PACKAGE / "config" / "schema.py").read_text("utf-8")
    return re.findall(r'"[^"\n]*for experiments[^"\n]*"|"random"', text)


def baseline_methods() -> list[str]:
    """Public methods of `Tandem` that only the laboratory's baselines need."""
    tree = ast.parse((PACKAGE / "client" / "tandem.py").read_text("utf-8"))
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return sorted(names & set(BASELINE_METHODS))


def private_accesses() -> list[str]:
    """Places where a test reads or patches a private attribute of Tandem's own objects, as file:line."""
    own = _private_names()
    places = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            is_read = isinstance(node, ast.Attribute) and node.attr in own and not _is_self(node.value)
            is_patched = isinstance(node, ast.Call) and _patched_name(node) in own
            if is_read or is_patched:
                places.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return places


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _patched_name(call: ast.Call) -> str | None:
    """The attribute that `monkeypatch.setattr(owner, "name", ...)` or `setattr("path.name", ...)` replaces."""
    names = [
        each.value for each in call.args[:2] if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]
    is_patch = isinstance(call.func, ast.Attribute) and call.func.attr == "setattr"
    return names[-1].rpartition(".")[2] if is_patch and names else None


def _private_names() -> set[str]:
    """Names with one leading underscore that the package defines."""
    names: set[str] = set()
    for path in modules().values():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.Name):
                names.add(node.id)
    return {name for name in names if re.match(r"_[a-zA-Z]", name)} - {
        "_private",
        "_replace",
        "_asdict",
        "_exit",
    }


def main() -> None:
    """Print every figure."""
    for name, number in figures().items():
        print(f"{name:44} {number:6} of {LIMITS[name]:6}")
    lists: dict[str, list[str]] = {
        "lines of each part": [
            f"{part or 'beside':18} {lines:6}" for part, lines in sorted(lines_by_part().items())
        ],
        "class names that exist twice": doubled_classes(),
        "circles of modules and packages": [
            " <-> ".join(each) for each in (*module_circles(), *package_circles())
        ],
        "classes of many parts": classes_of_many_parts(),
        "imports of the laboratory by the product": [f"{e.source} -> {e.target}" for e in lab_imports()],
        "imports of plugins": plugin_breaks(),
        "imports against the layering": layer_breaks(),
        "settings for experiments in the product": experiment_settings(),
        "methods of Tandem for baselines": baseline_methods(),
        "private attributes used by tests": private_accesses(),
    }
    for name, lines in lists.items():
        print(f"{name:44} {'' if lines else 'none'}".rstrip())
        for line in lines:
            print(f"    {line}")


if __name__ == "__main__":
    main()
