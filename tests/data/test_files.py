"""Readers of IDX, CIFAR-10 and PNG files: damaged files are refused before memory is taken."""

import gzip
import json
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from idiolect import data
from idiolect.core.knobs import SettingError
from idiolect.data.sets import cifar10 as cifar
from idiolect.data.sets import images as idx

RNG = np.random.default_rng(0)


def write_mnist(folder, train=400, test=100, size=28, packed=False):
    for prefix, n in (("train", train), ("t10k", test)):
        idx.write_idx(folder / f"{prefix}-images-idx3-ubyte", RNG.integers(0, 256, (n, size, size)))
        idx.write_idx(folder / f"{prefix}-labels-idx1-ubyte", np.arange(n) % 10)
    if packed:
        for path in list(folder.iterdir()):
            (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    return folder


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_files_raw_or_gzipped_become_a_federation(tmp_path, packed, name):
    f = data.load(name, path=str(write_mnist(tmp_path, packed=packed)), clients=10)
    assert f.name == name and f.inputs.shape[1:] == (1, 28, 28) and f.inputs.dtype == torch.float32
    assert 0 <= float(f.inputs.min()) < float(f.inputs.max()) <= 1
    assert (
        f.sizes("train").tolist() == [32] * 10
        and f.sizes("valid").tolist() == [8] * 10
        and f.sizes("test").tolist() == [10] * 10
    )


def test_clients_are_tested_on_the_classes_they_train_on(tmp_path):
    f = data.load("mnist", path=str(write_mnist(tmp_path)), clients=10)
    assert torch.equal(f.class_counts("train") > 0, f.class_counts("test") > 0)


def test_test_samples_come_from_the_test_part_only(tmp_path):
    write_mnist(tmp_path)
    idx.write_idx(tmp_path / "t10k-images-idx3-ubyte", np.full((100, 28, 28), 255))
    idx.write_idx(tmp_path / "train-images-idx3-ubyte", np.zeros((400, 28, 28)))
    f = data.load(
        "mnist", path=str(tmp_path), clients=10, partition="dirichlet", alpha=1.0, minimum=5
    )
    start = int(f.offsets["test"][0])
    assert (f.inputs[start:] == 1).all() and (f.inputs[:start] == 0).all() and len(f.inputs) == 500


def test_standardised_training_pixels_have_mean_0_and_deviation_1(tmp_path):
    f = data.load("mnist", path=str(write_mnist(tmp_path)), clients=10, standardise=True)
    seen = f.inputs[: int(f.offsets["train"][-1])]
    assert float(seen.mean()) == pytest.approx(0, abs=1e-4) and float(seen.std()) == pytest.approx(
        1, abs=1e-3
    )


def test_a_share_of_the_images_can_be_used(tmp_path):
    f = data.load("mnist", path=str(write_mnist(tmp_path)), clients=5, partition="iid", share=0.5)
    assert len(f.inputs) == 250


def test_a_missing_file_is_named(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(SettingError, match="holds no file t10k-labels-idx1-ubyte"):
        data.load("mnist", path=str(tmp_path))


def test_labels_that_do_not_go_with_the_images_are_refused(tmp_path):
    write_mnist(tmp_path)
    idx.write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(399))
    with pytest.raises(SettingError, match="do not go with labels"):
        data.load("mnist", path=str(tmp_path))
    idx.write_idx(tmp_path / "train-labels-idx1-ubyte", np.full(400, 10))
    with pytest.raises(SettingError, match="label 10 lies outside the 10 classes"):
        data.load("mnist", path=str(tmp_path))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "0 bytes, too short"),
        (b"\0\0\x08", "3 bytes, too short"),
        (b"\0\0\x08\x02" + struct.pack(">I", 3), "header ends before its 2 dimensions"),
        (b"\0\0\x08\0", "header ends"),
        (b"PK\3\4" + bytes(20), "starts with 504b0304, not an IDX file"),
        (b"\0\0\x0d\x01" + struct.pack(">I", 1) + bytes(4), "not an IDX file of bytes"),
        (
            b"\0\0\x08\x01" + struct.pack(">I", 5) + bytes(4),
            "promises 5 bytes of data, the file has less",
        ),
        (b"\0\0\x08\x01" + struct.pack(">I", 5) + bytes(6), "has more"),
        (b"\0\0\x08\x03" + struct.pack(">III", 2**31, 2**31, 2**31), "at most"),
        (
            gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 5) + bytes(5), mtime=0)[:-9],
            "damaged gzip",
        ),
        (gzip.compress(b"", mtime=0)[:10] + b"\xff" * 20, "damaged gzip"),
        (b"\0\0\x08\xff" + struct.pack(">I", 1) * 255 + b"\1", "255 dimensions; at most 8"),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path, body, message):
    path = tmp_path / "x"
    path.write_bytes(body)
    with pytest.raises(SettingError, match=message):
        idx.read_idx(path)


@pytest.mark.parametrize("packed", [False, True])
def test_no_memory_is_taken_for_bytes_that_a_short_file_cannot_hold(tmp_path, packed):
    body = b"\0\0\x08\x01" + struct.pack(">I", idx.IDX_LIMIT)
    (tmp_path / "x").write_bytes(gzip.compress(body) if packed else body)
    tracemalloc.start()
    with pytest.raises(SettingError, match="promises 1073741824 bytes of data, the file has less"):
        idx.read_idx(tmp_path / "x")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def write_cifar(folder, n=40):
    for name in (*cifar.TRAIN, *cifar.TEST):
        cifar.write_batch(
            folder / f"{name}.bin",
            RNG.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8),
            np.arange(n) % 10,
        )
    return folder


def test_cifar_batches_become_a_federation(tmp_path):
    f = data.load("cifar10", path=str(write_cifar(tmp_path)), clients=10)
    assert (
        f.inputs.shape[1:] == (3, 32, 32)
        and f.sizes("train").tolist() == [16] * 10
        and f.sizes("test").tolist() == [4] * 10
    )


def test_a_record_is_label_then_red_green_blue(tmp_path):
    (tmp_path / "b.bin").write_bytes(
        bytes([7]) + bytes([1] * 1024) + bytes([2] * 1024) + bytes([3] * 1024)
    )
    images, labels = cifar.read_batch(tmp_path / "b.bin")
    assert labels.tolist() == [7] and images[0, :, 31, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("body", "message"),
    [(b"", "0 bytes"), (bytes(3072), "3072 bytes are not"), (b"\x0a" + bytes(3072), "label 10")],
)
def test_damaged_cifar_batches_are_refused(tmp_path, body, message):
    (tmp_path / "b.bin").write_bytes(body)
    with pytest.raises(SettingError, match=message):
        cifar.read_batch(tmp_path / "b.bin")


def write_png(path, pixels):  # uint8[height, width, 1 or 3]
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(path)


def test_png_sheets_become_the_original_batches(tmp_path):
    (tmp_path / "want").mkdir()
    write_cifar(tmp_path / "want", n=4)
    for name in (*cifar.TRAIN, *cifar.TEST):
        images, _ = cifar.read_batch(tmp_path / "want" / f"{name}.bin")
        write_png(tmp_path / f"{name}.png", images.reshape(4, 3, 1024).transpose(0, 2, 1))
    (tmp_path / "train_lables.json").write_text(json.dumps([0, 1, 2, 3] * 5))
    (tmp_path / "test_lables.json").write_text(json.dumps([0, 1, 2, 3]))
    cifar.sheets_to_batches(tmp_path)
    for name in (*cifar.TRAIN, *cifar.TEST):
        assert (tmp_path / f"{name}.bin").read_bytes() == (
            tmp_path / "want" / f"{name}.bin"
        ).read_bytes()


@pytest.mark.parametrize(
    "text", ["{", "[0, 11]", "[]", '["a"]', "[[1], [2]]", "[0.5]", "3", "[" * 10**5]
)
def test_bad_label_lists_are_refused(tmp_path, text):
    (tmp_path / "l.json").write_text(text)
    with pytest.raises(SettingError, match=r"l\.json"):
        cifar.read_labels(tmp_path / "l.json")


@pytest.mark.parametrize("shape", [(10, 7, 3), (1, 6, 1), (5, 5, 1), (1, 1, 3)])
def test_grey_and_colour_pictures_are_read_pixel_by_pixel(tmp_path, shape):
    pixels = RNG.integers(0, 256, shape, dtype=np.uint8)
    write_png(tmp_path / "x.png", pixels)
    assert (cifar.read_png(tmp_path / "x.png") == pixels).all()


def test_a_sheet_of_another_width_is_refused(tmp_path):
    write_png(tmp_path / "x.png", np.zeros((2, 1000, 3), dtype=np.uint8))
    with pytest.raises(SettingError, match="lines of 1000 pixels with 3 channels"):
        cifar.read_sheet(tmp_path / "x.png")


SIGNATURE = b"\x89PNG\r\n\x1a\n"


def part(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def header(width=2, height=2, depth=8, colour=2):
    return part(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))


PIXELS = part(b"IDAT", zlib.compress(bytes(14)))
END = part(b"IEND", b"")
WIDE_PIXELS = part(b"IDAT", zlib.compress(bytes(26)))
BOMB_IN_A_TEXT = part(b"zTXt", b"a\0\0" + zlib.compress(bytes(10**8)))
UNKNOWN_FILTER = part(b"IDAT", zlib.compress(b"\x05" + bytes(13)))


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "is not a picture"),
        (b"GIF89a", "is not a picture"),
        (SIGNATURE, "is not a picture"),
        (SIGNATURE + END, "is not a picture"),
        (SIGNATURE + header(width=0) + PIXELS + END, "is not a picture"),
        (SIGNATURE + part(b"IHDR", b"abc") + PIXELS + END, "is not a picture, or damaged"),
        (SIGNATURE + header() + PIXELS, "is not a picture, or damaged"),
        (SIGNATURE + header() + PIXELS[:-6], "is not a picture, or damaged"),
        (SIGNATURE + header() + PIXELS[:-1] + b"?" + END, "checksum"),
        (SIGNATURE + header() + part(b"IDAT", b"no zlib") + END, "is not a picture, or damaged"),
        (SIGNATURE + header() + UNKNOWN_FILTER + END, "is not a picture, or damaged"),
        (SIGNATURE + header() + BOMB_IN_A_TEXT + PIXELS + END, "is not a picture, or damaged"),
        (SIGNATURE + header() + END, "must be an 8-bit grey or RGB"),
        (SIGNATURE + header(depth=16) + WIDE_PIXELS + END, "must be an 8-bit grey or RGB"),
        (
            SIGNATURE + header(depth=16, colour=0) + WIDE_PIXELS + END,
            "must be an 8-bit grey or RGB",
        ),
        (SIGNATURE + header(depth=4, colour=0) + PIXELS + END, "must be an 8-bit grey or RGB"),
        (SIGNATURE + header(colour=3) + PIXELS + END, "must be an 8-bit grey or RGB"),
        (SIGNATURE + header(colour=6) + PIXELS + END, "must be an 8-bit grey or RGB"),
        (SIGNATURE + header(width=30_000, height=5_000) + PIXELS + END, "too many pixels"),
        (SIGNATURE + header(width=2**31, height=2**31) + PIXELS + END, "too many pixels"),
    ],
)
def test_damaged_and_hostile_png_files_are_refused(tmp_path, body, message):
    (tmp_path / "x.png").write_bytes(body)
    with pytest.raises(SettingError, match=message):
        cifar.read_png(tmp_path / "x.png")


def test_the_size_of_a_picture_is_checked_before_it_is_decoded(tmp_path, monkeypatch):
    write_png(tmp_path / "x.png", np.zeros((4, 5, 3), dtype=np.uint8))
    monkeypatch.setattr(cifar, "SHEET_LIMIT", 4 * 5 * 3)
    assert cifar.read_png(tmp_path / "x.png").shape == (4, 5, 3)
    monkeypatch.setattr(cifar, "SHEET_LIMIT", 4 * 5 * 3 - 1)
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    with pytest.raises(SettingError, match="at most 59 bytes of pixels, got 5 x 4"):
        cifar.read_png(tmp_path / "x.png")
