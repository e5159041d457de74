"""Six methods as a user who has read docs/add-a-method.md writes them: public names only."""

from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.cluster.hierarchy import cut_tree, linkage
from torch import nn
from torch.nn.functional import normalize, one_hot

import idiolect as il
from idiolect.solvers import sgd
from idiolect.task import Term


def head(task):
    """The model's last layer."""
    return [m for m in task.module.modules() if isinstance(m, nn.Linear)][-1]


@dataclass(frozen=True)
class FedAmp(il.Method):
    """Huang et al. 2021: each client is pulled to a mixture in which like models weigh more."""

    traits = il.Traits(
        linear=False,
        uncombined="the server keeps each client's model",
        discloses="it is sent itself",
    )

    lr: float = il.knob(0.2, "step size", above=0)
    steps: int = il.knob(4, "SGD steps per round", low=0)
    lam: float = il.knob(0.7, "pull of each model to its mixture", low=0)
    share: float = il.knob(0.8, "what all others weigh while models are equal", low=0, high=1)
    sigma: float = il.knob(0.4, "weights fall with the squared distance over this", above=0)

    def server(self, task):
        return {}

    def server_rows(self, task, clients):
        w = task.x0.repeat(len(clients), 1)
        return {"w": w, "heard": w.new_zeros(len(clients), 1)}

    def address(self, task, server, clients):
        heard = server["heard"][:, 0].nonzero().flatten()
        own, models = server["w"][clients], server["w"][heard]
        others = (clients.unsqueeze(1) != heard).to(own)
        count = others.sum(1, keepdim=True).clamp(min=1)
        gaps = torch.cdist(own, models, compute_mode="donot_use_mm_for_euclid_dist")
        xi = self.share / count * torch.exp(-gaps.square() / self.sigma) * others
        return {"u": (1 - xi.sum(1, keepdim=True)) * own + xi @ models}

    def aggregate(self, task, server, up, rule):
        return {"w": up["w"], "heard": torch.ones_like(up["w"][:, :1])}

    def private(self, task, clients):
        return {"w": task.x0.repeat(len(clients), 1)}

    def update(self, task, down, private, here):
        def pull(w):
            return self.lam * (w - down["u"])

        w = sgd(task, private["w"], here, self.lr, self.steps, pull=pull)
        return {"w": w}, {"w": w}

    def personal(self, task, down, private, here):
        return private["w"]


@dataclass(frozen=True)
class FedProto(il.Method):
    """Tan et al. 2022: clients share the mean features of each class, and no model."""

    traits = il.Traits(needs_round="prototypes are means over the clients of a round")

    lr: float = il.knob(0.3, "step size", above=0)
    steps: int = il.knob(4, "SGD steps per round", low=0)
    lam: float = il.knob(0.8, "pull of features to the prototypes", low=0)

    def message(self, task):
        return {"sums": head(task).weight.numel(), "shares": head(task).out_features}

    def server(self, task):
        return {n: task.x0.new_zeros(m) for n, m in self.message(task).items()}

    def aggregate(self, task, server, up, rule):
        mean = rule(up)
        seen = mean["shares"].unsqueeze(1) > 0
        sums, old = (s["sums"].view(len(seen), -1) for s in (mean, server))
        share = torch.where(seen, mean["shares"].unsqueeze(1), 1)
        return {  # the server's sums are of classes of share 1: prototypes
            "sums": torch.where(seen, sums / share, old).flatten(),
            "shares": server["shares"].maximum(seen[:, 0].to(old)),
        }

    def private(self, task, clients):
        return {"w": task.x0.repeat(len(clients), 1)}

    def update(self, task, down, private, here):
        rows = {n: t.expand(here.rows, -1) for n, t in down.items()}

        def tie(batch):
            return Term(self.tie, "head", rows)

        w = sgd(task, private["w"], here, self.lr, self.steps, extra=tie)

        def sums(k, batch):
            features = task.features(w[k], batch.inputs)
            sums, shares = by_class(features, batch.targets, batch.weights, head(task).out_features)
            return {"sums": sums.flatten(1), "shares": shares}

        return here.of_training_samples(sums), {"w": w}

    def tie(self, run, rows):
        known = rows["shares"]
        sums, shares = by_class(run.features, run.targets, run.weights, known.shape[1])
        there = shares > 0
        means = sums / torch.where(there, shares, 1).unsqueeze(-1)
        gap = (means - rows["sums"].view_as(means)).square().mean(-1)
        return self.lam * (gap * known * there).sum(1)

    def personal(self, task, down, private, here):
        return private["w"]


def by_class(features, targets, weights, classes):
    """Sums of features by class and the share of each class: [K, C, F], [K, C]."""
    share = one_hot(targets, classes) * weights.unsqueeze(-1)
    return share.transpose(1, 2) @ features, share.sum(1)


@dataclass(frozen=True)
class PFedHn(il.Method):
    """Shamsian et al. 2021: a network at the server makes each client's model from an embedding."""

    traits = il.Traits(
        rates=("lr", "hyper_lr"),
        changes=("change",),
        linear=False,
        shared_name="phi",
        uncombined="each change goes through the network at its client's embedding",
    )

    lr: float = il.knob(0.3, "step size at the clients", above=0)
    steps: int = il.knob(4, "SGD steps per round", low=0)
    hyper_lr: float = il.knob(0.4, "step size of the network and of the embeddings", above=0)
    embedding: int = il.knob(3, "numbers of an embedding", low=1)
    hidden: int = il.knob(5, "hidden units of the network", low=1)

    def message(self, task):
        return {"change": task.d}

    def sizes(self, task):
        e, h = self.embedding, self.hidden
        return [h * e, h, h * h, h, task.d * h, task.d]

    def server(self, task):
        key = il.streams.keys(task.seed, "network")
        phi = torch.from_numpy(il.streams.normal(key, sum(self.sizes(task)))[0]).to(task.x0)
        return {"phi": torch.cat([0.3 * phi[: -task.d], task.x0])}

    def server_rows(self, task, clients):
        keys = il.streams.keys(task.seed, "embedding", 0, clients)
        return {"v": torch.from_numpy(il.streams.normal(keys, self.embedding)).to(task.x0)}

    def make(self, task, phi, v):
        a, b, c, d, e, f = phi.split(self.sizes(task))
        z = (v @ a.view(self.hidden, -1).T + b).relu() @ c.view(self.hidden, -1).T + d
        return z @ e.view(task.d, -1).T + f

    def broadcast(self, task, server):
        return {}  # phi stays at the server

    def address(self, task, server, clients):
        return {"w": self.make(task, server["phi"], server["v"][clients])}

    def update(self, task, down, private, here):
        return {"change": sgd(task, down["w"], here, self.lr, self.steps) - down["w"]}, {}

    def aggregate(self, task, server, up, rule):
        phi, v = server["phi"], server["v"][rule.wire_ids]
        _, pull_back = torch.func.vjp(lambda phi, v: self.make(task, phi, v), phi, v)
        by_phi, by_v = pull_back(up["change"])
        rate = self.hyper_lr
        return {"phi": phi + rate / rule.heard * by_phi, "v": v + rate * by_v}

    def personal(self, task, down, private, here):
        return down["w"]


@dataclass(frozen=True)
class KnnPer(il.FedAvg):
    """Marfoq et al. 2022: FedAvg's model mixed with the labels of each client's nearest samples."""

    lam: float = il.knob(0.6, "weight of the nearest samples", low=0, high=1)
    neighbours: int = il.knob(4, "how many samples are looked at", low=1)
    scale: float = il.knob(0.6, "weights fall with the distance over this", above=0)

    def personal(self, task, down, private, here):
        x = down["w"].expand(here.rows, -1)

        def remember(k, batch):
            z = task.features(x[k], batch.inputs)
            return {"z": z, "y": batch.targets, "real": batch.weights > 0}

        return {"x": x} | here.of_training_samples(remember)

    def predict(self, task, personal, inputs):
        shared = task.outputs(personal["x"], inputs).softmax(-1)
        z = task.features(personal["x"], inputs)
        gaps = torch.cdist(z, personal["z"], compute_mode="donot_use_mm_for_euclid_dist")
        gaps = gaps.masked_fill(~personal["real"].unsqueeze(1), torch.inf)
        near, places = (t[..., : self.neighbours] for t in gaps.sort(dim=-1, stable=True))
        y = personal["y"].unsqueeze(1).expand_as(gaps).gather(2, places)
        weights = (-near / self.scale).softmax(-1)
        votes = torch.zeros_like(shared).scatter_add(2, y, weights)
        return (self.lam * votes + (1 - self.lam) * shared).log()


@dataclass(frozen=True)
class Cfl(il.FedAvg):
    """Sattler et al. 2020: groups are divided where their clients' changes disagree."""

    traits = replace(il.FedAvg.traits, hears_all=True, linear=False)

    weighting: str = il.knob("equal", "the mean of a group", choices=("equal",))
    eps1: float = il.knob(0.9, "divide below this part of the largest mean change", low=0)
    eps2: float = il.knob(0.1, "and while a client's change is above this part of it", low=0)
    groups: int = il.knob(4, "the most groups", low=1)

    def server(self, task):
        models = task.x0.repeat(self.groups, 1)
        return {"models": models, "largest": models.new_zeros(self.groups)}

    def server_rows(self, task, clients):
        return {"group": torch.zeros(len(clients), 1, dtype=torch.int64)}

    def broadcast(self, task, server):
        return {}

    def address(self, task, server, clients):
        return {"w": server["models"][server["group"][clients, 0]]}

    def aggregate(self, task, server, up, rule):
        group = server["group"][rule.wire_ids, 0]
        models, largest = server["models"].clone(), server["largest"].clone()
        count = int(group.max()) + 1
        for c in range(count):
            members = group == c
            changes = up["w"][members] - models[c]
            models[c] = rule.among(members)({"w": up["w"][members]})["w"]
            mean = (models[c] - server["models"][c]).norm()
            largest[c] = largest[c].maximum(mean)
            still = mean < self.eps1 * largest[c]
            unlike = changes.norm(dim=1).max() > self.eps2 * largest[c]
            if count == self.groups or len(changes) < 2 or not (still and unlike):
                continue
            new = members.clone()
            new[members] = smaller_half(normalize(changes))
            group = torch.where(new, count, group)
            largest[count] = largest[c]
            for k in (c, count):
                models[k] = rule.among(group == k)({"w": up["w"][group == k]})["w"]
            count += 1
        return {"models": models, "largest": largest, "group": group.unsqueeze(1)}


def smaller_half(directions):
    """Single linkage makes the largest cosine across the two halves as small as it can be."""
    pairs = np.triu_indices(len(directions), 1)
    distances = (1 - directions @ directions.T).double().numpy()[pairs]
    half = torch.from_numpy(cut_tree(linkage(distances, "single"), n_clusters=2)[:, 0] == 1)
    return half if half.sum() <= len(half) / 2 else ~half


class TwoHeads(nn.Module):
    """A personal last layer beside the shared one: their outputs are added up."""

    def __init__(self, module):
        super().__init__()
        *body, shared = module.children()
        self.body, self.shared, self.personal = nn.Sequential(*body), shared, deepcopy(shared)
        for parameter in self.personal.parameters():
            nn.init.zeros_(parameter)

    def forward(self, inputs):
        features = self.body(inputs)
        return self.shared(features) + self.personal(features)


@dataclass(frozen=True)
class FedRod(il.Method):
    """Chen and Chao 2022: a balanced shared model, and a personal last layer beside its own."""

    traits = il.Traits(rates=("lr", "personal_lr"), shared_name="theta")

    lr: float = il.knob(0.3, "step size of the shared model", above=0)
    personal_lr: float = il.knob(0.2, "step size of the personal layer", above=0)
    steps: int = il.knob(4, "SGD steps of both per round", low=0)

    def extend(self, module):
        return TwoHeads(module)

    def split(self, task):
        return task.split("personal.*")

    def message(self, task):
        return {"theta": len(self.split(task).theta)}

    def server(self, task):
        return {"theta": self.split(task).parts(task.x0)[0]}

    def private(self, task, clients):
        return {"head": self.split(task).parts(task.x0)[1].repeat(len(clients), 1)}

    def update(self, task, down, private, here):
        split = self.split(task)
        theta, own = down["theta"].expand(here.rows, -1), private["head"]

        def log_counts(k, batch):
            share = one_hot(batch.targets, head(task).out_features) * batch.weights.unsqueeze(-1)
            return {"prior": share.sum(1).log()}

        balanced = Term(self.balanced, rows=here.of_training_samples(log_counts), loss=0)
        for _ in range(self.steps):
            batch = here.draw()
            shared = split.join(theta, torch.zeros_like(own))
            by_theta = split.parts(task.grad(shared, batch, balanced))[0]
            by_own = split.parts(task.grad(split.join(theta, own), batch))[1]
            theta = theta - self.lr * by_theta
            own = own - self.personal_lr * by_own
        return {"theta": theta}, {"head": own}

    def balanced(self, run, rows):
        scores = run.outputs + rows["prior"].unsqueeze(1)
        return -scores.log_softmax(-1).gather(-1, run.targets.unsqueeze(-1)).squeeze(-1)

    def personal(self, task, down, private, here):
        return self.split(task).join(down["theta"].expand(here.rows, -1), private["head"])
