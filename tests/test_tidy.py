"""The house rules that a machine can check."""

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from ledger.events import KINDS
from proxy.codes import Code
from proxy.settings import builtin_upstreams, load

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("ledger", "proxy", "synthetic_provider")
FILE_LIMIT_LINES = 350
FUNCTION_LIMIT_LINES = 60
SOURCES = sorted(path for top in (*PACKAGES, "config", "tests") for path in (ROOT / top).rglob("*.py"))
# Unit tests about a package, or about one aspect of a module that has a test file of its own.
ASPECTS = {
    "admission_plans": "admission",
    "admission_properties": "admission",
    "canonical_body": "keys",
    "claims_model": "claims",
    "content_codings": "base",
    "sse_to_json": "base",
    "synthetic_provider_bodies": "synthetic_provider",
    "synthetic_provider_dialects": "synthetic_provider",
    "usage_properties": "usage_algebra",
}


def names_of(sources: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in sources]


@pytest.mark.parametrize("path", SOURCES, ids=names_of(SOURCES))
def test_source_file_is_within_the_size_limits(path: Path) -> None:
    """A file is read in one sitting, a function on one screen."""
    text = path.read_text()
    assert len(text.splitlines()) <= FILE_LIMIT_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= FUNCTION_LIMIT_LINES, f"{node.name} has {lines} lines"


def test_unit_test_is_named_after_its_module() -> None:
    """The test of proxy/keys.py is tests/unit/test_keys.py."""
    modules = {path.stem for package in PACKAGES for path in (ROOT / package).rglob("*.py")} | {"dialects", *PACKAGES}
    tested = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / "unit").glob("test_*.py")}
    assert {ASPECTS.get(name, name) for name in tested} <= modules


def test_config_file_loads_with_the_settings_schema() -> None:
    """Nobody copies an example that does not start."""
    examples = [
        path for path in (ROOT / "config").glob("*.toml") if path.name not in ("upstreams.toml", "output_limits.toml")
    ]
    assert examples
    for path in examples:
        assert load(path, {}).upstreams.keys() >= builtin_upstreams().keys()


def test_event_stands_in_the_format_with_all_its_fields() -> None:
    """The verifier is written from FORMAT.md alone, so a field that is missing there does not exist."""
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| (.*) \|$", (ROOT / "ledger" / "FORMAT.md").read_text(), re.MULTILINE))
    for kind, event in KINDS.items():
        missing = [field.name for field in fields(event) if f"`{field.name}`" not in rows.get(kind, "")]
        assert not missing, f"{kind}: {missing}"


def test_refusal_code_stands_in_the_docs() -> None:
    """Whoever is refused finds out what it means and what settles it."""
    documented = set(re.findall(r"^\| `([a-z_]+)` \|", (ROOT / "docs" / "codes.md").read_text(), re.MULTILINE))
    assert {code.value for code in Code} == documented


def test_failpoint_is_documented_and_used_by_a_test() -> None:
    """A point nobody breaks at proves nothing."""
    points = {
        point
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for point in re.findall(r'\bpassed\("([a-z-]+)"\)', path.read_text())
    }
    documented = set(re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "docs" / "crash-points.md").read_text(), re.MULTILINE))
    assert points == documented
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py") if path.name != "test_tidy.py")
    assert {point for point in points if point not in tests} == set()


def test_tests_use_no_mocks() -> None:
    """What our code does is seen on sockets, files and processes."""
    users = [path.name for path in SOURCES if re.search(r"^\s*(from|import) unittest", path.read_text(), re.MULTILINE)]
    assert users == []
