"""Jobs that take no time, in a module of their own so that worker processes can import them."""

import time
from dataclasses import dataclass


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
