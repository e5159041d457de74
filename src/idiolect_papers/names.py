"""The names of all experiments, by paper: what `idiolect reproduce --help` lists."""

from __future__ import annotations

from .reproduce import REPRODUCED, THEORY, Experiment


def _trained(function: str, text: str) -> Experiment:
    """A published table, or a figure of trained models: at two scales."""
    return Experiment(function, text, REPRODUCED, scales=True)


def _proved(function: str, text: str) -> Experiment:
    """What a paper proves, or shows on a constructed problem."""
    return Experiment(function, text, THEORY)


GROUPS: dict[str, dict[str, Experiment]] = {
    "pages of our own": {
        "budget": Experiment(
            "lp_proj.budget:write", "accuracy at a byte budget (lp-proj, Table 5)"
        ),
        "defaults": Experiment(
            "own.defaults_page:write", "the rule that chooses every method's defaults"
        ),
        "golden": Experiment(
            "own.golden:write", "every method at its defaults on four federations"
        ),
        "golden-missing": Experiment(
            "own.golden:write_missing", "the same, for methods not stored yet"
        ),
        "projections": Experiment("own.projections:write", "lp-proj with every kind of projection"),
        "rules": Experiment("own.rules:write", "aggregation rules against attacks"),
        "robustness": Experiment(
            "lp_proj.robustness_page:write", "methods under attack (lp-proj, Tables 6 to 9)"
        ),
        "robustness-missing": Experiment(
            "lp_proj.robustness_page:write_missing", "the same, for what is not stored yet"
        ),
        "splits": Experiment(
            "own.splits:write", "the split that is recommended, and FFGG with each split"
        ),
        "advise-accuracy": _proved("own.advise_page:write", "how often `idiolect advise` is right"),
        "where-it-helps": Experiment(
            "own.where_it_helps_page:write",
            "where federation helps: real clients, few samples",
            scales=True,
        ),
        "large": Experiment("own.large_models:write", "time and memory of large models"),
        "async-stragglers": _proved(
            "own.stragglers:write", "time to a target when some clients are slow"
        ),
    },
    "lp-proj (Han, Li, Lin and Zhang 2024)": {
        "lp-proj-table1": _trained(
            "lp_proj.budget:write_table1",
            "accuracy at a budget, words to a target; two data sets",
        ),
        "lp-proj-table2": _trained(
            "lp_proj.table2:write", "in form: ResNet-34 with a P of 50 blocks"
        ),
        "lp-proj-table4": _trained(
            "lp_proj.personal_pages:write_table4", "ten methods on six data sets"
        ),
        "lp-proj-table5": _trained(
            "lp_proj.budget:write_table5",
            "accuracy at a budget, words to a target; all data sets",
        ),
        "lp-proj-table6": _trained(
            "lp_proj.robustness_tables:write_table6", "accuracy under same-value attacks"
        ),
        "lp-proj-table7": _trained(
            "lp_proj.robustness_tables:write_table7", "accuracy under sign-flip attacks"
        ),
        "lp-proj-table8": _trained(
            "lp_proj.robustness_tables:write_table8", "accuracy under Gaussian attacks"
        ),
        "lp-proj-table9": _trained(
            "lp_proj.robustness_tables:write_table9", "accuracy under data-poison attacks"
        ),
        "lp-proj-table10": _trained(
            "lp_proj.personal_pages:write_table10", "Table 4 with volumes by a power law"
        ),
        "lp-proj-table11": _trained(
            "lp_proj.budget:write_table11", "Table 5 with volumes by a power law"
        ),
        "lp-proj-table12": _trained(
            "lp_proj.robustness_tables:write_table12", "Table 6 with volumes by a power law"
        ),
        "lp-proj-table13": _trained(
            "lp_proj.robustness_tables:write_table13", "Table 7 with volumes by a power law"
        ),
        "lp-proj-table14": _trained(
            "lp_proj.robustness_tables:write_table14", "Table 8 with volumes by a power law"
        ),
        "lp-proj-table15": _trained(
            "lp_proj.robustness_tables:write_table15",
            "Table 9 with volumes by a power law",
        ),
        "lp-proj-table16": _trained("lp_proj.subspace:write_table16", "with P orthogonal or not"),
        "lp-proj-table17": _trained("lp_proj.subspace:write_table17", "with d_sub from 40 to 200"),
        "lp-proj-figure1": _proved("lp_proj.figure1:write", "test loss against λ under attack"),
        "lp-proj-figure2": _trained(
            "lp_proj.personal_pages:write_figure2", "accuracy against its variance, two data sets"
        ),
        "lp-proj-figure3": _trained(
            "lp_proj.personal_pages:write_figure3", "curves of training, two data sets"
        ),
        "lp-proj-figure4": _trained(
            "lp_proj.robustness_tables:write_figure4",
            "accuracy of benign clients under four attacks",
        ),
        "lp-proj-figure5": _trained(
            "lp_proj.personal_pages:write_figure5", "curves of training, all data sets"
        ),
        "lp-proj-figure6": _trained(
            "lp_proj.personal_pages:write_figure6", "accuracy against its variance, all data sets"
        ),
        "lp-proj-figure7": _trained(
            "lp_proj.personal_pages:write_figure7", "test loss against its variance"
        ),
        "lp-proj-figure8": _trained(
            "lp_proj.personal_pages:write_figure8", "curves of training, volumes by a power law"
        ),
        "lp-proj-figure9": _trained(
            "lp_proj.personal_pages:write_figure9", "collaboration fairness"
        ),
        "lp-proj-theorem9": _proved(
            "lp_proj.theorem9:write", "constant steps, averaged iterate: rates 1/T and 1/T²"
        ),
        "lp-proj-theorem13": _proved(
            "lp_proj.smooth:write_theorem13", "smooth, constant steps: rates 1/√T and 1/T^(2/3)"
        ),
        "lp-proj-theorem14": _proved(
            "lp_proj.theorem14:write", "schedules of η, ν, D: rates 1/T and 1/(βT)²; d_sub"
        ),
        "lp-proj-theorem15": _proved(
            "lp_proj.smooth:write_theorem15", "smooth, schedules of η, ν, D: ln T/√T and T^(-2/3)"
        ),
        "lp-proj-theorem32": _proved("lp_proj.theorem32:write", "variance of losses over clients"),
        "lp-proj-remark17": _proved("lp_proj.remark17:write", "the role of d_sub under attack"),
    },
    "FFGG (partially personalised federated learning)": {
        "ffgg-table2": _trained(
            "ffgg.table2:write", "FFGG's splits against FedAvg, FedAlt, FedSim"
        ),
        "ffgg-figure1a": _proved(
            "ffgg.figure1:write_a", "FFGG with few steps of conjugate gradients"
        ),
        "ffgg-figure1b": _proved(
            "ffgg.figure1:write_b", "FFGG against SCAFFOLD, Local GD and L2GD (b to d)"
        ),
        "ffgg-figure2": _proved("ffgg.figure2:write", "FFGG as heterogeneity grows"),
        "ffgg-figure3": _proved("ffgg.figure3:write", "asynchronous against synchronous FFGG"),
        "ffgg-figure4": _proved("ffgg.figure4:write", "FFGG with Byzantine clients"),
    },
    "FedDeper": {
        "feddeper-table1": _trained("feddeper.table1:write", "accuracy beside four methods"),
        "feddeper-figure1": _proved(
            "feddeper.figure1:write", "heterogeneity against local steps (Remark 1)"
        ),
        "feddeper-figure3": _trained("feddeper.figure3:write", "the effect of ϱ, λ, τ and K"),
        "feddeper-figure4": _trained(
            "feddeper.convergence:write_figure4", "loss by rounds, MNIST, n = 10"
        ),
        "feddeper-figure5": _trained(
            "feddeper.convergence:write_figure5", "loss by rounds, MNIST, n = 100"
        ),
        "feddeper-figure6": _trained(
            "feddeper.convergence:write_figure6", "loss by rounds, CIFAR-10, n = 100"
        ),
        "feddeper-figure7": _trained("feddeper.figure7:write", "global and personal models"),
        "feddeper-theorem2": _proved(
            "feddeper.theorem2:write", "personal models around the global one"
        ),
    },
    "A theorem of the alternative (Chen, Zheng, Long and Su 2021)": {
        "chen-alternative": _proved(
            "chen.alternative:write", "FedAvg or Local? AER and IER against R"
        ),
    },
}
EXPERIMENTS = {name: e for group in GROUPS.values() for name, e in group.items()}
