"""The public names of reports and the modules that define them."""

from .format import count, goal, number, size
from .plots import COLOURS, GREY, INK, STYLES, curve_picture, names_at_ends
from .tables import majority_row
from .targets import Curve, Goals, curve
from .verdicts import ClientGain, judged_clients

__all__ = [
    "COLOURS",
    "GREY",
    "INK",
    "STYLES",
    "ClientGain",
    "Curve",
    "Goals",
    "count",
    "curve",
    "curve_picture",
    "goal",
    "judged_clients",
    "majority_row",
    "names_at_ends",
    "number",
    "size",
]
