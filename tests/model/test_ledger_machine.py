"""Random histories of the whole ledger on real stores, against a naive oracle; two stores also against each other."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from ledger_svc.domain.model import MemoryState
from ledger_svc.service.proposals import Applied
from ledger_svc.store_neo4j import Neo4jLedgerStore
from ledger_svc.store_sqlite import SqliteLedgerStore
from ledger_svc.views import ProposalView
from service_kit.clock import ManualClock
from tests import neo4j_fixture
from tests.model.ledger_oracle import Command, Oracle
from tests.model.ledger_sides import START, Reply, Side, moment, read, texts, tick_of

T = TypeVar("T")

TICKS = 900
NOON = 40
"""Where the clock starts: there is a past to publish into."""
BRANCHES = ("main", "release")
MOST_FAMILIES = 6
EXPLORING = settings().max_examples > 100
"""Set by ``HYPOTHESIS_PROFILE=explore``: more examples, longer ones, other seeds."""

branch = st.sampled_from(BRANCHES)
pick = st.integers(0, 5)
when = st.one_of(st.none(), st.sampled_from([-8, -3, -1, 0, 1, 2, 3, 5, 8, 12]))
"""A start, from now on."""
lasting = st.one_of(st.none(), st.none(), st.sampled_from([1, 2, 4, 9, 15, 0]))
"""A length; nothing is as long as nothing."""
title = st.sampled_from(["one", "two", "three"])
standing = st.sampled_from(["ADOPTED", "ADOPTED", "ADOPTED", "RETIRED"])
ends = st.tuples(pick, pick)
look = st.tuples(branch, st.integers(-12, 14), st.one_of(st.none(), st.integers(0, 30)))
timed = st.tuples(pick, when, lasting, title, standing)
change = st.one_of(
    st.tuples(st.sampled_from(["update", "supersede", "supersede"]), timed),
    st.tuples(st.sampled_from(["rollback", "invalidate", "expire", "expire", "cancel", "cancel"]), timed),
)
kinds = st.sampled_from(["DEPENDS_ON", "DEPENDS_ON", "REFINES", "RELATED_TO", "DEPRECATES", "LEARNED_FROM"])
states = st.sampled_from([
    frozenset(MemoryState), frozenset({MemoryState.ACTIVE}), frozenset(MemoryState) - {MemoryState.ACTIVE},
    frozenset({MemoryState.SCHEDULED, MemoryState.SUPERSEDED, MemoryState.INVALIDATED}),
])  # fmt: skip


@dataclass
class Waiting:
    """A proposal that is approved and not applied."""

    command: Command
    made_on: dict[str, tuple[str, int]]
    views: list[ProposalView]


@dataclass
class Answered:
    """A call that was answered, to be sent again."""

    proposals: list[str]
    """Of an apply: the proposal's id on each side; empty for a proposing call."""
    command: Command
    ident: str
    content: str
    replies: list[Reply]


class Histories(RuleBasedStateMachine):
    """Gives every side the same commands, and compares what they say with each other and with the oracle."""

    def __init__(self, runner: asyncio.Runner, sides: Sequence[Side], numbers: itertools.count[int]) -> None:
        super().__init__()
        self.runner = runner
        self.sides = sides
        self.numbers = numbers
        self.oracle = Oracle(TICKS)
        self.waiting: list[Waiting] = []
        self.answered: list[Answered] = []
        self.said: dict[tuple[str, int, int | None], list[bytes]] = {}
        self.clock = sides[0].clock
        self.clock.set(moment(NOON))
        for side in sides:
            side.ids = max(one.ids for one in sides)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the one loop that the stores belong to."""
        return self.runner.run(work)

    @property
    def now(self) -> int:
        """The tick of the clock."""
        return tick_of(self.clock.now())

    @property
    def soon(self) -> int:
        """The tick of the next commit: the clock may be behind the commits."""
        return self.oracle.moment(self.now)

    # --- Commands -----------------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        """Begin in an empty project, with a few families on two branches."""
        project = f"history-{next(self.numbers)}"
        for side in self.sides:
            self.run(side.make_project(project))
        for name, scope in [("main", "SEMANTIC"), ("main", "SEMANTIC"), ("main", "EPISODIC"), ("release", "SEMANTIC")]:
            self.publish(Command("create", name, title="one", scope=scope, start=NOON - 5))

    @rule(name=branch, times=st.tuples(when, lasting), words=st.tuples(title, standing), key=pick, more=pick, look=look)
    def create(self, name: str, times: Any, words: Any, key: int, more: int, look: Any) -> None:
        """Publish something new, or a refinement of something."""
        if len(self.oracle.on(name)) < MOST_FAMILIES:
            scope = ("SEMANTIC", "SEMANTIC", "EPISODIC")[more % 3]
            there = self.oracle.on(name)
            what, other = ("refine", there[key % len(there)]) if more > 3 else ("create", "")
            ident = f"adr/{key}" if key < 2 else ""
            made = Command(what, name, other=other, title=words[0], standing=words[1], key=ident, scope=scope)
            self.publish(self.timed(made, *times))
        self.look(*look)

    @rule(asked=change, look=look)
    def alter(self, asked: Any, look: Any) -> None:
        """Change one family."""
        self.publish(self.command(*asked))
        self.look(*look)

    @rule(asked=change, look=look)
    def alter_more(self, asked: Any, look: Any) -> None:
        """Change one family: histories are mostly changes."""
        self.publish(self.command(*asked))
        self.look(*look)

    @rule(pair=ends, start=when, look=look)
    def deprecate(self, pair: Any, start: int | None, look: Any) -> None:
        """Replace one family by another."""
        old = self.family(pair[0])
        new = self.other(old, pair[1])
        made = Command("deprecate", self.oracle.memories[old].branch, old, new)
        self.publish(self.timed(made, start, None))
        self.look(*look)

    @rule(kind=kinds, pair=ends, times=st.tuples(when, lasting), look=look)
    def link(self, kind: str, pair: Any, times: Any, look: Any) -> None:
        """Assert a relation."""
        source = self.family(pair[0])
        target = self.other(source, pair[1])
        made = Command("link", self.oracle.memories[source].branch, source, target, kind=kind)
        self.publish(self.timed(made, *times))
        self.look(*look)

    @rule(which=pick, start=when, look=look)
    def unlink(self, which: int, start: int | None, look: Any) -> None:
        """Take a relation back."""
        if self.oracle.links:
            link = self.oracle.links[-1 - which % len(self.oracle.links)]
            made = Command("unlink", link.branch if which < 5 else "main", relation=link.ident)
            self.publish(self.timed(made, start, None))
        self.look(*look)

    @rule(asked=st.lists(change, min_size=2, max_size=3), one=pick, look=look)
    def race(self, asked: list[Any], one: int, look: Any) -> None:
        """Prepare several changes on one head and apply them together: at most one of them can win."""
        # A cancellation that is not free to choose stays with the family.
        commands = [
            self.command(what, (one, *rest[1:4], "RETIRED" if what == "cancel" else rest[4])) for what, rest in asked
        ]
        before = self.waiting
        self.waiting = []
        for made in commands:
            self.propose(made)
        racers = list(self.waiting)
        won = self.apply(racers)
        assert won <= 1
        # Whoever did not lose by the head was refused by a rule, and may try again later.
        self.waiting = before + self.waiting
        self.look(*look)

    @rule(asked=change)
    def prepare(self, asked: Any) -> None:
        """Propose and approve a change, and leave it at that for now."""
        self.propose(self.command(*asked))

    @rule(order=st.lists(pick, min_size=1, max_size=3, unique=True), look=look)
    def apply_what_waits(self, order: list[int], look: Any) -> None:
        """Apply old proposals: those whose heads have moved are refused."""
        chosen = [self.waiting[index] for index in order if index < len(self.waiting)]
        if chosen:
            self.apply(chosen)
        self.look(*look)

    @rule(which=st.integers(0, 12), other=st.booleans())
    def repeat(self, which: int, other: bool) -> None:
        """Send a request again: the first answer; under the same id with other content: a refusal."""
        if not self.answered:
            return
        call = self.answered[-1 - which % len(self.answered)]
        content = "something else" if other else call.content
        for number, side in enumerate(self.sides):
            if call.proposals:
                reply = self.run(side.apply([(call.proposals[number], call.ident, content)]))[0]
            else:
                reply = self.run(side.propose(call.command, call.ident, content))
            if other:
                assert reply.reason == "REQUEST_ID_REUSED"
            else:
                assert reply.text == call.replies[number].text
            assert len(self.run(side.feed())) == len(self.oracle.recorded)

    @rule(by=st.integers(1, 6))
    def pass_time(self, by: int) -> None:
        """Let the clock go on; without this rule it stands still."""
        if self.soon < TICKS // 2:
            self.clock.set(moment(self.soon + by))

    @rule(name=branch, valid=st.integers(-12, 14), known=st.integers(0, 30), wanted=states, size=st.integers(1, 4))
    def list_heads(self, name: str, valid: int, known: int, wanted: frozenset[MemoryState], size: int) -> None:
        """Read all pages of the heads in some states: together they are what the oracle lists, each once."""
        at, told = self.soon + valid, self.known(known)
        answers = {ident: self.oracle.answer(ident, at, told) for ident in self.oracle.on(name)}
        expected = {ident: one for ident, one in answers.items() if one is not None and MemoryState(one[0]) in wanted}
        for side in self.sides:
            views = self.run(side.listed(name, at, told, wanted, size))
            found = [view.family.family_id for view in views]
            assert found == sorted(expected)
            assert [read(view, at) for view in views] == [expected[ident] for ident in found]

    # --- Checks -------------------------------------------------------------------------------------------------------

    def look(self, name: str, valid: int, known: int | None) -> None:
        """Compare the heads of a branch around now, as known now or some commits ago."""
        self.compare(name, self.soon + valid, None if known is None else self.known(known))

    def compare(self, name: str, valid: int, known: int | None) -> None:
        """Compare the heads of a branch at a point of both axes."""
        families = self.oracle.on(name)
        # What is known now is what was known at the end of time.
        answers = [self.oracle.answer(ident, valid, TICKS if known is None else known) for ident in families]
        asked = (name, valid, known)
        for side in self.sides:
            views = self.run(side.answers(families, name, valid, known))
            assert [read(view, valid) for view in views] == [one for one in answers if one is not None]
            found = texts(views, valid)
            # Both stores say the same, byte by byte; and of a time that is over, the same for ever.
            assert found == self.said.setdefault(asked, found)
        if known is None or known > self.oracle.recorded[-1]:
            del self.said[asked]

    def teardown(self) -> None:
        """At the end every earlier answer is given again; the feed is dense; the audit chain and all records verify."""
        if not self.oracle.recorded:
            return
        for position, recorded in enumerate(self.oracle.recorded):
            # A point on each side of each commit, and exactly at it, at moments spread over the world.
            name, offset = BRANCHES[position % 4 == 3], (7 * position) % 23 - 11
            self.compare(name, recorded + offset, recorded - position % 2)
        for asked in list(self.said)[:10]:
            self.compare(*asked)
        for side in self.sides:
            feed = self.run(side.feed())
            assert [commit.position for commit in feed] == list(range(1, len(self.oracle.recorded) + 1))
            assert [tick_of(commit.recorded_at) for commit in feed] == self.oracle.recorded
            assert [(one.revision_id, one.relation_id) for one in feed] == [one[1:] for one in self.oracle.commits]
            assert self.run(side.problems()) == []

    # --- Steps --------------------------------------------------------------------------------------------------------

    def family(self, number: int) -> str:
        """One of the families, of whatever branch."""
        known = sorted(self.oracle.memories)
        return known[number % len(known)]

    def other(self, family: str, number: int) -> str:
        """Another family, mostly of the same branch."""
        known = self.oracle.on(self.oracle.memories[family].branch)
        return self.family(number) if number == 5 else known[number % len(known)]

    def known(self, back: int) -> int:
        """A moment of the ledger's clock: around the record times, exactly at them as well."""
        last = self.oracle.recorded[-1] if self.oracle.recorded else NOON
        return last + 2 - back

    def timed(self, made: Command, start: int | None, length: int | None) -> Command:
        """A command with times around now; without a start its length is counted from now on."""
        begin = None if start is None else self.soon + start
        return replace(made, start=begin, stop=None if length is None else (begin or self.soon) + length)

    def command(self, what: str, asked: Any) -> Command:
        """A change of one family."""
        one, start, length, words, how = asked
        memories = self.oracle.memories
        scheduled = {ident: [run[0] for run in memory.table.runs() if run[1] > self.soon]
                     for ident, memory in memories.items()}  # fmt: skip
        ident = self.family(one)
        if what == "cancel" and how == "ADOPTED":
            # Mostly something that can be cancelled; sometimes anything.
            able = sorted(name for name, found in scheduled.items() if found)
            ident = able[one % len(able)] if able else ident
        memory = memories[ident]
        made = Command(what, memory.branch, ident)
        known = list(memory.revisions)
        match what:
            case "update" | "supersede":
                return self.timed(replace(made, title=words, standing=how), start, length)
            case "rollback":
                return self.timed(replace(made, revision=known[(length or 0) % len(known)]), start, None)
            case "cancel":
                known = scheduled[ident] or known
                return replace(made, revision=known[(start or 0) % len(known)])
            case "invalidate":
                return self.timed(made, start, None)
            case _:
                assert what == "expire"
                return replace(made, stop=None if start is None else self.soon + start)

    def publish(self, command: Command) -> None:
        """Propose, approve and apply a change."""
        before = self.waiting
        self.waiting = []
        self.propose(command)
        if self.waiting:
            self.apply(list(self.waiting))
        self.waiting = before

    def propose(self, command: Command) -> None:
        """Propose and approve a change; refused exactly when the oracle says so."""
        command = self.oracle.resolved(command, self.now)
        problems = self.oracle.problems(command, self.oracle.moment(self.now))
        ident = f"request-{next(self.numbers)}"
        replies = [self.run(side.propose(command, ident, repr(command))) for side in self.sides]
        self.agree(replies)
        if problems:
            assert replies[0].reason in problems, (command, problems, replies[0].text)
            return
        assert not replies[0].reason, (command, replies[0].text)
        self.answered.append(Answered([], command, ident, repr(command), replies))
        views = [reply.value for reply in replies]
        ident = f"request-{next(self.numbers)}"
        approved = [self.run(side.approve(view, ident)) for side, view in zip(self.sides, views, strict=True)]
        self.agree(approved)
        assert not approved[0].reason
        self.waiting.append(Waiting(command, self.oracle.depends_on(command), views))

    def apply(self, chosen: Sequence[Waiting]) -> int:
        """Apply proposals in one call; return how many were committed."""
        idents = [f"request-{next(self.numbers)}" for _ in chosen]
        each = []
        for number, side in enumerate(self.sides):
            ids = [one.views[number].proposal.proposal_id for one in chosen]
            each.append(self.run(side.apply([(proposal, i, i) for proposal, i in zip(ids, idents, strict=True)])))
        won = 0
        for index, one in enumerate(chosen):
            replies = [answers[index] for answers in each]
            self.agree(replies)
            won += self.settle(one, replies, idents[index])
        return won

    def settle(self, one: Waiting, replies: list[Reply], ident: str) -> bool:
        """Compare the answer to an apply with what the oracle says; return whether it was a commit."""
        at = self.oracle.moment(self.now)
        problems = self.oracle.problems(one.command, at)
        if one.made_on != self.oracle.depends_on(one.command):
            problems = {"HEAD_MOVED"}
        proposals = [view.proposal.proposal_id for view in one.views]
        if problems:
            assert replies[0].reason in problems, (one.command, problems, replies[0].text)
            if "HEAD_MOVED" not in problems:
                return False
            # Never to be applied again, and the answer is kept.
            self.waiting.remove(one)
            self.answered.append(Answered(proposals, one.command, ident, ident, replies))
            return False
        assert not replies[0].reason, (one.command, replies[0].text)
        applied: Applied = replies[0].value
        assert applied.view is not None
        assert (applied.position, tick_of(applied.recorded_at)) == (len(self.oracle.recorded) + 1, at)
        result = applied.view.proposal
        self.oracle.do(
            one.command,
            at,
            family=result.result_family_id,
            revision=result.result_revision_id,
            relation=result.result_relation_id,
        )
        self.waiting.remove(one)
        self.answered.append(Answered(proposals, one.command, ident, ident, replies))
        return True

    def agree(self, replies: Sequence[Reply]) -> None:
        """All sides gave the same answer, byte by byte."""
        assert all(reply.text == replies[0].text for reply in replies), [reply.text for reply in replies]


def _run(runner: asyncio.Runner, stores: Sequence[Any], examples: int, steps: int) -> None:
    clock = ManualClock(START)
    sides = [Side(store, clock) for store in stores]
    numbers = itertools.count(1)
    chosen = settings(
        max_examples=settings().max_examples if EXPLORING else examples,
        stateful_step_count=3 * steps if EXPLORING else steps,
        deadline=None,
    )
    run_state_machine_as_test(lambda: Histories(runner, sides, numbers), settings=chosen)


@pytest.mark.slow
@pytest.mark.timeout(100_000 if EXPLORING else 900)
def test_random_histories_on_sqlite() -> None:
    """L2, L7, L8, L12, L14, L15: 300 histories of 40 steps: every answer, refusal and repetition is the oracle's."""
    with asyncio.Runner() as runner:
        store = runner.run(SqliteLedgerStore.open(":memory:"))
        try:
            _run(runner, [store], 300, 40)
        finally:
            runner.run(store.close())


@pytest.mark.slow
@pytest.mark.timeout(100_000 if EXPLORING else 900)
def test_random_histories_on_neo4j_equal_those_on_sqlite() -> None:
    """L16: 50 histories of 30 steps on both stores: the oracle's answers, and byte by byte the same ones."""
    neo4j_fixture.server()
    neo4j_fixture.wipe()
    with asyncio.Runner() as runner:
        sqlite = runner.run(SqliteLedgerStore.open(":memory:"))
        neo4j = runner.run(Neo4jLedgerStore.open(neo4j_fixture.connection()))
        try:
            _run(runner, [sqlite, neo4j], 50, 30)
        finally:
            runner.run(neo4j.close())
            runner.run(sqlite.close())
