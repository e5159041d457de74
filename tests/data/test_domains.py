"""Feature shift: domains with the same classes and unlike inputs, from small files of each form."""

import bz2

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

import idiolect as il
from idiolect import SettingError
from idiolect.data.sets.images import write_idx

RNG = np.random.default_rng(0)


def picture(path, side=6, value=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = (
        RNG.integers(0, 256, (side, side, 3)) if value is None else np.full((side, side, 3), value)
    )
    Image.fromarray(pixels.astype(np.uint8)).save(path)


# -- styles of the digits of scikit-learn ----------------------------------------------------------
def test_every_digit_is_in_one_style_and_labels_are_alike():
    data = il.data.load("digit-styles", test=0, valid=0)
    assert data.samples == 1797 and set(data.ids) == {
        "plain",
        "inverted",
        "faint",
        "thick",
        "noisy",
    }
    share = data.class_counts().double() / data.sizes("train")[:, None]
    assert float((share - share.mean(0)).abs().max()) < 0.06


def test_styles_shift_the_inputs():
    data = il.data.load("digit-styles", test=0, valid=0)
    mean = {name: float(data.part(k, "train")[0].mean()) for k, name in enumerate(data.ids)}
    assert mean["inverted"] > 0.6 > mean["thick"] > mean["plain"] > 2 * mean["faint"]


def test_another_seed_draws_other_digits_for_a_style():
    one, other = (il.data.load("digit-styles", seed=seed) for seed in (0, 1))
    assert one.fingerprint() != other.fingerprint()
    assert one.redrawn(1).fingerprint() == other.fingerprint()


# -- folders ---------------------------------------------------------------------------------------
@pytest.fixture
def office(tmp_path):
    for place, domain in enumerate(("amazon", "dslr")):
        for kind in ("bike", "mug"):
            for number in range(6):
                picture(tmp_path / domain / kind / f"{number}.png", value=100 * place + number)
    return tmp_path


def test_a_domain_is_a_client_with_the_pictures_of_its_folder(office):
    data = il.data.load("domains", path=str(office), size=6, test=0, valid=0)
    assert data.ids == ("amazon", "dslr") and data.class_names == ("bike", "mug")
    for k, low in enumerate((0, 100)):
        x, y = data.part(k, "train")
        values = (x[:, 0, 0, 0] * 255).round().int().sort().values.tolist()
        assert values == [low + n for n in range(6) for _ in range(2)]
        assert y.bincount().tolist() == [6, 6]


def test_several_clients_share_a_domain(office):
    data = il.data.load("domains", path=str(office), size=6, clients_per_domain=3, test=0, valid=0)
    assert data.ids == tuple(f"{d}-{k}" for d in ("amazon", "dslr") for k in range(3))
    assert data.sizes("train").tolist() == [4] * 6
    fewer = il.data.load("domains", path=str(office), size=6, samples=5, test=0, valid=0)
    assert fewer.sizes("train").tolist() == [5, 5]


def test_folders_that_are_no_domains_are_refused(tmp_path, office):
    with pytest.raises(SettingError, match="clients_per_domain must be at most 12"):
        il.data.load("domains", path=str(office), clients_per_domain=13)
    picture(office / "stray.png")
    with pytest.raises(SettingError, match="is not DOMAIN/CLASS/FILE"):
        il.data.load("domains", path=str(office))
    for name in ("a/cat", "b/dog"):
        picture(tmp_path / "other" / name / "0.png")
    with pytest.raises(SettingError, match=r"no class of .* is in two domains"):
        il.data.load("domains", path=str(tmp_path / "other"))


# -- digits of several kinds -----------------------------------------------------------------------
DIGITS = {"train": 20, "test": 10}


def mnist(folder):
    for prefix, n in (("train", 20), ("t10k", 10)):
        write_idx(folder / f"{prefix}-images-idx3-ubyte", RNG.integers(0, 256, (n, 28, 28)))
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", np.arange(n) % 10)


def usps(folder):
    for name, n in (("usps.bz2", 20), ("usps.t.bz2", 10)):
        pixels = " ".join(f"{i + 1}:{-1 + i / 127.5:.4f}" for i in range(256))
        text = "".join(f"{1 + k % 10} {pixels}\n" for k in range(n))
        (folder / name).write_bytes(bz2.compress(text.encode()))


def svhn(folder):
    for name, n in DIGITS.items():
        labels = np.where(np.arange(n) % 10 == 0, 10, np.arange(n) % 10).astype(np.uint8)
        images = RNG.integers(0, 256, (32, 32, 3, n)).astype(np.uint8)
        savemat(folder / f"{name}_32x32.mat", {"X": images, "y": labels[:, None]})


def mnist_m(folder):
    for name, n in DIGITS.items():
        lines = []
        for k in range(n):
            picture(folder / f"mnist_m_{name}" / f"{k:08d}.png", side=32)
            lines.append(f"{k:08d}.png {k % 10}\n")
        (folder / f"mnist_m_{name}_labels.txt").write_text("".join(lines))


KINDS = {"mnist": mnist, "usps": usps, "svhn": svhn, "mnist-m": mnist_m}


@pytest.fixture
def kinds(tmp_path):
    for name, write in KINDS.items():
        (tmp_path / name).mkdir()
        write(tmp_path / name)
    return tmp_path


def test_every_kind_becomes_a_domain_of_colour_pictures_of_one_size(kinds):
    data = il.data.load("digit-domains", path=str(kinds), test=0, valid=0)
    assert data.ids == ("mnist", "mnist-m", "svhn", "usps") and data.shape == (3, 28, 28)
    assert data.class_counts().tolist() == [[3] * 10] * 4
    assert float(data.inputs.min()) >= 0 and float(data.inputs.max()) <= 1


def test_pixels_of_usps_are_read_from_minus_one_to_one(kinds):
    data = il.data.load("digit-domains", path=str(kinds), domains="usps", size=16, test=0, valid=0)
    x, _ = data.part(0, "train")
    ramp = np.arange(256).reshape(16, 16) / 255
    assert np.allclose(x[0, 0], ramp, atol=1e-6) and np.allclose(x[0, 2], ramp, atol=1e-6)


def test_some_kinds_or_fewer_samples_may_be_chosen(kinds):
    data = il.data.load("digit-domains", path=str(kinds), domains="svhn, mnist", samples=12)
    assert data.ids == ("mnist", "svhn") and data.samples == 24
    with pytest.raises(SettingError, match="domains must be folders"):
        il.data.load("digit-domains", path=str(kinds), domains="emnist")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("svhn/train_32x32.mat", b"no matrix"),
        ("usps/usps.bz2", bz2.compress(b"12 1:0\n")),
        ("usps/usps.t.bz2", b"not packed"),
        ("mnist-m/mnist_m_test_labels.txt", b"../outside.png 3\n"),
        ("mnist-m/mnist_m_train_labels.txt", b"00000000.png x\n"),
    ],
)
def test_a_damaged_file_is_named(kinds, file, content):
    (kinds / file).write_bytes(content)
    with pytest.raises(SettingError, match=file.rpartition("/")[2]):
        il.data.load("digit-domains", path=str(kinds))


@pytest.mark.parametrize("name", ["digit-domains", "domains", "cifar100", "tiny-imagenet"])
def test_without_a_folder_the_error_says_what_it_should_hold(name):
    with pytest.raises(SettingError, match=f"{name} cannot be fetched; give the folder"):
        il.data.load(name)
