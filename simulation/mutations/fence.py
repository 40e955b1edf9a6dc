"""Write permission: fences, sequencers, and the meaning of the store's refusals and timeouts (section 6.2)."""

from __future__ import annotations

import dataclasses
from typing import Any

from millwheel.master import change_plan
from millwheel.master import core as master_core
from millwheel.master.assignment import IntervalAssigner
from millwheel.store import journal_rules
from millwheel.store.contract import (
    TERMINAL_SEQUENCER,
    Append,
    JournalHead,
    SequencerRefusedError,
)
from millwheel.store.memory import MemoryStore
from millwheel.worker.process.appends import JournalAppends
from millwheel.worker.process.event_host import EventHost
from simulation.mutations.base import mutation, replace, rewrite, rewriting

__all__: list[str] = []


@mutation("G3", "the store refuses appends of all but the owner that fenced last")
def no_fence() -> None:
    """A journal accepts an append from any owner."""

    def appended(journal: str, held: JournalHead | None, append: Append) -> JournalHead:
        return JournalHead(append.sequencer, append.commit, append.truncation_point, append.parts)

    replace(journal_rules, "appended", lambda _: appended)


@mutation("G3", "the store's fence only rises")
def any_fence() -> None:
    """The last fence always wins, even if it comes from an older owner whose request was delayed."""

    def make(fenced: Any) -> Any:
        def unfenced(journal: str, held: JournalHead | None, sequencer: int) -> JournalHead:
            if held is not None and held.sequencer != TERMINAL_SEQUENCER:
                held = dataclasses.replace(held, sequencer=sequencer - 1)
            head: JournalHead = fenced(journal, held, sequencer)
            return head

        return unfenced

    replace(journal_rules, "fenced", make)


@mutation(
    "G3",
    "the truncation point moves only with an append that the fence lets pass",
    seeds=10,
    test="tests/contracts/test_store_contract.py::test_a_deposed_owner_changes_nothing[memory]",
    why="of a deposed owner's appends, which are few, one in many moves the truncation point",
)
def zombie_floor() -> None:
    """A refused append still moves the truncation point and the base parts."""
    put = "    self._put(journal, rules.appended(journal, self.head(journal), append))"
    moving = (
        "    head = self.head(journal)\n"
        "    if (head is not None and head.sequencer != append.sequencer"
        " and head.truncation_point < append.truncation_point <= head.commit):\n"
        "        self.journals[journal].head = JournalHead("
        "head.sequencer, head.commit, append.truncation_point, append.parts)\n"
    )
    rewrite(MemoryStore.append, put, moving + put)


@mutation(
    "G3",
    "an append that is refused deposes its owner",
    seeds=20,
    test="tests/worker/test_host.py::test_an_append_that_a_successor_refuses_ends_the_owner",
    why="the coordinator notifies an owner of its successor, too, mostly before its next append",
)
def refusal_taken_for_success() -> None:
    """A refused append counts as successful: its records are ACKed, and its productions are sent."""
    rewrite(JournalAppends, "host.post(Deposed(str(error)))", "host.post(Appended(effect.append.commit))")


@mutation("G1", "an append of unknown outcome is repeated until it is certain")
def silence_taken_for_success() -> None:
    """An append without an answer counts as successful."""
    repeated = "await self._retried.append(self._store, effect.journal, effect.append, failed)"
    rewrite(JournalAppends, repeated, "failed or await self._store.append(effect.journal, effect.append)")
    rewrite(JournalAppends, "if error is None:", "if error is None or isinstance(error, StoreUnavailableError):")


rewriting(
    "silence_of_the_queue_for_success",
    "G1",
    "an append without a task is repeated, too, until its outcome is certain",
    JournalAppends,
    "self._host.spawn(self._append_until_certain(effect, error))",
    "self._decided(effect, None)",
)

rewriting(
    "alarms_stay_for_all_deadlines",
    "G8",
    "a host's alarm rings by the core's deadline, also after the clock was set",
    EventHost,
    "if self._rings_at <= rings_at + ALARM_SLACK_SECONDS:",
    "if True:",
    seeds=0,
    test="tests/worker/test_host_alarm.py::test_a_deadline_is_met_after_the_clock_was_set",
    why="seeds were not tried: the test shows it by itself, in seconds",
)


@mutation("G3", "each assignment has a sequencer of its own")
def one_sequencer_for_two() -> None:
    """A new owner uses its predecessor's sequencer.

    Two other mechanisms would prevent harm, so this mutation removes them, too. They are the master's check of its own
    plans, and the fence, which opens a journal once for each sequencer.
    """

    def give(original: Any) -> Any:
        def keeping(self: IntervalAssigner, interval: Any, worker: str, into: Any) -> None:
            before = interval.sequencer
            original(self, interval, worker, into)
            interval.sequencer = before or interval.sequencer

        return keeping

    def fenced(journal: str, held: JournalHead | None, sequencer: int) -> JournalHead:
        head = journal_rules.present(journal, held)
        if sequencer < head.sequencer:
            raise SequencerRefusedError(journal, head.sequencer, head.commit)
        return dataclasses.replace(head, sequencer=sequencer)

    replace(IntervalAssigner, "give", give)
    rewrite(change_plan, "if now.sequencer > was.sequencer:", "if True:")
    replace(journal_rules, "fenced", lambda _: fenced)


@mutation(
    "G11",
    "a master's transaction rests on its leadership, and on what it has read",
    seeds=10,
    test="tests/master/test_ownership.py::test_a_deposed_masters_delayed_transaction_changes_nothing",
    why="two masters must change one map in the moment that it takes to hear of a change",
)
def unconditional_masters() -> None:
    """A master changes the interval maps unconditionally, even if they or its leadership have changed meanwhile."""
    replace(master_core, "Transact", lambda made: lambda number, _, puts, deletes: made(number, (), puts, deletes))
