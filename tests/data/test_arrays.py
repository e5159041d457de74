"""Arrays that users bring: any library, trees of them, pictures, sequences; and what is said."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
import torch

from idiolect import Federation
from idiolect.core.knobs import SettingError

N = 12
X = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
Y = np.arange(N) % 3
WHO = np.repeat(["a", "b", "c"], 4)
WHOLE = {"valid": 0, "test": 0}  # all samples train, in the order given


def shapes(tree):
    if isinstance(tree, dict):
        return {key: shapes(part) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(shapes(part) for part in tree)
    return (str(tree.dtype).removeprefix("torch."), *tree.shape)


# -- libraries --


@pytest.mark.parametrize(
    "inputs",
    [
        X.tolist(),
        list(X),
        list(torch.from_numpy(X)),
        X.astype(object),
        X.astype(">f8"),
        X.astype(np.longdouble),
        torch.from_numpy(X),
        torch.from_numpy(X).to_sparse(),
        pd.DataFrame(X),
        pd.DataFrame(X).astype("Float32"),
        pl.DataFrame(X),
        pa.table({name: X[:, i] for i, name in enumerate("abc")}),
        *(
            scipy.sparse.csr_matrix(X).asformat(f)
            for f in ["csr", "csc", "coo", "dok", "lil", "bsr", "dia"]
        ),
        scipy.sparse.csr_array(X),
    ],
    ids=lambda v: f"{type(v).__module__.partition('.')[0]}-{type(v).__name__}",
)
def test_the_same_numbers_of_any_library_make_the_same_federation(inputs):
    wanted = Federation.from_arrays(X, Y, WHO)
    assert Federation.from_arrays(inputs, Y, WHO).fingerprint() == wanted.fingerprint()


@pytest.mark.parametrize("make", [list, pd.Series, pl.Series, pa.array, iter])
def test_targets_ids_and_splits_come_as_columns_of_any_library(make):
    split = ["train", "valid", "test"] * 4
    wanted = Federation.from_arrays(X, Y, WHO, split=split)
    targets = Y.tolist() if make is iter else make(Y.tolist())
    parts = split if make is iter else make(split)
    made = Federation.from_arrays(X, targets, make(WHO.tolist()), split=parts)
    assert made.fingerprint() == wanted.fingerprint()


def test_a_sparse_matrix_is_made_dense_with_a_word_and_up_to_a_limit(capsys):
    Federation.from_arrays(scipy.sparse.csr_matrix(X), Y, WHO)
    assert "the sparse matrix is made dense, 144 bytes" in capsys.readouterr().err
    Federation.from_arrays(torch.from_numpy(X).to_sparse(), Y, WHO)
    assert "the sparse matrix is made dense, 144 bytes" in capsys.readouterr().err
    wide = scipy.sparse.csr_matrix((N, 10**9))
    with pytest.raises(SettingError, match=r"takes 44.7 GiB; at most 4 GiB .* \(memory=45 allows"):
        Federation.from_arrays(wide, Y, WHO)
    with pytest.raises(SettingError, match="at most 1e-09 GiB are accepted"):
        Federation.from_arrays(scipy.sparse.csr_matrix(X), Y, WHO, memory=1e-9)


# -- trees --


def test_inputs_may_be_a_dict_of_arrays():
    given = {"image": torch.zeros(N, 1, 4, 4), "table": pd.DataFrame(X), "mask": X > 0}
    f = Federation.from_arrays(given, Y, WHO)
    assert shapes(f.inputs) == {
        "image": ("float32", N, 1, 4, 4),
        "table": ("float32", N, 3),
        "mask": ("bool", N, 3),
    }
    assert torch.equal(f.inputs["mask"], f.inputs["table"] > 0)  # sorted alike


@pytest.mark.parametrize("given", [(X, 2 * X), [X, 2 * X], (torch.from_numpy(X), 2 * X)])
def test_inputs_may_be_a_tuple_of_arrays(given):
    f = Federation.from_arrays(given, Y, WHO)
    assert isinstance(f.inputs, tuple) and torch.equal(2 * f.inputs[0], f.inputs[1])


def test_targets_may_be_a_dict_of_arrays():
    f = Federation.from_arrays(X, {"ill": Y, "dose": X[:, 0]}, WHO)
    assert shapes(f.targets) == {"ill": ("int64", N), "dose": ("float32", N)} and f.classes == 0


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"a": X, "b": X[:5]}, r"inputs\['b'\]: 5 samples, but 12 client ids"),
        ({0: X}, "must have keys of text, got 0"),
        ({}, "an empty dict"),
        ({"a": [["x"]] * N}, r"inputs\['a'\] must be numbers, got text"),
    ],
)
def test_bad_trees_are_refused_by_the_name_of_the_part(inputs, message):
    with pytest.raises(SettingError, match=message):
        Federation.from_arrays(inputs, Y, WHO)


# -- sequences --

SEQUENCES = [np.full((k % 4 + 1, 2), k, dtype=np.float32) for k in range(N)]
LENGTHS = [len(s) for s in SEQUENCES]


@pytest.mark.parametrize("given", [SEQUENCES, list(map(torch.from_numpy, SEQUENCES))])
def test_sequences_of_different_lengths_are_padded_and_come_with_a_mask(given, capsys):
    padded, mask = Federation.from_arrays(given, Y, WHO, **WHOLE).inputs
    assert shapes(padded) == ("float32", N, 4, 2) and shapes(mask) == ("bool", N, 4)
    assert mask.sum(1).tolist() == LENGTHS
    assert [int(row[m].sum()) for row, m in zip(padded, mask, strict=True)] == [
        int(s.sum()) for s in SEQUENCES
    ]
    assert float(padded[~mask].abs().sum()) == 0
    assert "1 to 4 entries are padded to the longest" in capsys.readouterr().err


def test_the_lengths_may_be_had_instead_of_the_mask_and_the_padding_chosen():
    tokens = [list(range(1, n + 1)) for n in LENGTHS]
    f = Federation.from_arrays(tokens, Y, WHO, ragged="lengths", padding=9, **WHOLE)
    assert f.inputs[0][0].tolist() == [1, 9, 9, 9] and f.inputs[1].tolist() == LENGTHS


def test_a_dict_of_sequences_gets_a_mask_unless_it_has_one():
    tokens = [[1] * n for n in LENGTHS]
    f = Federation.from_arrays({"tokens": tokens, "age": X[:, :1]}, Y, WHO)
    assert list(f.inputs) == ["tokens", "age", "mask"]
    f = Federation.from_arrays({"input_ids": tokens, "attention_mask": tokens}, Y, WHO)
    assert list(f.inputs) == ["input_ids", "attention_mask"]
    f = Federation.from_arrays({"a": tokens, "b": tokens[::-1]}, Y, WHO)
    assert list(f.inputs) == ["a", "b", "a_mask", "b_mask"]


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ([np.ones((2, k % 3 + 1)) for k in range(N)], {}, r"sample 1 has shape \(2, 2\), sample 0"),
        ([[]] + [[1]] * (N - 1), {}, "sample 0 is empty"),
        (SEQUENCES, {"ragged": "pad"}, "ragged must be one of 'mask', 'lengths', got 'pad'"),
    ],
)
def test_bad_sequences_are_refused(inputs, options, message):
    with pytest.raises(SettingError, match=message):
        Federation.from_arrays(inputs, Y, WHO, **options)


# -- pictures --

BYTES = np.random.default_rng(0).integers(0, 256, (N, 8, 9, 3), dtype=np.uint8)


def test_bytes_of_pictures_are_scaled_with_a_word(capsys):
    f = Federation.from_arrays(BYTES.transpose(0, 3, 1, 2), Y, WHO, **WHOLE)
    assert torch.equal(f.inputs, torch.from_numpy(BYTES).permute(0, 3, 1, 2).float() / 255)
    said = capsys.readouterr().err
    assert "bytes are scaled to [0, 1]; scale_images=False keeps bytes" in said
    assert "channels" not in said
    kept = Federation.from_arrays(BYTES[..., 0], Y, WHO, scale_images=False, **WHOLE)
    assert shapes(kept.inputs) == ("uint8", N, 8, 9) and not capsys.readouterr().err


def test_bytes_that_are_no_pictures_stay():
    assert shapes(Federation.from_arrays(BYTES[:, :, 0, 0], Y, WHO).inputs)[0] == "uint8"


@pytest.mark.parametrize("pictures", [BYTES, BYTES.astype(np.float32), torch.from_numpy(BYTES)])
def test_channels_that_come_last_are_moved_to_the_front_with_a_word(pictures, capsys):
    f = Federation.from_arrays(pictures, Y, WHO, **WHOLE)
    assert f.inputs.shape == (N, 3, 8, 9) and f.inputs.is_contiguous()
    assert "channels='first' leaves them" in capsys.readouterr().err
    left = Federation.from_arrays(pictures, Y, WHO, channels="first", **WHOLE)
    assert left.inputs.shape == BYTES.shape
    same = Federation.from_arrays(pictures, Y, WHO, channels="last", **WHOLE)
    assert torch.equal(same.inputs, f.inputs)


def test_pictures_with_three_lines_are_not_turned_round():
    assert Federation.from_arrays(np.zeros((N, 3, 8, 3)), Y, WHO).inputs.shape == (N, 3, 8, 3)


# -- what is refused --


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"inputs": torch.nn.Linear},
            "inputs must be an array, samples first, got the class Linear",
        ),
        ({"inputs": torch.nn.Linear(1, 1)}, "inputs must be an array, samples first, got a Linear"),
        ({"inputs": None}, "inputs must be an array, samples first, got a NoneType"),
        ({"inputs": 3.0}, "inputs must be an array, samples first, got one number"),
        ({"inputs": X.astype(complex)}, "must be numbers, got complex128 values"),
        (
            {"inputs": torch.zeros(N, 2, dtype=torch.cfloat)},
            "got torch.complex64 values",
        ),
        ({"inputs": X[:3]}, "inputs, targets and clients differ in length: 3, 12, 12"),
        (
            {"inputs": pd.DataFrame({"age": Y, "sex": ["f"] * N})},
            "column 'sex' holds .*, not numbers; encode or drop it, or use Federation.from_frame",
        ),
        ({"inputs": pd.DataFrame({"a": pd.array([1, None] * 6)})}, "sample 1 holds NaN"),
        ({"inputs": pl.DataFrame({"a": [1, None] * 6})}, "sample 1 holds NaN"),
        ({"inputs": pa.table({"a": [1, None] * 6})}, "sample 1 holds NaN"),
        ({"channels": "middle"}, "channels must be one of 'auto', 'first', 'last', got 'middle'"),
        ({"channels": "last"}, "channels: 'last' needs pictures .* have 2 dimensions"),
        ({"split": [["train"]] * N}, r"split must be one entry per sample, got shape \(12, 1\)"),
        ({"split": ["train", None, "test"] * 4}, "split: 'None' is unknown"),
    ],
)
def test_other_arrays_are_refused_by_name(change, message):
    with pytest.raises(SettingError, match=message):
        Federation.from_arrays(**{"inputs": X, "targets": Y, "clients": WHO, **change})


def test_plain_arrays_are_read_without_a_word(capsys):
    Federation.from_arrays(X, Y, WHO)
    Federation.from_arrays(X, X[:, 0], WHO)
    Federation.from_arrays(X, Y[:, None].repeat(4, 1), WHO)
    assert capsys.readouterr() == ("", "")
