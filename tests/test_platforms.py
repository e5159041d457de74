"""The package imports on Windows too, where some modules and names of Unix are missing."""

import subprocess
import sys

import pytest

MODULES = ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog")
NAMES = {
    "signal": ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGALRM", "alarm", "setitimer", "pthread_kill"),
    "os": ("fork", "getuid", "geteuid", "sched_getaffinity", "sysconf", "nice", "uname", "O_SYNC"),
}

# torch and its like are imported first: on Windows they have builds of their own
WITHOUT = f"""
import os, signal, sys
import torch, torch.func, numpy, safetensors.torch, rich.console, importlib.metadata
for module in {MODULES!r}:
    sys.modules[module] = None
for module, names in {NAMES!r}.items():
    for name in names:
        sys.modules[module].__dict__.pop(name, None)
"""


@pytest.mark.parametrize(
    "module",
    [
        "idiolect",
        "idiolect.cli.main",
        "idiolect.study.jobs",
        "idiolect.study.tune",
        "idiolect_papers.closed_forms",
    ],
)
def test_importing_needs_nothing_of_unix(module):
    code = f"{WITHOUT}\nimport {module}\nprint('imported')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "imported", done.stderr


def test_a_missing_module_would_be_noticed():
    code = f"{WITHOUT}\nimport fcntl"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ModuleNotFoundError" in done.stderr
