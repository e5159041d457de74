"""Feature shift: the same classes in several domains, with one client per domain or several.

What a domain is: a camera, a way of drawing, a hospital's machine. Clients have alike labels and
unlike inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...core.knobs import SettingError, knob
from ..download import folder_of, path_knob
from ..entries import register
from ..federation import Federation
from ..read.folders import decode, pictures_below
from ..redraw import DATA
from ..splits import Shares


@dataclass(frozen=True)
class ByDomain(Shares):
    """Samples of several domains, dealt to clients within each."""

    clients_per_domain: int = knob(1, "clients of each domain, of equal size", low=1)
    samples: int = knob(0, "most samples of a domain, drawn at random; 0: all", low=0)

    seed_draws: ClassVar[str] = DATA  # the samples of each client, and their split

    def deal(self, domains: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which samples are used, in order, and the client of each: "amazon", or "amazon-0".

        `domains`: the name of each sample's.
        """
        client = np.full(len(domains), "", dtype=object)
        for place, name in enumerate(np.unique(domains)):
            rows = np.flatnonzero(domains == name)
            rows = np.random.default_rng([self.seed, place]).permutation(rows)
            rows = rows[: self.samples or len(rows)]
            if len(rows) < self.clients_per_domain:
                raise SettingError(
                    f"clients_per_domain must be at most {len(rows)}, the samples of {name}, "
                    f"got {self.clients_per_domain}"
                )
            for k in range(self.clients_per_domain):
                own = name if self.clients_per_domain == 1 else f"{name}-{k}"
                client[rows[k :: self.clients_per_domain]] = own
        used = np.flatnonzero(client != "")
        return used, client[used]


# -- digits of scikit-learn in several styles ------------------------------------------------------
Pixels = np.ndarray  # float32[n, 8, 8] in [0, 1]


def _thick(x: Pixels, rng: np.random.Generator) -> Pixels:
    """Every pixel as bright as the brightest of itself, its left and its upper neighbours."""
    padded = np.pad(x, ((0, 0), (1, 0), (1, 0)))
    wide = np.maximum(padded[:, :, 1:], padded[:, :, :-1])
    return np.maximum(wide[:, 1:], wide[:, :-1])


def _noisy(x: Pixels, rng: np.random.Generator) -> Pixels:
    return np.clip(x + rng.normal(0, 0.25, x.shape), 0, 1)


STYLES: dict[str, Callable[[Pixels, np.random.Generator], Pixels]] = {
    "plain": lambda x, rng: x,
    "inverted": lambda x, rng: 1 - x,
    "faint": lambda x, rng: 0.3 * x,
    "thick": _thick,
    "noisy": _noisy,
}


@register("digit-styles")
@dataclass(frozen=True)
class DigitStyles(ByDomain):
    """The 1,797 digits of scikit-learn in five styles, each a domain of its own; no download.

    Plain, inverted, faint, thick and noisy. No digit is in two domains.

    >>> f = DigitStyles().load()
    >>> f.ids, f.classes, tuple(f.inputs.shape[1:])
    (('faint', 'inverted', 'noisy', 'plain', 'thick'), 10, (1, 8, 8))
    """

    def load(self) -> Federation:
        from sklearn.datasets import load_digits  # here, because it takes seconds to import

        pixels, labels = load_digits(return_X_y=True)
        rng = np.random.default_rng(self.seed)
        style = rng.permutation(np.arange(len(labels)) % len(STYLES))
        x = (pixels / 16).reshape(-1, 8, 8)
        for number, change in enumerate(STYLES.values()):
            x[style == number] = change(x[style == number], rng)
        used, client = self.deal(np.array(list(STYLES))[style])
        return Federation.from_arrays(
            x[used, None].astype(np.float32),
            labels[used],
            client,
            classes=10,
            channels="first",
            **self.shares(),
            name="digit-styles",
        )


# -- pictures in folders domain/class/file ---------------------------------------------------------
@register("domains")
@dataclass(frozen=True)
class PictureDomains(ByDomain):
    """Pictures in folders domain/class/file, as Office-Caltech 10 and PACS have them.

    The name of a class must be the same in every domain. Gong, Shi, Sha and Grauman (2012),
    Geodesic flow kernel for unsupervised domain adaptation (Office-Caltech).
    """

    size: int = knob(64, "resize to size x size pixels", low=1)
    memory: float = knob(4.0, "most GiB that the pictures may take as numbers", above=0)
    path: str = path_knob("domains")

    def load(self) -> Federation:
        folder = folder_of("domains", self.path)
        files = pictures_below(folder)
        odd = next((file for file in files if len(file.parts) != 3), None)
        if odd is not None:
            raise SettingError(f"path: {str(odd)[:80]!r} in {folder} is not DOMAIN/CLASS/FILE")
        used, client = self.deal(np.array([file.parts[0] for file in files]))
        selection = [files[row] for row in used]
        names = sorted({file.parts[1] for file in files})
        _check_classes(files, names, folder)
        return Federation.from_arrays(
            decode(selection, folder, self.size, "rgb", self.memory),
            [file.parts[1] for file in selection],
            client,
            class_names=names,
            channels="first",
            **self.shares(),
            name=folder.resolve().name or "domains",
        )


def _check_classes(files: list[Path], names: list[str], folder: Path) -> None:
    """Refuse folders of which no class is in two domains: these are no domains."""
    pairs = {file.parts[:2] for file in files}
    if len(pairs) == len(names) and len({domain for domain, _ in pairs}) > 1:
        raise SettingError(
            f"path: no class of {folder} is in two domains; the folders must be DOMAIN/CLASS/FILE "
            "with the same names of classes in every domain"
        )
