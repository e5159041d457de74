"""Data sets that nobody may or can fetch for you: their standard files, in a folder of yours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..core.files import given_path
from ..core.knobs import SettingError


@dataclass(frozen=True)
class OwnFiles:
    expects: str  # the files
    terms: str  # licence or status of the data
    citation: str


OWN: dict[str, OwnFiles] = {
    "emnist": OwnFiles(
        "emnist-byclass-train-images-idx3-ubyte, emnist-byclass-train-labels-idx1-ubyte and the "
        "same two of test, raw or .gz (or those of another --subset)",
        "no formal licence; made from NIST Special Database 19",
        "Cohen, Afshar, Tapson and van Schaik (2017), EMNIST: an extension of MNIST to handwritten "
        "letters, arXiv:1702.05373",
    ),
    "femnist": OwnFiles(
        "LEAF's .json files, in the folder itself or in train and test below it, each with users "
        'and user_data, {writer: {"x": [[784 numbers]], "y": [class]}}',
        "no formal licence; made from NIST Special Database 19; LEAF's code is BSD-2-Clause",
        "Caldas et al. (2018), LEAF: a benchmark for federated settings, arXiv:1812.01097",
    ),
    "stackoverflow": OwnFiles(
        "stackoverflow_train.h5 of TensorFlow Federated (needs h5py), or stackoverflow_train.jsonl "
        'with a line {"user": ..., "text": ...} per sentence in order of time (or those of another '
        "--part)",
        "CC BY-SA 3.0 (Stack Exchange)",
        "Stack Overflow data, prepared by the authors of TensorFlow Federated (2019)",
    ),
    "gldv2": OwnFiles(
        "federated_train.csv with the columns user_id, image_id and class, and the pictures, "
        "IMAGE_ID.jpg, in train (or images) below it, in one folder or by the first three "
        "characters of the id (train/0/a/1/0a1....jpg)",
        "annotations CC BY 4.0, pictures under the licence of each",
        "Hsu, Qi and Brown (2020), Federated visual classification with real-world data "
        "distribution, arXiv:2003.08082; Weyand, Araujo, Cao and Sim (2020), Google Landmarks "
        "Dataset v2, arXiv:2004.01804",
    ),
}


def own_folder(name: str, path: str) -> Path:
    """The user's folder with the files of a data set.

    >>> own_folder("emnist", "")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    idiolect.core.knobs.SettingError: path: emnist cannot be fetched; give the folder that holds ...
    """
    if not path:
        raise SettingError(
            f"path: {name} cannot be fetched; give the folder that holds {OWN[name].expects}"
        )
    folder = given_path(path, "path")
    if not folder.is_dir():
        raise SettingError(
            f"path: there is no folder {str(folder)!r}; it should hold {OWN[name].expects}"
        )
    return folder
