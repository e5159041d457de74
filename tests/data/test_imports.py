"""`import idiolect` is quick: large libraries are imported where they are used."""

import subprocess
import sys

LARGE = ("pandas", "sklearn", "scipy.stats", "matplotlib", "PIL")


def test_importing_idiolect_imports_no_large_library():
    code = f"import sys, idiolect; print([m for m in {LARGE} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
