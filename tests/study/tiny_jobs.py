"""Jobs that take no time, in a module of their own so that worker processes can import them."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Square:
    """Squares a number; the larger the number, the sooner it is done."""

    number: int
    seconds: float = 0.0
    error: str = ""

    def key(self):
        return f"square {self.number}"

    def train(self):
        if self.error:
            raise ValueError(self.error)
        time.sleep(self.seconds)
        return {"square": self.number**2, "nothing": float("nan"), "pair": (1, 2)}

    def cost(self):
        return 1.0

    def describe(self):
        return f"the square of {self.number}"


@dataclass(frozen=True)
class Deadly:
    """Kills the process it is run in, as often as a file says; always, without one."""

    number: int
    file: str

    def key(self):
        return f"deadly {self.number}"

    def train(self):
        left = int(Path(self.file).read_text()) if self.file else 1
        if left:
            if self.file:
                Path(self.file).write_text(str(left - 1))
            os.kill(os.getpid(), signal.SIGKILL)
        return {"number": self.number}

    def cost(self):
        return 1.0

    def describe(self):
        return f"job {self.number}"
