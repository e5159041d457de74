"""Readers of IDX, CIFAR-10 and PNG files, on small files; damaged ones are refused before memory is taken."""

import gzip
import json
import struct
import zlib

import numpy as np
import pytest
import torch

from idiolect import data
from idiolect.core.knobs import SettingError
from idiolect.data import cifar, idx, png

RNG = np.random.default_rng(0)


def write_mnist(folder, train=400, test=100, size=28, packed=False):
    for prefix, n in (("train", train), ("t10k", test)):
        idx.write(folder / f"{prefix}-images-idx3-ubyte", RNG.integers(0, 256, (n, size, size)))
        idx.write(folder / f"{prefix}-labels-idx1-ubyte", np.arange(n) % 10)
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
    idx.write(tmp_path / "t10k-images-idx3-ubyte", np.full((100, 28, 28), 255))
    idx.write(tmp_path / "train-images-idx3-ubyte", np.zeros((400, 28, 28)))
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
    idx.write(tmp_path / "train-labels-idx1-ubyte", np.zeros(399))
    with pytest.raises(SettingError, match="do not go with labels"):
        data.load("mnist", path=str(tmp_path))
    idx.write(tmp_path / "train-labels-idx1-ubyte", np.full(400, 10))
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
            "promises 5 bytes of data, the file has 4",
        ),
        (b"\0\0\x08\x01" + struct.pack(">I", 5) + bytes(6), "has more"),
        (b"\0\0\x08\x03" + struct.pack(">III", 2**31, 2**31, 2**31), "at most"),
        (
            gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 5) + bytes(5), mtime=0)[:-9],
            "damaged gzip",
        ),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path, body, message):
    path = tmp_path / "x"
    path.write_bytes(body)
    with pytest.raises(SettingError, match=message):
        idx.read(path)


def write_cifar(folder, n=40):
    for name in (*cifar.TRAIN, *cifar.TEST):
        cifar.write(
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
    images, labels = cifar.read(tmp_path / "b.bin")
    assert labels.tolist() == [7] and images[0, :, 31, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("body", "message"),
    [(b"", "0 bytes"), (bytes(3072), "3072 bytes are not"), (b"\x0a" + bytes(3072), "label 10")],
)
def test_damaged_cifar_batches_are_refused(tmp_path, body, message):
    (tmp_path / "b.bin").write_bytes(body)
    with pytest.raises(SettingError, match=message):
        cifar.read(tmp_path / "b.bin")


def test_png_sheets_become_the_original_batches(tmp_path):
    (tmp_path / "want").mkdir()
    write_cifar(tmp_path / "want", n=4)
    for name in (*cifar.TRAIN, *cifar.TEST):
        images, _ = cifar.read(tmp_path / "want" / f"{name}.bin")
        png.write(tmp_path / f"{name}.png", images.reshape(4, 3, 1024).transpose(0, 2, 1))
    (tmp_path / "train_lables.json").write_text(json.dumps([0, 1, 2, 3] * 5))
    (tmp_path / "test_lables.json").write_text(json.dumps([0, 1, 2, 3]))
    cifar.sheets_to_batches(tmp_path)
    for name in (*cifar.TRAIN, *cifar.TEST):
        assert (tmp_path / f"{name}.bin").read_bytes() == (
            tmp_path / "want" / f"{name}.bin"
        ).read_bytes()


@pytest.mark.parametrize("text", ["{", "[0, 11]", "[]", '["a"]', "[[1], [2]]", "[0.5]", "3"])
def test_bad_label_lists_are_refused(tmp_path, text):
    (tmp_path / "l.json").write_text(text)
    with pytest.raises(SettingError, match=r"l\.json"):
        cifar.read_labels(tmp_path / "l.json")


def filtered_png(pixels, kinds):
    """A PNG whose lines use the given filters, encoded pixel by pixel from the specification."""
    height, width, channels = pixels.shape
    lines = []
    for r in range(height):
        line = [kinds[r]]
        for c in range(width):
            for ch in range(channels):
                a = int(pixels[r, c - 1, ch]) if c else 0
                b = int(pixels[r - 1, c, ch]) if r else 0
                d = int(pixels[r - 1, c - 1, ch]) if r and c else 0
                p = a + b - d
                paeth = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - d), 2, d))[2]
                guess = (0, a, b, (a + b) // 2, paeth)[kinds[r]]
                line.append((int(pixels[r, c, ch]) - guess) % 256)
        lines.append(bytes(line))
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(b"".join(lines))), (b"IEND", b""))
    return png.SIGNATURE + b"".join(
        struct.pack(">I", len(p)) + k + p + struct.pack(">I", zlib.crc32(k + p)) for k, p in parts
    )


@pytest.mark.parametrize(
    "shape", [(10, 7, 3), (3, 12, 3), (6, 1, 3), (1, 6, 1), (5, 5, 1), (1, 1, 3), (9, 2, 1)]
)
def test_every_png_filter_is_undone(tmp_path, shape):
    pixels = RNG.integers(0, 256, shape, dtype=np.uint8)
    for start in range(5):
        (tmp_path / "x.png").write_bytes(
            filtered_png(pixels, [(start + r) % 5 for r in range(shape[0])])
        )
        assert (png.read(tmp_path / "x.png") == pixels).all()


def part(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def header(width=2, height=2, depth=8, colour=2, interlace=0):
    return part(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace))


PIXELS, END = part(b"IDAT", zlib.compress(bytes(14))), part(b"IEND", b"")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"GIF89a", "not a PNG file"),
        (png.SIGNATURE, "ends before its IEND"),
        (png.SIGNATURE + END, "no PNG header"),
        (png.SIGNATURE + header() + PIXELS, "ends before its IEND"),
        (png.SIGNATURE + header() + PIXELS[:-6], "cut off|ends before"),
        (png.SIGNATURE + header() + PIXELS[:-1] + b"?" + END, "checksum is wrong"),
        (png.SIGNATURE + header(depth=16) + PIXELS + END, "only plain 8-bit"),
        (png.SIGNATURE + header(colour=3) + PIXELS + END, "only plain 8-bit"),
        (png.SIGNATURE + header(interlace=1) + PIXELS + END, "only plain 8-bit"),
        (png.SIGNATURE + header(width=2**31, height=2**31) + PIXELS + END, "at most"),
        (png.SIGNATURE + header(height=3) + PIXELS + END, "promise 21 bytes, the file has 14"),
        (png.SIGNATURE + header(height=1) + PIXELS + END, "promise 7 bytes, the file has 8"),
        (png.SIGNATURE + header() + part(b"IDAT", b"no zlib") + END, "damaged pixel data"),
        (
            png.SIGNATURE + header() + part(b"IDAT", zlib.compress(b"\x05" + bytes(13))) + END,
            "unknown line filter 5",
        ),
    ],
)
def test_damaged_png_files_are_refused(tmp_path, body, message):
    (tmp_path / "x.png").write_bytes(body)
    with pytest.raises(SettingError, match=message):
        png.read(tmp_path / "x.png")
