"""`python -m idiolect.cli` is the `idiolect` command."""

import sys

from .main import main

sys.exit(main())
