"""A Python source archive by pip, without running anything in it.

To download a source archive pip asks its build for the name and version, which would run the
archive's own setup.py. So pip is given a build that does nothing but repeat what was asked for
(the interface of PEP 517, found before setuptools on the path), and compares the SHA-256 before it
unpacks anything.
"""

from __future__ import annotations

import os
from pathlib import Path

FLAGS = (
    "download",
    "--quiet",
    "--no-input",
    "--disable-pip-version-check",
    "--no-deps",
    "--no-binary=:all:",
    "--no-build-isolation",
    "--require-hashes",
    "--dest",
    ".",
)
BUILD = """\
import os


class Nothing:
    def get_requires_for_build_wheel(self, config_settings=None):
        return []

    def prepare_metadata_for_build_wheel(self, folder, config_settings=None):
        info = "{stem}-{version}.dist-info"
        os.makedirs(os.path.join(folder, info))
        with open(os.path.join(folder, info, "METADATA"), "w") as f:
            f.write("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
        return info


__legacy__ = Nothing()
"""


def prepare(ref: str, sha256: str, scratch: Path) -> tuple[list[str], dict[str, str]]:
    """The arguments for pip and its environment; `ref` is name==version."""
    name, version = ref.split("==")
    build = scratch / "build" / "setuptools"
    build.mkdir(parents=True)
    (build / "__init__.py").write_text("")
    text = BUILD.format(name=name, version=version, stem=name.replace("-", "_"))
    (build / "build_meta.py").write_text(text)
    (scratch / "wanted.txt").write_text(f"{ref} --hash=sha256:{sha256}\n")
    env = {
        **os.environ,
        "PYTHONPATH": str(build.parent.resolve()),
        "PIP_USE_PEP517": "1",  # by the variable: versions that know no other way have no flag
    }
    return [*FLAGS, "--requirement", "wanted.txt"], env
