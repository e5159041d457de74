"""Privacy: what messages may tell of a client, to whom, and what has been spent."""

from .accountant import Accountant, Exposure
from .clipping import AdaptiveClip, clip_factors, message_norms
from .noise import Noise
from .plan import Mechanism
from .protection import PROTECTIONS, Central, Distributed, Local, Protection, Samples

__all__ = [
    "PROTECTIONS",
    "Accountant",
    "AdaptiveClip",
    "Central",
    "Distributed",
    "Exposure",
    "Local",
    "Mechanism",
    "Noise",
    "Protection",
    "Samples",
    "clip_factors",
    "message_norms",
]
