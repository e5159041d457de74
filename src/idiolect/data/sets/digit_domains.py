"""Digits of several kinds, from the standard files of each: MNIST, USPS, SVHN and MNIST-M.

As in FedBN (Li, Jiang, Zhang, Kamp and Dou 2021), every digit becomes a colour picture of one size.
"""

from __future__ import annotations

import bz2
import io
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...core.knobs import SettingError, knob
from ..download import file_in, folder_of, path_knob, reading
from ..entries import register
from ..federation import Federation
from ..read.folders import decode
from .domains import ByDomain
from .images import Part, idx_part

FILE_LIMIT = 1 << 31  # bytes of a file; the largest (SVHN's extra part) has 1.3 GB
PIXEL_LIMIT = 1 << 30  # bytes of the pictures of a file
AT_ONCE = 4096  # pictures that are resized together
MEMORY = 8.0  # GiB that the pictures of MNIST-M may take


def read_mnist(folder: Path) -> Part:
    """The four IDX files of MNIST, raw or gzipped."""
    return _joined([idx_part(folder, prefix) for prefix in ("train", "t10k")])


def read_usps(folder: Path) -> Part:
    """usps.bz2 and usps.t.bz2 of LIBSVM: labels 1 to 10, 256 pixels in [-1, 1]."""
    return _joined(
        [_usps(file_in(folder, name, FILE_LIMIT)) for name in ("usps.bz2", "usps.t.bz2")]
    )


def _usps(path: Path) -> Part:
    from sklearn.datasets import load_svmlight_file

    with reading(path, "a file of USPS digits in LIBSVM's form"):
        with bz2.open(path) as file:
            text = file.read(PIXEL_LIMIT + 1)
        if len(text) > PIXEL_LIMIT:
            raise ValueError(f"more than {PIXEL_LIMIT} bytes")
        pixels, labels = load_svmlight_file(io.BytesIO(text), n_features=256, zero_based=False)
        x = np.rint((pixels.toarray() + 1) * 127.5).clip(0, 255).astype(np.uint8)
    return x.reshape(-1, 1, 16, 16), _digits(labels - 1, path)


def read_svhn(folder: Path) -> Part:
    """train_32x32.mat and test_32x32.mat: X [32, 32, 3, n], y [n, 1] in which 10 stands for 0."""
    names = ("train_32x32.mat", "test_32x32.mat")
    return _joined([_svhn(file_in(folder, name, FILE_LIMIT)) for name in names])


def _svhn(path: Path) -> Part:
    with reading(path, "a file of SVHN's cropped digits"):
        content = _matrices(path)
        if content["X"].dtype != np.uint8:
            raise ValueError(f"X must be bytes, got {content['X'].dtype}")
        labels = content["y"][:, 0]
    images = np.ascontiguousarray(content["X"].transpose(3, 2, 0, 1))
    return images, _digits(np.where(labels == 10, 0, labels), path)


def _matrices(path: Path) -> dict[str, np.ndarray]:
    """X and y of a MATLAB file; their sizes are checked before memory is taken."""
    from scipy.io import loadmat, whosmat
    from scipy.io.matlab import MatReadError

    try:
        shapes = {name: shape for name, shape, _ in whosmat(path)}
        shape = shapes.get("X", ())
        if shape[:3] != (32, 32, 3) or len(shape) != 4 or shapes.get("y") != (shape[3], 1):
            raise ValueError(f"it has {shapes}, not X [32, 32, 3, n] and y [n, 1]")
        if 3072 * shape[3] > PIXEL_LIMIT:
            raise ValueError(f"more than {PIXEL_LIMIT} bytes of pictures")
        return loadmat(path, variable_names=["X", "y"])
    except (MatReadError, NotImplementedError, zlib.error) as error:
        raise ValueError(str(error)) from None


def read_mnist_m(folder: Path) -> Part:
    """Folders mnist_m_train and mnist_m_test, each with NAME_labels.txt: a line FILE LABEL each."""
    parts = []
    for name in ("mnist_m_train", "mnist_m_test"):
        path = file_in(folder, f"{name}_labels.txt", 1 << 26)
        with reading(path, "a list of pictures with their digits"):
            lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line]
            if any(len(words) != 2 or Path(words[0]).name != words[0] for words in lines):
                raise ValueError("a line is not FILE LABEL")
            labels = np.array([int(label) for _, label in lines])
        files = [Path(name, file) for file, _ in lines]
        images = decode(files, folder, 32, "rgb", MEMORY).numpy()
        parts.append((images, _digits(labels, path)))
    return _joined(parts)


READERS: dict[str, Callable[[Path], Part]] = {
    "mnist": read_mnist,
    "mnist-m": read_mnist_m,
    "svhn": read_svhn,
    "usps": read_usps,
}


@register("digit-domains")
@dataclass(frozen=True)
class DigitDomains(ByDomain):
    """Digits of several kinds in colour: MNIST, MNIST-M, SVHN and USPS, a domain each.

    LeCun et al. (1998); Hull (1994); Netzer et al. (2011); Ganin and Lempitsky (2015).
    """

    samples: int = knob(10_000, "most samples of a domain, drawn at random; 0: all", low=0)
    domains: str = knob(
        "", f"which, with commas: {', '.join(READERS)}; '' = those that the folder has"
    )
    size: int = knob(28, "size x size pixels of every digit", low=8)
    path: str = path_knob("digit-domains")

    def load(self) -> Federation:
        folder = folder_of("digit-domains", self.path)
        parts = {name: READERS[name](folder / name) for name in self._names(folder)}
        sizes = [len(labels) for _, labels in parts.values()]
        used, client = self.deal(np.repeat(list(parts), sizes))
        ends = np.cumsum([0, *sizes])
        pictures = []
        for start, end, (images, _) in zip(ends, ends[1:], parts.values(), strict=False):
            own = used[(used >= start) & (used < end)] - start
            pictures.append(in_one_form(images[own], self.size))
        return Federation.from_arrays(
            torch.cat(pictures),
            np.concatenate([labels for _, labels in parts.values()])[used],
            client,
            classes=10,
            channels="first",
            **self.shares(),
            name="digit-domains",
        )

    def _names(self, folder: Path) -> list[str]:
        """The domains that were named, or those that are there."""
        wanted = [name.strip() for name in self.domains.split(",") if name.strip()]
        names = wanted or [name for name in READERS if (folder / name).is_dir()]
        for name in names:
            if name not in READERS or not (folder / name).is_dir():
                raise SettingError(
                    f"domains must be folders of {folder} among {', '.join(READERS)}, got {name!r}"
                )
        if not names:
            raise SettingError(f"path: {folder} has none of the folders {', '.join(READERS)}")
        return names


def in_one_form(images: np.ndarray, size: int) -> Tensor:
    """Pictures uint8[n, 1 or 3, h, w] as float32[n, 3, size, size] in [0, 1]."""
    out = torch.empty(len(images), 3, size, size)
    for at in range(0, len(images), AT_ONCE):
        x = torch.from_numpy(images[at : at + AT_ONCE]).float().div_(255)
        if x.shape[2:] != (size, size):
            x = torch.nn.functional.interpolate(x, (size, size), mode="bilinear", antialias=True)
        out[at : at + AT_ONCE] = x  # a grey channel goes to all three
    return out


def _joined(parts: list[Part]) -> Part:
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _digits(labels: np.ndarray, path: Path) -> np.ndarray:
    """Labels as whole numbers from 0 to 9."""
    whole = labels.astype(np.int64)
    if (whole != labels).any() or whole.min(initial=0) < 0 or whole.max(initial=0) > 9:
        raise SettingError(f"path: {path} has a label that is no digit")
    return whole
