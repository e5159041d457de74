"""What the documents show runs as shown."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_python_example_of_the_readme_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert "lp-proj-1" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["add-a-method.md"])
def test_the_examples_of_a_document_run(name):
    outcome = doctest.testfile(str(ROOT / "docs" / name), module_relative=False)
    assert outcome.attempted and not outcome.failed


def test_links_between_documents_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), (
                f"{page.name} links to {target}"
            )
