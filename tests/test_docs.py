"""What the documents show runs as shown."""

import doctest
import re
import tomllib
from pathlib import Path
from shlex import split

import pytest

import idiolect as il
from idiolect.cli.main import main

ROOT = Path(__file__).parent.parent


def test_the_python_example_of_the_readme_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert "lp-proj-1" in capsys.readouterr().out


BLOCK = re.compile(r"```(python|sh|toml)\n(.*?)```", flags=re.DOTALL)


PAGES = [
    "your-data.md",
    "your-model.md",
    "commands.md",
    "splits.md",
    "language-models.md",
    "advise.md",
    "sweep.md",
    "tune.md",
]


@pytest.mark.parametrize("name", PAGES)
def test_the_blocks_of_a_page_for_newcomers_run_in_order(name, tmp_path, monkeypatch, capsys):
    """Python in one process, commands by `main`, TOML into the file that its first line names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names: dict = {}
    blocks = BLOCK.findall((ROOT / "docs" / name).read_text())
    assert blocks
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, name, "exec"), names)
        elif kind == "toml":
            (tmp_path / text.split()[1]).write_text(text)
        else:
            for line in text.splitlines():
                assert main(split(line, comments=True)[1:]) == 0, f"{line}: {capsys.readouterr()}"
    if name == "your-data.md":
        assert (tmp_path / "out.csv").read_text().startswith("patient_id,label,probability ill,")


@pytest.mark.parametrize(
    "name",
    ["add-a-method.md", "method-interface.md", "asynchronous.md", "metrics.md", "training.md"],
)
def test_the_examples_of_a_document_run(name):
    outcome = doctest.testfile(str(ROOT / "docs" / name), module_relative=False)
    assert outcome.attempted and not outcome.failed


def test_links_between_documents_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), (
                f"{page.name} links to {target}"
            )


def test_the_list_of_public_names_is_complete():
    page = (ROOT / "docs" / "api.md").read_text()
    listed = set(re.findall(r"`il\.(\w+)", page))
    assert set(il.__all__) == listed


def test_a_run_directory_holds_the_files_that_the_page_lists(tmp_path):
    federation = il.data.load("synthetic", clients=4, samples=60)
    task = il.Task(lambda: il.models.make("linear", (60,), 10))
    il.run(il.Ditto(), task, federation, rounds=1, eval_every=1, directory=tmp_path / "run")
    files = [p.relative_to(tmp_path / "run") for p in (tmp_path / "run").rglob("*") if p.is_file()]
    page = (ROOT / "docs" / "api.md").read_text()
    for path in files:
        inside = path.parts[0] == "checkpoints"
        name = Path(*path.parts[3:]) if inside else path  # after checkpoints/seed-0/000001
        assert f"| `{name.as_posix()}` |" in page, path


def test_the_targets_that_the_pages_name_are_there():
    made = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md"):
        named = re.findall(r"\bmake ([\w-]+)", (ROOT / page).read_text())
        assert named and set(named) <= made, page


def test_the_version_to_cite_is_the_version_of_the_package():
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {package['version']}\n" in citation
    assert f"\nlicense: {package['license']}\n" in citation
