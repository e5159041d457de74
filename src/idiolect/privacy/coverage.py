"""For which methods a protection holds, and why not for the others.

The unit is a client: all of its data, and all that it keeps between rounds. Whatever its message
was made of, its norm is at most C, so that what is proved of one round holds for any method whose
server learns the noisy mean and nothing else. Over rounds it holds by composition, also where a
client keeps private rows that later messages depend on: they are made of its own data, its own
draws and what the server has released, and the theorem lets each message depend on all of that. The
same with Poisson sampling: whether it was heard before is the client's own history too
(docs/privacy.md has the argument).
"""

from __future__ import annotations

from ..method import NOBODY, Method
from ..task.task import Task
from .protection import Protection


def why_not(method: Method, task: Task, protection: Protection, addresses: bool) -> str:
    """Why a protection is not proved for a method; "" where it holds, or where nothing is sent.

    `addresses`: whether the server sends messages to single clients.
    """
    traits = method.traits
    if not any(method.message(task).values()):
        return ""
    if traits.exchanges and protection.unit == "client":
        return "its rounds have several exchanges, and each would release something"
    if protection.unit == "sample":
        if traits.data_through_gradients:
            return ""
        return "its messages depend on the data in other ways than by gradients, as it declares"
    if protection.at_client:
        return ""  # all that the server does with private messages is post-processing
    if traits.uncombined:
        return f"the server does not combine messages: {traits.uncombined}"
    if method.server_rows(task, NOBODY) or addresses:
        return "the server keeps or sends something for single clients, made of their messages"
    if not traits.linear:
        return "its server step needs more of the messages than their mean"
    return ""
