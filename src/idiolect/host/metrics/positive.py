"""Which of two classes is the positive one: what F1, precision, recall and their kin are about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.knobs import SettingError, brief

# the first of each pair is the positive class
KNOWN_PAIRS = (
    *(("yes", "no"), ("y", "n"), ("ja", "nein"), ("j", "n"), ("oui", "non"), ("si", "no")),
    *(("sí", "no"), ("sì", "no"), ("sim", "não"), ("ja", "nee"), ("true", "false"), ("t", "f")),
    *(("1", "0"), ("1", "-1"), ("positive", "negative"), ("pos", "neg"), ("abnormal", "normal")),
    *(("ill", "well"), ("ill", "healthy"), ("sick", "healthy"), ("sick", "well")),
    *(("diseased", "healthy"), ("disease", "healthy"), ("disease", "no disease")),
    *(("krank", "gesund"), ("malade", "sain"), ("dead", "alive"), ("died", "survived")),
    *(("died", "alive"), ("death", "survival"), ("deceased", "alive"), ("case", "control")),
    *(("event", "none"), ("event", "no event"), ("event", "censored"), ("present", "absent")),
    *(("malignant", "benign"), ("fraud", "legitimate"), ("fraud", "no fraud"), ("spam", "ham")),
    *(("default", "no default"), ("churn", "no churn"), ("fail", "pass"), ("failure", "ok")),
    *(("defect", "ok"), ("faulty", "ok"), ("anomaly", "normal"), ("attack", "normal")),
)
GIVEN, BY_NAME, RARER = "as set", "by its name", "the rarer class in training data"
LAST = "the last class: both are as frequent in training data"


@dataclass(frozen=True)
class PositiveClass:
    """The positive class of two, and why it is that one."""

    index: int
    name: str
    reason: str


def positive_class(
    names: Sequence[Any], wanted: str = "", counts: Callable[[], Sequence[int]] | None = None
) -> PositiveClass | None:
    """The positive class: the one that is `wanted`, else known by its name, else the rarer one.

    `names` are the labels of the classes in their order; `counts` gives the training samples of
    each. None where there are not two classes, or where nothing tells which of them it is.

    >>> positive_class(["ja", "nein"]).name
    'ja'
    >>> positive_class(["a", "b"], counts=lambda: [10, 90])
    PositiveClass(index=0, name='a', reason='the rarer class in training data')
    >>> positive_class(["ja", "nein"], "yes")
    Traceback (most recent call last):
        ...
    idiolect.core.knobs.SettingError: positive must be one of the classes 'ja', 'nein', got 'yes'
    """
    labels = [label_text(name) for name in names]
    if wanted:
        return _named(labels, wanted)
    if len(labels) != 2:
        return None
    folded = [label.strip().casefold() for label in labels]
    for index in (0, 1):
        if (folded[index], folded[1 - index]) in KNOWN_PAIRS:
            return PositiveClass(index, labels[index], BY_NAME)
    if counts is None:
        return None
    first, second = counts()
    index = 0 if first < second else 1
    return PositiveClass(index, labels[index], LAST if first == second else RARER)


def _named(labels: Sequence[str], wanted: str) -> PositiveClass:
    if len(labels) != 2:
        kind = f"these have {len(labels)} classes" if labels else "these have real targets"
        raise SettingError(
            f"positive must be left out for these data, got {brief(wanted)}: it chooses one of two "
            f"classes, and {kind}"
        )
    for same in (str, str.casefold):
        matches = [i for i, label in enumerate(labels) if same(label) == same(wanted)]
        if len(matches) == 1:
            return PositiveClass(matches[0], labels[matches[0]], GIVEN)
    choices = ", ".join(repr(label) for label in labels)
    raise SettingError(f"positive must be one of the classes {choices}, got {brief(wanted)}")


def label_text(label: Any) -> str:
    """The label of a class as the setting and the tables write it: 1.0 as 1.

    >>> label_text(1.0), label_text("ja"), label_text(True)
    ('1', 'ja', 'True')
    """
    whole = isinstance(label, float) and label.is_integer()
    return str(int(label)) if whole else str(label)


def parse_positive(value: Any) -> str:
    """The setting `positive`: the label of a class, as text or as the data have it."""
    if value is None:
        return ""
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, str | bool | int | float):
        raise SettingError(f"positive must be the label of a class, got {brief(value)}")
    return label_text(value)
