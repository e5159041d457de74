"""Gradient inversion: pictures that would have led to the message that the server has.

The attack of Geiping et al. (2020): the cosine between the message and the one that guessed
pictures would give, total variation, Adam on the signs of the gradient, falling steps. Labels are
read from the bias of the last layer where the message holds it (iDLG, Zhao et al. 2020), and are
sought with the pictures where it does not (DLG, Zhu et al. 2019). Beside it the same for somebody
who has other people's pictures of the same kind: guesses lie in the span of their principal
components, which takes the place of total variation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cosine_similarity, one_hot

from idiolect import FedAvg, Ffgg, LpProj, Method, SettingError, Task

from ..runs import Work, one_thread
from .leakage import (
    INVERTED,
    PROTECTIONS,
    Pictures,
    first_messages,
    in_sums,
    matrix,
    median_norm,
    network,
    noisy,
    pictures,
    seeded,
)

PRIORS = ("smooth", "public")  # total variation, or the span of other people's pictures
SPAN = 2000  # of these pictures, those who have them take principal components
BEST = 60.0  # dB: better than this is shown as this


# -- the attacker's copy of a client ---------------------------------------------------------------
class Copy:
    """A client as the attacker imagines it: pictures to the message of the first round."""

    def __init__(self, method: Method, task: Task):
        self.method = method
        self.task = task
        self.private_numbers = 0
        if isinstance(method, LpProj):
            self.P = matrix(method, task)
        if isinstance(method, Ffgg):
            self.split = method.split(task)
            self.private_numbers = len(self.split.w)

        def loss(x: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
            outputs = functional_call(task.module, task.layout.unflatten(x), (inputs,))
            return -(labels * outputs.log_softmax(-1)).sum(-1).mean()

        self._gradients = vmap(grad(loss))

    @property
    def reads_labels(self) -> bool:
        """Whether the message holds the bias of the last layer."""
        return isinstance(self.method, FedAvg)

    def change(self, inputs: Tensor, labels: Tensor, private: Tensor) -> Tensor:
        """What messages say, up to scale, on average over clients.

        inputs[R, N, B, ...], labels[R, N, B, C], private[R, N, d_w] -> [R, m]
        """
        groups, clients = inputs.shape[:2]
        inputs, labels, private = (t.flatten(0, 1) for t in (inputs, labels, private))
        x0 = self.task.x0.expand(len(inputs), -1)
        if isinstance(self.method, Ffgg):
            whole = torch.empty_like(x0)
            whole[:, self.split.theta] = x0[:, self.split.theta]
            whole = whole.index_copy(1, self.split.w, private)
            g = self._gradients(whole, inputs, labels)[:, self.split.theta]
            return g.view(groups, clients, -1).mean(1)
        x = x0
        for _ in range(self._steps):
            # lp-proj: without its tie, which moves a model that starts at P x = w next to nothing
            x = x - self._rate * self._gradients(x, inputs, labels)
        moved = (x - x0).view(groups, clients, -1).mean(1)
        # of p = 1 the message is the sign of this
        return moved @ self.P.T if isinstance(self.method, LpProj) else moved

    @property
    def _rate(self) -> float:
        method: Any = self.method
        return method.personal_lr if isinstance(method, LpProj) else method.lr

    @property
    def _steps(self) -> int:
        method: Any = self.method
        return int(method.steps)

    def read_labels(self, change: Tensor, public: Tensor, count: int) -> Tensor:
        """How many of `count` pictures are of each class: change[m] -> int64[count], sorted.

        The gradient of the last bias is what the network predicts on average, less the share of
        each class: what it predicts is taken from public pictures.
        """
        low, high = self.task.layout.span(self.task.layout.names[-1])
        g = -change[low:high] / (self._rate * self._steps)
        outputs = self.task.outputs_of_one(self.task.x0, public)
        shares = (outputs.softmax(-1).mean(0) - g).clamp(min=0)
        exact = count * shares / shares.sum().clamp(min=1e-12)
        counts = exact.floor().long()
        rest = (exact - counts).argsort(descending=True)[: count - int(counts.sum())]
        counts[rest] += 1
        return torch.arange(len(counts)).repeat_interleave(counts)


# -- the attack ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Effort:
    """How long the attack takes."""

    iterations: int = 300
    lr: float = 0.1
    variation: float = 0.01  # weight of total variation
    components: int = 64  # of other people's pictures


def variation(x: Tensor) -> Tensor:  # x[R, ..., height, width] -> [R]
    across = (x[..., 1:] - x[..., :-1]).abs().flatten(1).mean(1)
    return across + (x[..., 1:, :] - x[..., :-1, :]).abs().flatten(1).mean(1)


class Span:
    """Guesses as whitened coordinates in the span of public pictures."""

    def __init__(self, public: Tensor, components: int):
        rows = public.flatten(1)
        self.shape = public.shape[1:]
        self.mean = rows.mean(0)
        _, s, v = torch.linalg.svd(rows - self.mean, full_matrices=False)
        self.basis = v[:components] * (s[:components] / len(rows) ** 0.5).unsqueeze(1)

    def pictures(self, z: Tensor) -> Tensor:  # z[..., components] -> [..., *shape]
        return (self.mean + z @ self.basis).unflatten(-1, self.shape)


def invert(
    copy: Copy,
    observed: Tensor,  # [R, m]
    clients: int,
    batch: int,
    public: Pictures,
    prior: str,
    effort: Effort,
    seed: int,
) -> Tensor:  # -> [R, clients * batch, ...]
    """Pictures of so many clients whose mean message is nearest to each row in direction."""
    generator = torch.Generator().manual_seed(seed)
    rows, classes = len(observed), public.classes
    lead = (rows, clients, batch)
    span = Span(public.inputs[:SPAN], effort.components)
    if prior == "public":
        guess = 0.1 * torch.randn(*lead, len(span.basis), generator=generator)
    else:
        guess = torch.rand(*lead, *public.inputs.shape[1:], generator=generator)
    logits = 0.1 * torch.randn(*lead, classes, generator=generator)
    x0 = copy.task.x0
    private = x0.new_zeros(rows, clients, copy.private_numbers)
    if copy.private_numbers:
        keys = torch.randint(2**60, (rows * clients,), generator=generator).numpy().astype("uint64")
        private = copy.split.parts(copy.task.draw(keys))[1].view(rows, clients, -1).clone()
    known = None
    variables = [guess]
    if copy.reads_labels:
        several = [copy.read_labels(o, public.inputs[:500], clients * batch) for o in observed]
        known = one_hot(torch.stack(several), classes).to(x0).view(*lead, classes)
    else:
        variables.append(logits)
    if copy.private_numbers:
        variables.append(private)
    for v in variables:
        v.requires_grad_()
    optimizer = torch.optim.Adam(variables, lr=effort.lr)
    falls = [int(effort.iterations * share) for share in (3 / 8, 5 / 8, 7 / 8)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, falls, 0.1)
    for _ in range(effort.iterations):
        optimizer.zero_grad()
        inputs = span.pictures(guess) if prior == "public" else guess
        labels = logits.softmax(-1) if known is None else known
        loss = 1 - cosine_similarity(copy.change(inputs, labels, private), observed, dim=-1)
        if prior == "public":
            loss = loss + 1e-4 * guess.square().flatten(1).mean(1)
        else:
            loss = loss + effort.variation * variation(inputs)
        loss.sum().backward()
        for v in variables:
            assert v.grad is not None
            v.grad.sign_()
        optimizer.step()
        schedule.step()
        if prior == "smooth":
            with torch.no_grad():
                guess.clamp_(0, 1)
    with torch.no_grad():
        inputs = span.pictures(guess) if prior == "public" else guess
        return inputs.clamp(0, 1).flatten(1, 2)


# -- how good guesses are --------------------------------------------------------------------------
def psnr(one: Tensor, other: Tensor) -> Tensor:  # [..., channels, height, width] -> [...]
    """The peak signal to noise ratio in dB, at most `BEST`.

    >>> psnr(torch.zeros(2, 1, 4, 4), torch.full((2, 1, 4, 4), 0.1)).tolist()
    [20.0, 20.0]
    """
    error = (one - other).square().flatten(-3).mean(-1)
    return -10 * error.clamp(min=10 ** (-BEST / 10)).log10()


def nearest(guesses: Tensor, originals: Tensor) -> tuple[Tensor, Tensor]:
    """guesses[R, G, ...], originals[R, T, ...] -> the best guess for each original, its PSNR."""
    error = (originals.flatten(2).unsqueeze(2) - guesses.flatten(2).unsqueeze(1)).square().mean(-1)
    index = error.argmin(2)  # [R, T]
    rows = torch.arange(len(guesses)).unsqueeze(1)
    best = guesses[rows, index]
    return best, psnr(best, originals)


def likeness(guesses: Tensor, candidates: Tensor) -> Tensor:  # [G, ...], [n, ...] -> [n]
    """The largest correlation of each candidate with a guess."""

    def standard(t: Tensor) -> Tensor:
        t = t.flatten(1)
        t = t - t.mean(1, keepdim=True)
        return t / t.norm(dim=1, keepdim=True).clamp(min=1e-12)

    return (standard(candidates) @ standard(guesses).T).max(1).values


def picked(guesses: Tensor, originals: Pictures, others: Pictures) -> Tensor:  # -> bool[T]
    """Whether an original is liker to a guess than every other picture of its class is.

    By chance that is one in as many as there are pictures of the class, whatever the guesses are.
    """
    hits = []
    for original, c in zip(originals.inputs, originals.targets.tolist(), strict=True):
        line_up = torch.cat([original.unsqueeze(0), others.of_class(c).inputs])
        scores = likeness(guesses, line_up)
        hits.append(bool(scores[0] > scores[1:].max()))
    return torch.tensor(hits)


def elsewhere(guesses: Tensor, originals: Pictures, others: Pictures) -> Tensor:  # -> [T]
    """The mean PSNR of the nearest guess for pictures of the same class that no message holds.

    What guesses have in common with all such pictures, or owe to being many, they have here too.
    """
    by_class = {}
    for c in originals.targets.unique().tolist():
        several = others.of_class(c).inputs[:100]
        by_class[c] = float(nearest(guesses.unsqueeze(0), several.unsqueeze(0))[1].mean())
    return torch.tensor([by_class[c] for c in originals.targets.tolist()])


# -- jobs ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class InversionSize:
    """How much is attacked, and for how long."""

    data: str = "mnist"
    hidden: int = 32
    targets: int = 10  # clients with one picture that are attacked
    groups: int = 1  # of clients with a whole batch
    batch: int = 64
    most: int = 64  # pictures that an attack looks for, in sums of more
    iterations: int = 300
    slow_iterations: int = 100  # where an iteration has many local steps, or sums
    slow_sums: bool = False  # whether sums are attacked too where it has many local steps
    public: int = 10_000  # pictures of other people that the attacker has
    others: int = 1000  # pictures of each class that an original must be told from
    seed: int = 0


@dataclass(frozen=True)
class InversionJob(Work):
    """One method with batches of one size against all protections that see as many clients."""

    method: str
    batch: int
    clients: int  # in a sum
    prior: str
    size: InversionSize

    def describe(self) -> str:
        return f"{self.method}, batch {self.batch}, sum of {self.clients}, {self.prior}"

    @property
    def slow(self) -> bool:
        """Whether the attacker repeats many local steps in every iteration."""
        method = INVERTED[self.method]
        return not isinstance(method, Ffgg) and getattr(method, "steps", 1) > 1

    def train(self) -> dict[str, Any]:
        with one_thread():
            return dict(self._cells())

    def _cells(self) -> Iterator[tuple[str, dict[str, Any]]]:
        size, method = self.size, INVERTED[self.method]
        all_pictures = pictures(size.data, size.seed)
        groups = -(-size.targets // self.clients) if self.batch == 1 else size.groups
        attacked = groups * self.clients
        count = attacked * self.batch
        public = all_pictures[count : count + size.public]
        rest = all_pictures[count + size.public :]
        shape, classes = all_pictures.inputs.shape[1:], all_pictures.classes
        task = network(shape, classes, size.hidden, size.seed)
        messages = first_messages(method, task, all_pictures.dealt(attacked, self.batch), size.seed)
        clip = median_norm(messages)
        protections = {n: p for n, p in PROTECTIONS.items() if p.clients == self.clients}
        observed = []
        for name, protection in protections.items():
            rows = messages
            if protection.noise:
                seed = seeded(f"{self.method} {self.batch} {name}", size.seed)
                rows = noisy(rows, clip, protection.noise, seed)
            observed.append(in_sums(rows, self.clients))
        guessed = max(1, min(self.clients, size.most // self.batch))
        guesses = invert(
            Copy(method, task),
            torch.cat(observed),
            guessed,
            self.batch,
            public,
            self.prior,
            Effort(size.slow_iterations if self.slow or self.clients > 1 else size.iterations),
            seeded(self.describe(), size.seed),
        )
        means = public.means()
        for (name, _), own in zip(
            protections.items(), guesses.chunk(len(protections)), strict=True
        ):
            yield name, self._scored(own, all_pictures[:count], means, rest)

    def _scored(
        self, guesses: Tensor, originals: Pictures, means: Tensor, others: Pictures
    ) -> dict[str, Any]:
        """Figures of every original that is looked for: guesses[R, G, ...] for R messages."""
        groups = len(guesses)
        inputs = originals.inputs.unflatten(0, (groups, -1))
        targets = originals.targets.unflatten(0, (groups, -1))
        names = ("psnr", "blind", "elsewhere", "mse", "picked")
        columns: dict[str, list[Any]] = {name: [] for name in names}
        most = self.size.most if self.batch > 1 else -(-self.size.targets // groups)
        limited = _few_of_each(others, self.size.others)
        best_guesses = []
        for guess, pictures_of, classes in zip(guesses, inputs, targets, strict=True):
            classmates = means[classes.unique()]  # of all that are in the message
            some = slice(most)
            best, own = nearest(guess.unsqueeze(0), pictures_of[some].unsqueeze(0))
            _, blind = nearest(classmates.unsqueeze(0), pictures_of[some].unsqueeze(0))
            columns["psnr"] += own[0].tolist()
            columns["blind"] += blind[0].tolist()
            error = (best[0] - pictures_of[some]).square().flatten(1).mean(1)
            columns["mse"] += error.tolist()
            target = Pictures(pictures_of[some], classes[some], originals.classes)
            columns["picked"] += picked(guess, target, limited).tolist()
            columns["elsewhere"] += elsewhere(guess, target, limited).tolist()
            best_guesses.append(best[0])
        shown = torch.cat(best_guesses)[:SHOWN]
        return columns | {"shown": (shown * 255).round().int().tolist()}


SHOWN = 4  # pictures of each cell


def _few_of_each(several: Pictures, count: int) -> Pictures:
    most = int(several.targets.bincount(minlength=several.classes).min())
    if most < count:
        raise SettingError(f"others must be at most {most}, the pictures of a class, got {count}")
    index = [torch.nonzero(several.targets == c)[:count, 0] for c in range(several.classes)]
    return several[torch.cat(index)]
