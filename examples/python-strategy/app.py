"""Spreads each claim over as many last-level caches as possible, one CPU of each in turn: for work that waits for
memory. `strategy.wit` is the contract; everything that `wit_world` has is made from it."""

from functools import wraps
from typing import Iterable, List

from componentize_py_types import Err
from wit_world import exports
from wit_world.imports import log
from wit_world.imports.types import (
    Decision,
    Denial,
    Description,
    ExplicitCpuset,
    Grant,
    Offer,
    Reason,
    Request,
    State,
    Topology,
)


def members(words: List[int]) -> List[int]:
    """The CPUs of a set: bit `i` of word `w` is CPU `64*w + i`."""
    return [64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1]


def words(cpus: Iterable[int]) -> List[int]:
    """CPUs as a set: canonical, without a trailing zero word."""
    answer: List[int] = []
    for cpu in cpus:
        at = cpu // 64
        answer.extend([0] * (at + 1 - len(answer)))
        answer[at] |= 1 << cpu % 64
    return answer


class Opened:
    """What `open` was given. Of the module, since each call gets a new `Policy`; nothing else is kept."""

    def __init__(self, machine: Topology):
        self.groups = machine.groups
        self.isolated = set(members(machine.isolated))
        self.cache_of = {cpu.id: cpu.llc for cpu in machine.cpus}

    def usable(self, cpus: List[int]) -> List[int]:
        return [cpu for cpu in members(cpus) if cpu not in self.isolated]

    def spread(self, candidates: List[int], count: int) -> List[int]:
        """So many of the candidates: first the first of each cache, then the second of each, and so on."""
        rank: dict = {}
        order = []
        for cpu in candidates:
            cache = self.cache_of[cpu]
            order.append((rank.get(cache, 0), cpu))
            rank[cache] = rank.get(cache, 0) + 1
        return [cpu for _, cpu in sorted(order)[:count]]


opened: Opened


def says_why(function):
    """An exception that is no denial crashes the call, silently: the log is where its words can go."""

    @wraps(function)
    def said(*arguments):
        try:
            return function(*arguments)
        except Err:
            raise
        except Exception as error:
            log.write(log.Level.ERROR, f"{type(error).__name__}: {error}")
            raise

    return said


class Policy(exports.Policy):
    """The three functions of the interface."""

    @says_why
    def describe(self) -> Description:
        return Description(
            name="spread-over-caches",
            version="0.1.0",
            summary="One CPU of each last-level cache in turn",
            options_schema='{"type":"object","additionalProperties":false}',
            explicit_cpuset=ExplicitCpuset.REFUSED,
            publishes=[],
            needs=[],
            extra=[],
        )

    @says_why
    def open(self, machine: Topology, options: str) -> List[Offer]:
        global opened
        opened = Opened(machine)
        return [Offer(capacity=len(opened.usable(group.cpus)), step=1, attributes=[]) for group in machine.groups]

    @says_why
    def allocate(self, requests: List[Request], now: State) -> Decision:
        free = set(opened.usable(now.free))
        grants = []
        for position, request in enumerate(requests):
            group = opened.groups[request.group]
            candidates = [cpu for cpu in members(group.cpus) if cpu in free]
            if len(candidates) < request.count:
                message = (
                    f"{request.count} CPUs asked, {group.device} has {len(candidates)} free; ask for fewer, or wait"
                )
                raise Err(Denial(reason=Reason.NOT_ENOUGH, request=position, message=message))
            chosen = opened.spread(candidates, request.count)
            free.difference_update(chosen)
            grants.append(Grant(cpus=words(chosen), blocked=[], mems=[]))
        return Decision(grants=grants, join_shared_pool=False, why="one CPU of each cache in turn", extra=[])
