"""A site at work: what is asked, what is answered, and what the owner's rules make of it."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version as version_of
from typing import Any, TypeVar

import torch

from ...core.documents import decode, encode
from ...core.files import private_folder, sha256_of
from ...core.knobs import SettingError
from ...core.text import plural, shown
from ...core.types import State, leaves
from ...data.federation import SPLITS, Federation
from ...host import calls
from ...host.calls import FAILED, REFUSED, Call
from ...host.durable import Durable, rounds_on_disk, versions_on_disk
from ...host.host import Host, HostSettings
from ...host.service import Refused, Service
from ...methods.wrapped import innermost
from ...privacy.sums.cost import most_bytes as most_sum_bytes
from ...privacy.sums.internals import flower as cryptography
from ...server.protocol import Contract
from ..config import FederationTerms
from .agreement import (
    Agreement,
    Builder,
    ClientSizes,
    Enrolment,
    Members,
    RoundTerms,
    SiteCensus,
)
from .consent import NOT_AGREED, ConsentGate
from .data import FILE as SUMS_FILE
from .data import ROWS_FILE, SiteData, SumsRequest, check_rows, check_same, joined, sums_reply
from .rules import (
    Content,
    Exhausted,
    Rules,
    check_caps,
    content,
    count_evaluation,
    count_question,
    count_round,
    without_few,
)
from .spent import RunSpent
from .state import CURRENT, ROWS, AuditLog, StateFolder, now

ROUND_CALLS = ("sum", "update", "answer", "conclude", "evaluate", "evaluate_shared")
MOST_RUNS = 1000  # of a state directory, in which rounds were concluded
MOST_MAGNITUDE = 1e9  # of a number in a message down: beyond it nothing is learnt
SMALL = calls.MOST_FACTS + (64 << 10)  # bytes of a frame before anything is agreed
T = TypeVar("T")


@dataclass(frozen=True)
class AgreedRun:
    """An agreement, and what it comes to at a site."""

    agreement: Agreement
    members: Members
    federation: Federation  # of those who take part, by their names on the wire
    contract: Contract
    settings: HostSettings
    terms: RoundTerms

    @classmethod
    def of(
        cls,
        agreement: Agreement,
        members: Members | None,  # None: all clients with enough samples, for a new run
        owned: SiteData,
        rules: Rules,
        build: Builder,
    ) -> AgreedRun:
        """Refused, or SettingError, where it is not possible here."""
        data = owned.agreed(agreement.form, rules.min_samples)
        if members is None:
            members = owned.members(data, rules.min_samples, rules.client_names == "own")
        data = joined(data, members)
        return cls(agreement, members, data, *build(agreement, data, rules.allow_code))

    @property
    def most_batch(self) -> int:
        """Samples of the largest mini-batch that memory holds, with what is computed from it."""
        size = sum(t[:1].numel() * t.element_size() for t in leaves(self.federation.inputs))
        return max(1, self.settings.memory // (4 * max(size, 1)))

    def host(self, enrolment: Enrolment) -> Host:
        """The host of these clients."""
        settings = replace(self.settings, validation=enrolment.validation)
        return Host(self.contract, self.federation, torch.tensor(enrolment.wire_ids), settings)


def check_terms(run: AgreedRun, rules: Rules) -> None:
    """Refuse terms under which more would leave than the owner allows."""
    run.terms.check_batches(rules.min_batch, run.most_batch)
    method = innermost(run.contract.method)
    name = str(run.agreement.plan.get("method"))
    numbers = sum(method.message(run.contract.task).values())
    tells = method.traits.discloses and 2 * numbers > run.contract.task.d
    if tells and name not in rules.allow_private_rows:
        raise Refused(
            f"allow_private_rows: {name} as agreed tells the private models of this site "
            f"({method.traits.discloses}); its owner has not allowed that"
        )
    if run.contract.sums is not None:
        try:
            cryptography()
        except SettingError as error:
            raise Refused(str(error)) from None
    for metric in run.settings.metrics:
        if metric.name not in rules.metrics:
            raise Refused(
                f"metrics: {metric.name} is to be counted; this site's owner allows "
                f"{', '.join(rules.metrics) or 'none'}"
            )


class Site:
    """Answers frames, one after the other; every reply passes through the rules.

    A frame that comes twice in a row is answered once: the second gets the first one's reply.
    `tell` gets lines for the owner, in plain words.
    """

    def __init__(
        self,
        owned: SiteData,
        folder: StateFolder,
        rules: Rules,
        build: Builder,
        tell: Callable[[str], None] = print,
    ):
        self.owned = owned
        self.folder = folder
        self.rules = rules
        self.build = build
        self.tell = tell
        self.consent = ConsentGate(folder.path, owned, rules)
        self.usage = folder.usage()
        self.log = AuditLog(folder.messages)
        self.agreed: AgreedRun | None = None
        self.service: Service | None = None
        self._last: tuple[bytes | None, bytes] = (None, b"")
        self._last_line = ""
        self._proposed: FederationTerms | None = None  # what the owner was last told of
        self._answered: dict[tuple[int, str], str] = {}  # questions of the round under way
        self._exhausted = ""  # why no order is answered any more; "" while there is no reason

    # -- lifecycle -------------------------------------------------------------------------------
    def resume(self) -> None:
        """Resume the run that this site was in, if any."""
        run = self.folder.current()
        if run is None:
            return
        place = self.folder.run(run)
        try:
            agreement = Agreement.load(place)
            self._check_consent(self.consent.allows_run(agreement))
            self.agreed = self._agree(agreement, Members.load(place))
            check_rows(self.folder.path, self.owned.rows(agreement.form))
            if (enrolment := self._enrolment(self.agreed)) is not None:
                self._enrol(enrolment, begun=True)
                assert self.service is not None
                self._note_concluded(self.service)
        except (ValueError, OSError) as error:
            self.agreed = self.service = None
            self.tell(f"cannot resume run {run:08x}: {_in_full(error)}")
            return
        if self.service is not None:
            self.tell(f"resumed run {run:08x} after {plural(self.service.concluded + 1, 'round')}")

    def most_bytes(self) -> int:
        """The largest frame that is accepted now: no larger than the contract can need."""
        most = SMALL
        if self.agreed is not None:
            contract = self.agreed.contract
            clients = self.agreed.federation.clients
            up = max(contract.up.length, contract.up.values * 8)
            down = contract.down.length + clients * contract.addressed.length
            most += down + 2 * up + 64 * clients
            if contract.sums is not None:
                most += clients * most_sum_bytes(contract.sums.plan(contract.sums.clients))
        return min(most, self.rules.most_bytes)

    def close(self) -> None:
        self.log.close()

    # -- a frame ---------------------------------------------------------------------------------
    def handle(self, frame: bytes) -> bytes:
        """The reply to a frame."""
        self.usage.bytes_in += len(frame)
        self.usage.last_contact = now()
        if frame == self._last[0]:
            self.log.write("in", "", len(frame), content="the same message again")
            reply = self._last[1]
            self.usage.bytes_out += len(reply)
            self.usage.save(self.folder.path)
            self.log.write("out", "", len(reply), content="the same reply again")
            return reply
        kind, round_number = "", None
        try:
            call = Call.open(frame, self.most_bytes())
            kind = call.kind if call.kind in (*_KINDS, *_INSIDE) else "unknown"
            version = call.facts.get("version")
            round_number = version if type(version) is int else None
            self.log.write(
                "in", kind, len(frame), round_number=round_number, content=self._words(call, kind)
            )
            reply, content_of_reply = self._answer(call, frame)
        except Exception as error:
            return self._refuse(kind, round_number, error)
        self.usage.messages += 1
        self.usage.bytes_out += len(reply)
        self.usage.save(self.folder.path)  # before it leaves
        self.log.write(
            "out",
            kind,
            len(reply),
            round_number=round_number,
            numbers=content_of_reply.numbers,
            content=content_of_reply.words,
        )
        # the owner may have agreed since: terms are answered anew
        self._last = (None, b"") if kind == "propose" else (frame, reply)
        return reply

    def _words(self, call: Call, kind: str) -> str:
        """What is asked, for the log: an order with what it varies, as it says itself."""
        words = _KINDS.get(kind, "")
        factors = call.facts.get("factors")
        if kind == "update" and isinstance(factors, dict) and factors:
            names = [f"{name} x {factor}"[:60] for name, factor in list(factors.items())[:5]]
            words = f"{words}; it varies {', '.join(names)}"
        return words

    def refuse(self, reason: str) -> bytes:
        """The reply to what is refused before it is a call: a frame that is too large."""
        return self._refuse("", None, Refused(reason))

    def _refuse(self, kind: str, round_number: int | None, error: Exception) -> bytes:
        if kind == "update" and isinstance(error, Exhausted):
            self._exhausted = str(error)
        if isinstance(error, Refused):
            reply = Call(REFUSED, {"reason": str(error)})
        else:  # its text may have values of the data in it
            reply = Call(FAILED, {"text": f"{type(error).__name__} at this site in {kind!r}"})
        frame = reply.pack()
        self.usage.refused += 1
        self.usage.bytes_out += len(frame)
        with suppress(OSError):  # a full disk
            self.usage.save(self.folder.path)
            why = f"refused: {error}" if isinstance(error, Refused) else type(error).__name__
            self.log.write("out", reply.kind, len(frame), round_number=round_number, verdict=why)
        self.tell(f"{kind or 'a message'} was refused: {_in_full(error)}")
        return frame

    def _answer(self, call: Call, frame: bytes) -> tuple[bytes, Content]:
        """The reply, packed, and what is in it; nothing is kept of a call that is refused."""
        if call.kind in _INSIDE:
            raise Refused(f"{call.kind}: internal call, refused from the network")
        if call.kind in ROUND_CALLS:
            return self._round(call, frame)
        answers: dict[str, Callable[[Call], Call]] = {
            "hello": self._hello,
            "propose": self._propose,
            "sums": self._sums,
            "agree": self._take_agreement,
            "enrol": self._take_enrolment,
            "status": self._status,
        }
        if call.kind not in answers:
            raise Refused(f"unknown call {call.kind[:40]!r}")
        if call.tensors:
            raise Refused(f"{call.kind}: it has no tensors")
        reply = answers[call.kind](call)
        content_of_reply = content(reply, 1)
        packed = reply.pack()
        check_caps(self.rules, self.usage, content_of_reply.numbers, len(packed))
        self.usage.numbers += content_of_reply.numbers
        return packed, content_of_reply

    # -- before the rounds -----------------------------------------------------------------------
    @property
    def concluded(self) -> int:
        """The last round that is done; -1 before the first."""
        return self.service.concluded if self.service else -1

    def _hello(self, call: Call) -> Call:
        if call.facts:
            raise Refused("hello: it has no facts")
        facts = {"idiolect": version_of("idiolect"), "site": self.owned.site}
        run = self.agreed.agreement.run if self.agreed else None
        return Call("hello", {**facts, "run": run, "concluded": self.concluded})

    def _status(self, call: Call) -> Call:
        if self.service is None:
            return Call("status", {"concluded": -1, "written": -1})
        return self.service.reply(Call("status"))

    def _propose(self, call: Call) -> Call:
        """What the federation is about, for the owner to agree to; none of it is looked into."""
        terms = _decoded(call, FederationTerms)
        agreed = self.consent.allows_terms(terms)
        if not agreed and terms != self._proposed:
            self._proposed = terms
            self.tell(f"{shown(terms.federation)} proposes terms that you have not agreed to")
            self.tell(self.agree_words)
        return Call("consent", {"agreed": agreed})

    @property
    def agree_words(self) -> str:
        """What the owner can do where terms are not agreed to."""
        why = f" ({self.consent.reason})" if self.consent.reason else ""
        return (
            f"nothing is computed before you agree{why}; read them and decide: idiolect host agree "
            f"--state {self.folder.path}"
        )

    def _check_consent(self, allowed: bool) -> None:
        """Refuse what is not within the terms that the owner has agreed to."""
        if not allowed:
            raise Refused(NOT_AGREED) from (
                SettingError(self.consent.reason) if self.consent.reason else None
            )

    def _sums(self, call: Call) -> Call:
        request = _decoded(call, SumsRequest)
        self._check_consent(self.consent.allows_sums(request))
        if not self.rules.sums:
            raise Refused("sums: this site's owner lets no sums of columns leave")
        self.owned.table(request.data.target, request.data.features)
        self._ask_data("sums", call.facts)
        reply, rows = sums_reply(self.owned, request, self.rules.min_samples)
        check_rows(self.folder.path, rows)
        check_same(self.folder.path, request)
        self._remember(ROWS_FILE, SUMS_FILE)
        return reply

    def _ask_data(self, kind: str, question: dict[str, Any]) -> None:
        """Count a question about the data before it is looked at."""
        text = json.dumps([kind, question], sort_keys=True)
        count_question(self.rules, self.usage, hashlib.sha256(text.encode()).hexdigest())
        self.usage.save(self.folder.path)

    def _take_agreement(self, call: Call) -> Call:
        _check_version(call.facts.pop("idiolect", None))
        agreement = _decoded(call, Agreement)
        self._check_consent(self.consent.allows_run(agreement))
        if self._exhausted:
            raise Refused(self._exhausted)
        place = self.folder.run(agreement.run)
        same = self.agreed is not None and self.agreed.agreement == agreement
        form = agreement.form
        self.owned.check_form(form)
        # until its clients are enrolled, a run may be agreed again: its preparation may follow
        if (place / Enrolment.FILE).exists() and Agreement.load(place) != agreement:
            raise Refused(f"run: {agreement.run} was agreed with other terms; use a new number")
        if not same:
            self._ask_data("agree", agreement.data)
            run = self._agree(agreement)
            check_rows(self.folder.path, self.owned.rows(form))
            self._forget_unused(agreement.run)
            for name in self._of_run(agreement.run):  # its files change: none of them must be there
                self.usage.files.pop(name, None)
            self.usage.save(self.folder.path)
            private_folder(place)
            run.members.save(place)
            agreement.save(place)
            self.folder.enter(agreement.run)
            self._remember(ROWS_FILE, CURRENT, *self._of_run(agreement.run))
            self.agreed = run
            self.service = None
            clients = plural(run.federation.clients, "client")
            self.tell(f"agreed to run {agreement.run:08x}: {_about(agreement)}; {clients}")
        assert self.agreed is not None
        return self._census(self.agreed.federation)

    def _agree(self, agreement: Agreement, members: Members | None = None) -> AgreedRun:
        """What an agreement comes to; `members` are those who took part in it before."""
        try:
            run = AgreedRun.of(agreement, members, self.owned, self.rules, self.build)
        except Refused:
            raise
        except SettingError as error:
            raise Refused(str(error)) from None
        check_terms(run, self.rules)
        return run

    def _forget_unused(self, run: int) -> None:
        """Remove other runs in which no round was concluded; Refused where too many are in use."""
        others = [other for other in self.folder.runs() if other != run]
        for other in others:
            if not rounds_on_disk(self.folder.run(other) / ROWS):
                for name in self._of_run(other):
                    self.usage.files.pop(name, None)
                self.usage.concluded.pop(f"{other:08x}", None)
                self.usage.opened.pop(f"{other:08x}", None)
                self.usage.save(self.folder.path)
                self.folder.remove(other)
        if len(self.folder.runs()) >= MOST_RUNS:
            raise Refused(f"run: this site has taken part in {MOST_RUNS} runs; no more")

    # -- what must be there at the next start ----------------------------------------------------
    def _of_run(self, run: int) -> list[str]:
        """The documents of a run, by their names in the state directory."""
        place = self.folder.run(run).name
        return [f"{place}/{kind.FILE}" for kind in (Agreement, Members, Enrolment)]

    def _remember(self, *names: str) -> None:
        """Note the checksum of files, where they are there."""
        for name in names:
            path = self.folder.path / name
            if path.exists():
                self.usage.files[name] = sha256_of(path)

    def _census(self, data: Federation) -> Call:
        sizes = [data.sizes(split).tolist() for split in SPLITS]
        clients = [ClientSizes(*row) for row in zip(data.names, *sizes, strict=True)]
        inputs = [[str(t.dtype), list(t.shape[1:])] for t in leaves(data.inputs)]
        try:
            return Call("census", encode(SiteCensus(clients, inputs, data.classes)))
        except ValueError as error:
            raise Refused(str(error)) from None

    def _take_enrolment(self, call: Call) -> Call:
        agreed = self._agreed()
        enrolment = _decoded(call, Enrolment)
        earlier = self._enrolment(agreed)
        if earlier is not None and earlier != enrolment:
            raise Refused("enrol: the clients of this site were enrolled otherwise in this run")
        if self.service is None:
            self._enrol(enrolment, begun=earlier is not None)
            enrolment.save(self.folder.run(agreed.agreement.run))
            self._remember(*self._of_run(agreed.agreement.run))
        return self._status(call)

    def _enrolment(self, agreed: AgreedRun) -> Enrolment | None:
        """As it is on disk; None before enrolment."""
        place = self.folder.run(agreed.agreement.run)
        return Enrolment.load(place) if (place / Enrolment.FILE).exists() else None

    def _enrol(self, enrolment: Enrolment, begun: bool) -> None:
        agreed = self._agreed()
        clients, contract = agreed.federation.clients, agreed.contract
        if len(enrolment.wire_ids) != clients:
            raise Refused(
                f"enrol: wire_ids must be {clients}, one per client, got {len(enrolment.wire_ids)}"
            )
        if contract.checksum != enrolment.checksum:
            raise Refused(
                f"enrol: the contract has the checksum {contract.checksum:08x} at this site, and "
                f"{enrolment.checksum:08x} at the server: version, method, model or settings differ"
            )
        host = agreed.host(enrolment)
        durable = Durable(host, self.folder.run(agreed.agreement.run) / ROWS)
        durable.load(begun)
        self.service = Service(host, durable, masked=True)
        if self.service.sums is not None:
            self.service.sums.opened = self.usage.opened.get(self._run_name, -1)

    def _agreed(self) -> AgreedRun:
        if self.agreed is None:
            raise Refused("nothing is agreed yet: agree comes first")
        return self.agreed

    # -- rounds ----------------------------------------------------------------------------------
    def _round(self, call: Call, frame: bytes) -> tuple[bytes, Content]:
        """A call of a round, with what it may take and what may leave.

        It is counted before anything is computed: that a call fails may tell about the data, too.
        """
        agreed = self._agreed()
        service = self.service
        if service is None:
            raise Refused("no client is enrolled yet: enrol comes first")
        self._check_consent(self.consent.allows_run(agreed.agreement))
        self._check_call(call, agreed, service)
        order = hashlib.sha256(frame).hexdigest()
        again = order == self.usage.last_order  # after a restart: it was counted before
        training = call.kind == "update"
        if training:
            count_round(self.rules, self.usage, order)
            self._count_exposure(call, agreed, service, again)
            if call.facts["version"] <= service.concluded:
                self._note_taken_back(call.facts["version"])
        elif call.kind.startswith("evaluate"):
            count_evaluation(self.rules, self.usage)
        try:
            reply = service.reply(call)
            if training:
                self._count_gradients(reply, agreed)
            if training and (clients := service.host.undo_not_finite(call.facts["version"])):
                self.tell(f"rows of {plural(clients, 'client')} were not finite, and are not kept")
            if reply.kind == "scores":
                reply = without_few(self.rules, reply, agreed.settings.metrics)
            content_of_reply = content(reply, agreed.contract.task.dtype.itemsize)
            packed = reply.pack()
            check_caps(
                self.rules, self.usage, 0 if again else content_of_reply.numbers, len(packed)
            )
        except Exception:
            if training:
                service.undo(call.facts["version"])
                self.usage.last_order = ""  # it stays counted, and repeated counts again
            raise
        if service.sums is not None:
            self.usage.opened[self._run_name] = service.sums.opened
        self._keep_down(call, service)
        self._note_concluded(service)
        if not again:
            self.usage.numbers += content_of_reply.numbers
        if call.kind == "answer":
            self._answered[call.facts["version"], call.facts["part"]] = order
        if call.kind == "conclude":
            self._answered.clear()
        for name in content_of_reply.metrics:
            self.usage.metrics[name] = self.usage.metrics.get(name, 0) + 1
        self._say(call)
        return packed, content_of_reply

    def _spent(self, agreed: AgreedRun) -> RunSpent | None:
        """The account of the run; None without privacy."""
        new = agreed.terms.spent(agreed.federation.sizes("train").tolist())
        return None if new is None else self.usage.privacy.setdefault(self._run_name, new)

    def _count_exposure(self, call: Call, agreed: AgreedRun, service: Service, again: bool) -> None:
        """Count a message that is asked for, before anything is computed.

        `again`: by the very same order, which gives the same message unless this site adds noise.
        """
        spent, protection = self._spent(agreed), agreed.terms.protection
        if spent is None or protection is None:
            self.usage.uncovered += 1
        elif again and not protection.at_client:
            return
        elif spent.unit == "client" and len(service.host.rows(calls.read_order(call).heard)):
            self._expose(spent, 1)
            self.usage.save(self.folder.path)

    def _count_gradients(self, reply: Call, agreed: AgreedRun) -> None:
        """Count the gradients behind a reply, before it leaves."""
        spent = self._spent(agreed)
        if spent is not None and spent.unit == "sample" and "gradients" in reply.tensors:
            gradients = reply.tensors["gradients"]
            self._expose(spent, int(gradients.max()) if len(gradients) else 0)

    def _expose(self, spent: RunSpent, more: int) -> None:
        """Refused where it would pass the budget that was agreed to."""
        if not spent.affords(more):
            raise Exhausted(
                f"privacy: the budget that this site's owner has agreed to, epsilon "
                f"{spent.budget:g}, would be passed; {spent.epsilon():.3g} is spent"
            )
        spent.exposures += more

    def _check_call(self, call: Call, agreed: AgreedRun, service: Service) -> None:
        """Refuse what goes beyond the agreement, before the data are touched."""
        version = call.facts.get("version")
        if type(version) is not int or not 0 <= version < calls.MOST_VERSION:
            raise Refused("version must be a whole number of 32 bits")
        if call.kind == "update":
            order = calls.read_order(call)
            agreed.terms.check(version, order.factors)
            agreed.terms.check_batch(version, self.rules.min_batch, agreed.most_batch)
            _check_down(service.host.open_down(order).parts())
        elif call.kind.startswith("evaluate"):
            _, down, _, _ = calls.read_evaluate(call)
            _check_down(service.host.open_message(version, down).parts())
        elif call.kind == "answer":
            query = calls.read_query(call)
            if service.begun != version:
                raise Refused(f"version must be that of the round under way, got {version}")
            if (version, query.part) in self._answered:
                raise Refused("answer: coordinates of a round are told once")

    def _note_concluded(self, service: Service) -> None:
        """Note the last round on disk; it is there already."""
        if service.durable is not None:
            self.usage.concluded[self._run_name] = service.durable.version

    def _note_taken_back(self, version: int) -> None:
        """Note that a round is about to be taken back, before its file is removed."""
        versions = versions_on_disk(self.folder.run(self._agreed().agreement.run) / ROWS)
        self.usage.concluded[self._run_name] = max((v for v in versions if v < version), default=-1)
        self.usage.save(self.folder.path)

    @property
    def _run_name(self) -> str:
        return f"{self._agreed().agreement.run:08x}"

    def _keep_down(self, call: Call, service: Service) -> None:
        """Store the message that personal models are built from, next to the rows."""
        if "down" in call.tensors and service.durable is not None:
            clients = call.tensors["train" if call.kind == "update" else "wire_ids"]
            service.durable.keep_down(call.facts["version"], calls.read_down(call, clients))

    def _say(self, call: Call) -> None:
        """A line per round."""
        line = ""
        if call.kind == "conclude":
            line = f"round {call.facts['version'] + 1} is done"
        elif call.kind.startswith("evaluate") and not self._last_line.startswith("evaluated"):
            line = f"evaluated after {plural(call.facts['version'], 'round')}"
        if line and line != self._last_line:
            self._last_line = line
            self.tell(line)


_KINDS = {
    "hello": "who is there?",
    "propose": "method, model, settings and columns, for the owner to agree to",
    "sums": "asks for counts and sums of columns",
    "agree": "method, model, settings and form of the data",
    "enrol": "numbers that stand for the clients",
    "status": "which round is done?",
    "update": "an order to train, with the shared model",
    "answer": "asks for the values of some coordinates",
    "conclude": "whose messages counted",
    "sum": "keys and shares of masks, for a sum of messages",
    "evaluate": "asks for figures of the personal models",
    "evaluate_shared": "asks for figures of the shared model",
}
# only for hosts of the same owner as the engine
_INSIDE = ("save", "load", "begin", "arrived", "release")


def _check_version(theirs: Any) -> None:
    """Refuse a server of another version; one that does not say it is judged by its contract."""
    ours = version_of("idiolect")
    if theirs is not None and theirs != ours:
        raise Refused(
            f"version: the server has idiolect {str(theirs)[:40]}, this site {ours}; "
            "the same is needed on both"
        )


def _check_down(down: State) -> None:
    """Refuse a message down with numbers that no training comes to, before anything is stored."""
    for name, t in down.items():
        if t.is_floating_point() and not bool((t.abs() <= MOST_MAGNITUDE).all()):
            raise Refused(
                f"down: numbers of {name!r} must be finite, and at most {MOST_MAGNITUDE:g}"
            )


def _decoded(call: Call, kind: type[T]) -> T:
    """The facts of a call as a document; Refused says what is wrong."""
    try:
        return decode(call.facts, kind)
    except ValueError as error:
        raise Refused(f"{call.kind}: {error}") from None


def _about(agreement: Agreement) -> str:
    model = agreement.plan.get("model") or "the model chosen from the data"
    return f"{agreement.plan.get('method')}, {model}"


def _in_full(error: BaseException) -> str:
    """All there is to say of an error, for the owner."""
    if isinstance(error, SettingError):
        return f"{error} ({error.__cause__})" if error.__cause__ else str(error)
    return "".join(traceback.format_exception(error)).strip()
