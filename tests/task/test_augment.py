"""Augmentation: pictures of a mini-batch, changed anew each time, whoever else is in the cohort."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from idiolect import SettingError
from idiolect.core import streams
from idiolect.task.augment import AUGMENTATIONS, Augmentation, Crop, Cutout, Flip, Jitter
from idiolect.task.batches import Batches

KEYS = streams.keys(0, "test", 0, streams.name_keys(["a", "b", "c"]))
NUMBERED = torch.arange(1.0, 1 + 3 * 4 * 2 * 6 * 5).view(3, 4, 2, 6, 5)  # [K, B, C, H, W]
EVERY = "crop(padding=2) + flip + cutout(size=3) + jitter"


def apply(text, x=NUMBERED, keys=KEYS, step=0):
    return AUGMENTATIONS.parse(text).apply(x, keys, step)


# -- what each change does -------------------------------------------------------------------------
def test_a_crop_is_a_window_of_the_padded_picture():
    changed = apply("crop(padding=2, fill=-1)").flatten(0, 1)
    padded = nn.functional.pad(NUMBERED.flatten(0, 1), (2, 2, 2, 2), value=-1)
    places = set()
    for one, whole in zip(changed, padded, strict=True):
        windows = {
            (top, left): whole[:, top : top + 6, left : left + 5]
            for top, left in itertools.product(range(5), range(5))
        }
        (place,) = [p for p, window in windows.items() if torch.equal(window, one)]
        places.add(place)
    assert len(places) > 6  # of 12 pictures


def test_every_place_of_a_crop_is_as_likely():
    x = torch.zeros(1, 9000, 1, 3, 3)
    x[..., 1, 1] = 1
    counts = apply("crop(padding=1)", x, KEYS[:1]).sum((0, 1, 2))
    assert (counts - 1000).abs().max() < 150


def test_a_flip_mirrors_its_share_of_the_pictures():
    x = torch.arange(6.0).view(1, 1, 1, 2, 3).expand(1, 4000, 1, 2, 3)
    changed = apply("flip(share=0.25)", x, KEYS[:1])[0]
    mirrored = (changed == x[0].flip(-1)).all((1, 2, 3))
    assert bool((mirrored | (changed == x[0]).all((1, 2, 3))).all())
    assert abs(float(mirrored.double().mean()) - 0.25) < 0.03
    assert torch.equal(apply("flip(share=1, axis='vertical')"), NUMBERED.flip(-2))


def test_a_cutout_blanks_one_square():
    blank = apply("cutout(size=2)", torch.ones(1, 500, 2, 6, 6), KEYS[:1])[0] == 0
    assert torch.equal(blank[:, 0], blank[:, 1])
    heights, widths = blank[:, 0].any(2).sum(1), blank[:, 0].any(1).sum(1)
    assert set(heights.tolist()) == set(widths.tolist()) == {1, 2}  # 1: it lies over the edge
    assert torch.equal(blank[:, 0].sum((1, 2)), heights * widths)


def test_jitter_keeps_the_picture_but_for_brightness_and_contrast():
    x = torch.rand(3, 4, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    changed = apply("jitter(brightness=0.5, contrast=0)", x)
    factors = (changed / x).flatten(2)
    assert torch.allclose(factors, factors[..., :1].expand_as(factors))
    assert 0.5 <= float(factors.min()) < 0.8 < 1.2 < float(factors.max()) <= 1.5
    plain = apply("jitter(brightness=0, contrast=0.5)", x)
    assert torch.allclose(plain.mean((2, 3, 4)), x.mean((2, 3, 4)), atol=1e-6)


# -- streams ---------------------------------------------------------------------------------------
def test_a_client_draws_the_same_in_every_cohort_and_however_far_its_row_is_filled_up():
    whole = apply(EVERY)
    alone = apply(EVERY, NUMBERED[1:2, :3], KEYS[1:2])
    assert torch.equal(whole[1:2, :3], alone)


def test_every_step_and_every_client_draws_anew():
    x = NUMBERED[:1].expand(3, 4, 2, 6, 5)
    crops = [apply("crop(padding=2)", x, step=step)[k] for step in (0, 1) for k in range(3)]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(crops, 2))


@pytest.mark.parametrize("batching", ["replace", "epochs", "full"])
def test_batches_are_augmented_and_the_data_stay_as_they_are(batching):
    inputs = NUMBERED.flatten(0, 1).clone()
    batches = Batches(
        inputs,
        torch.arange(12),
        np.array([0, 4, 8]),
        np.array([4, 4, 4]),
        keys=KEYS,
        noise_keys=KEYS,
        batch=4,
        batching=batching,
        dtype=torch.float32,
        augment=Augmentation((Crop(2),)),
        augment_keys=KEYS,
    )
    first, second = batches.draw(), batches.draw()
    assert not torch.equal(first.inputs, inputs[first.targets])
    assert not torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.inputs, Augmentation((Crop(2),)).apply(inputs[first.targets], KEYS, 0))
    assert torch.equal(inputs, NUMBERED.flatten(0, 1))


# -- runs ------------------------------------------------------------------------------------------
def run(augment="crop(padding=1) + flip", **settings):
    data = il.data.load("digits", clients=6, partition="iid")
    given = {"rounds": 3, "batch": 8, "progress": False, "augment": augment, **settings}
    return il.run(il.FedAvg(steps=2), lambda: il.models.make("mlp", (1, 8, 8), 10), data, **given)


def losses(result):
    return [row["loss"] for row in result.rounds_table()]


def test_a_run_is_the_same_on_one_host_and_on_three_and_in_chunks():
    assert losses(run()) == losses(run(hosts=3)) == losses(run(chunk=2))


def test_a_run_without_changes_is_the_run_without_the_setting():
    assert losses(run("none")) == losses(run(""))
    assert losses(run("none")) != losses(run())


def test_a_resumed_run_draws_what_it_would_have_drawn(tmp_path):
    run(directory=tmp_path / "run", rounds=2)
    assert losses(run(directory=tmp_path / "run", rounds=3, resume=True)) == losses(run())


def test_evaluation_sees_the_samples_as_they_are():
    blank = "cutout(size=100)"
    trained = run(blank, finetune_steps=0)
    module, data = trained.personal(2), il.data.load("digits", clients=6, partition="iid")
    x, y = data.part(2, "test")
    with torch.no_grad():
        loss = float(nn.functional.cross_entropy(module(x), y))
    row = next(r for r in trained.clients_table() if r["client"] == 2)
    assert row["test_loss"] == pytest.approx(loss, abs=1e-5)


@pytest.mark.slow
def test_worker_processes_augment_as_this_one_does():
    assert losses(run(engine="processes", hosts=2)) == pytest.approx(losses(run()), abs=1e-6)


# -- texts and refusals ----------------------------------------------------------------------------
def test_changes_are_written_as_they_are_read():
    text = "crop(padding=2) + flip(share=0.25) + cutout + jitter(contrast=0.5)"
    parsed = AUGMENTATIONS.parse(text)
    assert parsed.changes == (Crop(2), Flip(0.25), Cutout(), Jitter(contrast=0.5))
    assert AUGMENTATIONS.text(parsed) == text
    assert il.Settings(augment=Flip()).as_dict()["augment"] == "flip"


def test_rows_of_numbers_are_refused():
    with pytest.raises(SettingError, match=r"augment must be 'none' for these data, got 'flip'"):
        il.run("fedavg", nn.Linear(60, 10), il.data.load("synthetic", clients=2), augment="flip")


def test_an_unknown_change_suggests_the_nearest():
    with pytest.raises(SettingError, match="did you mean 'crop'"):
        il.Settings(augment="crob(padding=4)")
