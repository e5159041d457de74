"""Every method of the table keeps the promises that engine and users rely on.

A method that breaks one is caught.
"""

import json
from dataclasses import dataclass, replace

import pytest
import torch

from idiolect import FedAvg, SettingError, knob, testing
from idiolect.cli.main import main
from idiolect.methods import METHODS, make_method
from idiolect.testing import CHECKS, check_method

# the suite's model has 39 parameters; the line 4 of FFGG is a loop of steps; GPFL's valve takes
# torch's mapping over models
SMALL = {name: {"dim": 6} for name in ("lp-proj", "lp-proj-1", "lp-proj-2")}
SMALL |= {name: {"steps": 3} for name in ("ffgg", "local-ffgg", "gpfl")}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_the_table_passes_the_suite(name):
    check_method(make_method(name, **SMALL.get(name, {})))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("ffgg", "input"),
        ("local-ffgg", "*.bias"),
        ("fedalt", "input"),
        ("fedsim", "*.bias"),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in (
                *(("ffgg", "*.bias"), ("local-ffgg", "input")),
                *(("fedalt", "*.bias"), ("fedsim", "input")),
            )
        ),
    ],
)
def test_a_partial_method_passes_with_other_splits(name, part):
    """Their default, the output layer, is in the test above."""
    check_method(make_method(name, **SMALL.get(name, {}), part=part))


@pytest.mark.parametrize("weighting", ["equal", "unbiased"])
def test_the_dichotomy_passes_with_other_weightings(weighting):
    check_method(make_method("dichotomy", weighting=weighting))


def test_the_suite_tells_every_check_it_makes():
    lines = testing.__doc__.partition("what does not hold:")[2].splitlines()
    told = [line.split()[0] for line in lines if line.startswith("    ")]
    assert told == [check.__name__ for check in CHECKS]


def caught(method, promise, **settings):
    """The suite refuses the method, for this reason."""
    with pytest.raises(AssertionError, match=promise):
        check_method(method, **settings)


def test_a_method_that_names_a_rate_it_does_not_have_is_caught():
    @dataclass(frozen=True)
    class Rateless(FedAvg):
        traits = replace(FedAvg.traits, rates=("step_size",))

    caught(Rateless(), "no field 'step_size'")


def test_a_method_that_names_a_part_it_does_not_send_is_caught():
    @dataclass(frozen=True)
    class Partless(FedAvg):
        traits = replace(FedAvg.traits, uncompressed=("votes",))

    caught(Partless(), "'votes' is not a part")


def test_a_method_that_sends_more_than_it_declares_is_caught():
    @dataclass(frozen=True)
    class Chatty(FedAvg):
        def update(self, task, down, private, here):
            up, private = super().update(task, down, private, here)
            return {**up, "extra": torch.zeros(here.rows, 3, dtype=task.dtype)}, private

    caught(Chatty(), "declares")


@pytest.mark.parametrize("argument", ["server", "messages"])
def test_a_method_that_changes_an_argument_in_place_is_caught(argument):
    @dataclass(frozen=True)
    class InPlace(FedAvg):
        def aggregate(self, task, server, up, rule):
            (server if argument == "server" else up)["w"].mul_(2)
            return {"w": rule(up)["w"].clone()}

    caught(InPlace(), f"{argument} .*in place|{argument} in place")


@pytest.mark.parametrize(
    ("weigh", "promise"),
    [
        (lambda samples: samples.add_(1), "in place"),
        (lambda samples: samples[:1], "weights are"),
        (lambda samples: 1 / (samples - samples), "not finite"),
        (lambda samples: torch.rand(len(samples)), "from call to call"),
    ],
    ids=["in place", "shape", "infinite", "random"],
)
def test_weights_that_are_no_function_of_the_sample_numbers_are_caught(weigh, promise):
    @dataclass(frozen=True)
    class Weighing(FedAvg):
        def weigh(self, samples):
            return weigh(samples)

        def aggregate(self, task, server, up, rule):
            return rule(up, torch.ones_like(rule.samples))

    caught(Weighing(), promise)


def test_a_method_that_is_not_linear_and_says_so_falsely_is_caught():
    @dataclass(frozen=True)
    class Middle(FedAvg):
        def aggregate(self, task, server, up, rule):
            return {"w": up["w"].median(0).values}

    caught(Middle(), "calls itself linear")


def test_a_method_that_takes_one_message_for_all_and_says_otherwise_is_caught():
    @dataclass(frozen=True)
    class First(FedAvg):
        def update(self, task, down, private, here):
            up, private = super().update(task, down, private, here)
            return {"w": up["w"] + down["w"].mean()}, private

    caught(First(), "message down for each client")


def test_a_method_that_is_not_linear_may_say_so():
    @dataclass(frozen=True)
    class Signs(FedAvg):
        """Each client moves each coordinate by the same amount."""

        traits = replace(FedAvg.traits, linear=False)

        def aggregate(self, task, server, up, rule):
            w = server["w"]
            return {"w": w + 0.1 * rule({"w": (up["w"] - w).sign()})["w"]}

    check_method(Signs())


def test_a_method_that_draws_from_a_global_generator_is_caught():
    @dataclass(frozen=True)
    class Noisy(FedAvg):
        def update(self, task, down, private, here):
            up, private = super().update(task, down, private, here)
            return {"w": up["w"] + 0.01 * torch.randn_like(up["w"])}, private

    caught(Noisy(), "same settings give the same bits")


def test_a_method_that_depends_on_its_cohort_is_caught():
    @dataclass(frozen=True)
    class Centred(FedAvg):
        def update(self, task, down, private, here):
            up, private = super().update(task, down, private, here)
            return {"w": up["w"] - 0.1 * up["w"].mean(0)}, private

    caught(Centred(), "one at a time")


def test_a_method_that_looks_at_the_data_of_other_clients_is_caught():
    @dataclass(frozen=True)
    class Curious(FedAvg):
        def update(self, task, down, private, here):
            up, private = super().update(task, down, private, here)
            everybodys = here._batches.inputs.mean()  # of all clients of the host
            return {"w": up["w"] * (1 + 0.01 * everybodys)}, private

    caught(Curious(), "on one host or on three")


def test_a_method_that_is_never_trained_is_caught():
    @dataclass(frozen=True)
    class Asleep(FedAvg):
        def aggregate(self, task, server, up, rule):
            return server

    caught(Asleep(), "trained")


def test_every_method_of_the_table_says_who_trains(capsys):
    assert main(["list", "methods", "--json"]) in (None, 0)
    trains = {row["name"]: row["trains"] for row in json.loads(capsys.readouterr().out)}
    assert set(trains.values()) == {"sampled", "everyone"} and trains["ditto"] == "everyone"


def test_a_trait_outside_of_traits_is_refused():
    with pytest.raises(SettingError, match="hears_all: a trait must be declared in `traits`"):

        @dataclass(frozen=True)
        class Old(FedAvg):
            hears_all = True


def test_a_hyper_parameter_may_have_the_name_of_a_trait():
    @dataclass(frozen=True)
    class Named(FedAvg):
        linear: float = knob(0.1, "weight of the linear term", low=0)

    assert Named(linear=0.5).linear == 0.5 and Named().traits.linear
