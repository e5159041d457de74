"""CIFAR-100 and Tiny ImageNet from small files of their forms; both parts of a set as one pool."""

import numpy as np
import pytest
from PIL import Image

import idiolect as il
from idiolect import SettingError
from idiolect.data.sets.images import write_idx

RNG = np.random.default_rng(0)
WHOLE = {"partition": "iid", "clients": 2, "valid": 0}


# -- CIFAR-100 -------------------------------------------------------------------------------------
@pytest.fixture
def cifar100(tmp_path):
    for file, n in (("train.bin", 200), ("test.bin", 100)):
        fine = np.arange(n) % 100
        records = RNG.integers(0, 256, (n, 3074))
        records[:, 0], records[:, 1] = fine // 5, fine
        records[:, 2] = fine  # the first red pixel
        (tmp_path / file).write_bytes(records.astype(np.uint8).tobytes())
    return tmp_path


def test_a_record_of_cifar100_is_two_labels_and_a_picture(cifar100):
    data = il.data.load("cifar100", path=str(cifar100), **WHOLE)
    assert data.classes == 100 and data.shape == (3, 32, 32) and data.samples == 300
    assert np.allclose(data.inputs[:, 0, 0, 0] * 255, data.targets, atol=1e-4)


def test_the_coarse_labels_of_cifar100_are_twenty(cifar100):
    data = il.data.load("cifar100", path=str(cifar100), labels="coarse", **WHOLE)
    assert data.classes == 20
    assert np.allclose(data.inputs[:, 0, 0, 0] * 255 // 5, data.targets, atol=1e-4)


def test_a_damaged_file_of_cifar100_is_refused(cifar100):
    path = cifar100 / "test.bin"
    content = bytearray(path.read_bytes())
    content[1] = 100
    path.write_bytes(content)
    with pytest.raises(SettingError, match="label 100 lies outside the 100 classes"):
        il.data.load("cifar100", path=str(cifar100))
    path.write_bytes(content[:-1])
    with pytest.raises(SettingError, match="not a whole number of 3074-byte CIFAR-100 records"):
        il.data.load("cifar100", path=str(cifar100))


# -- Tiny ImageNet ---------------------------------------------------------------------------------
CLASSES = ("n02", "n01", "n03")  # in no order of the alphabet


@pytest.fixture
def tiny_imagenet(tmp_path):
    (tmp_path / "wnids.txt").write_text("".join(f"{name}\n" for name in CLASSES))
    lines = []
    for label, name in enumerate(CLASSES):
        for number in range(4):
            _save(tmp_path / "train" / name / "images" / f"{name}_{number}.JPEG", 80 * label)
        for number in range(2):
            file = f"val_{2 * label + number}.JPEG"
            _save(tmp_path / "val" / "images" / file, 80 * label)
            lines.append(f"{file}\t{name}\t0\t0\t62\t62\n")
    (tmp_path / "val" / "val_annotations.txt").write_text("".join(lines))
    return tmp_path


def _save(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = "L" if value == 80 else "RGB"  # some of the originals are grey
    Image.new(mode, (64, 64), value if mode == "L" else (value,) * 3).save(path)


def test_tiny_imagenet_trains_on_its_training_part_and_tests_on_its_validation_part(tiny_imagenet):
    data = il.data.load("tiny-imagenet", path=str(tiny_imagenet), **WHOLE)
    assert data.classes == 3 and data.shape == (3, 64, 64)
    assert data.class_counts("train").sum(0).tolist() == [4, 4, 4]
    assert data.class_counts("test").sum(0).tolist() == [2, 2, 2]
    value = (data.inputs.mean((1, 2, 3)) * 255).round()
    assert np.allclose(value, 80 * data.targets, atol=2)


def test_tiny_imagenet_is_resized(tiny_imagenet):
    data = il.data.load("tiny-imagenet", path=str(tiny_imagenet), size=32, **WHOLE)
    assert data.shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("wnids.txt", "n01\nn01\n", "is not a list of classes"),
        ("wnids.txt", "../n01\n", "is not a list of classes"),
        ("val/val_annotations.txt", "../x.JPEG\tn01\t0\n", "not FILE, CLASS"),
        ("val/val_annotations.txt", "val_0.JPEG\tn99\t0\n", "not FILE, CLASS"),
        ("val/val_annotations.txt", "", "lacks the pictures"),
    ],
)
def test_lists_of_tiny_imagenet_that_do_not_fit_are_refused(tiny_imagenet, file, content, words):
    (tiny_imagenet / file).write_text(content)
    with pytest.raises(SettingError, match=words):
        il.data.load("tiny-imagenet", path=str(tiny_imagenet))


# -- both parts as one pool ------------------------------------------------------------------------
@pytest.fixture
def mnist(tmp_path):
    for prefix, n in (("train", 600), ("t10k", 200)):
        write_idx(tmp_path / f"{prefix}-images-idx3-ubyte", RNG.integers(0, 256, (n, 28, 28)))
        write_idx(tmp_path / f"{prefix}-labels-idx1-ubyte", np.arange(n) % 10)
    return str(tmp_path)


def test_a_pool_gives_each_client_a_quarter_of_its_own_images_for_testing(mnist):
    data = il.data.load("mnist", path=mnist, pooled=True, partition="iid", clients=8, valid=0)
    assert data.sizes("train").tolist() == [75] * 8 and data.sizes("test").tolist() == [25] * 8


def test_a_pool_has_every_image_once(mnist):
    data = il.data.load("mnist", path=mnist, pooled=True, partition="iid", clients=8)
    plain = il.data.load("mnist", path=mnist, partition="iid", clients=8)
    sums = [sorted((d.inputs.sum((1, 2, 3)) * 255).round().tolist()) for d in (data, plain)]
    assert data.samples == 800 and sums[0] == sums[1]


def test_the_settings_of_pfllib_can_be_named(mnist):
    common = {"path": mnist, "clients": 20, "pooled": True, "valid": 0}
    drawn = il.data.load(
        "mnist", partition="dirichlet", alpha=0.1, capped=True, minimum=10, **common
    )
    assert drawn.samples == 800
    sizes = drawn.sizes("train") + drawn.sizes("test")
    assert int(sizes.max()) < 40 + 80  # an even share, and one class more
    shards = il.data.load("mnist", partition="classes", classes_per_client=2, uneven=True, **common)
    assert shards.samples == 800
    counts = shards.class_counts("train") + shards.class_counts("test")
    assert ((counts > 0).sum(1) == 2).all()
