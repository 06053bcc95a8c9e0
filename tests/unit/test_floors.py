"""Where claims begin to look: never so far on that a message is lost, and seldom further back than needed."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from kombu_sqlqueue.sql.floors import HEAD, LOOK_FROM_HEAD, MARGIN, MOST_TICKS, TICK, Floors, Lane

LANE = Lane("q", 0, ahead=False)


def claimed(floors: Floors, position: int, *, now: float = 0.0, lane: Lane = LANE) -> None:
    floors.claimed(floors.start([lane.queue], now), {lane: position}, emptied=[])


def begin(floors: Floors, now: float = 0.0) -> int:
    """Where the next claim begins, without doing it."""
    return floors.start(["q"], now).get(LANE, HEAD)


def test_the_first_claim_begins_at_the_head():
    assert begin(Floors()) == HEAD


def test_the_next_claim_begins_a_margin_before_the_last_message():
    floors = Floors()
    claimed(floors, 1000)

    assert begin(floors) == 1000 - MARGIN


def test_a_floor_falls_to_what_came_late_as_there_may_be_more_of_it():
    floors = Floors()
    claimed(floors, 1000)
    claimed(floors, 950)

    assert begin(floors) == 950 - MARGIN


def test_lanes_have_floors_of_their_own():
    floors = Floors()
    urgent, returned = Lane("q", 9, ahead=False), Lane("q", 0, ahead=True)
    start = floors.start(["q", "other"], 0)
    floors.claimed(start, {LANE: 1000, urgent: 5000, returned: -7000, Lane("other", 0, ahead=False): 800}, [])

    assert floors.start(["q"], 0) == {LANE: 900, urgent: 4900, returned: -7100}


def test_every_ten_seconds_a_claim_begins_at_the_head():
    floors = Floors()
    claimed(floors, 1000)

    assert begin(floors, LOOK_FROM_HEAD - 0.1) == 1000 - MARGIN
    assert begin(floors, LOOK_FROM_HEAD) == HEAD
    claimed(floors, 1000, now=LOOK_FROM_HEAD)
    assert begin(floors, LOOK_FROM_HEAD) == 1000 - MARGIN


def test_after_an_outage_one_claim_begins_at_the_head():
    """A server that crashed may give positions again that it had given before."""
    floors = Floors()
    claimed(floors, 1000)
    floors.mistrust()

    assert begin(floors) == HEAD
    claimed(floors, 1000)
    assert begin(floors) == 1000 - MARGIN


def test_a_look_from_the_head_that_fails_is_made_up_for():
    floors = Floors()
    claimed(floors, 1000)
    floors.start(["q"], LOOK_FROM_HEAD)  # And nothing more is heard of that claim.

    assert begin(floors, LOOK_FROM_HEAD) == HEAD


def test_a_lane_that_a_look_did_not_come_to_is_still_looked_through():
    floors = Floors()
    urgent = Lane("q", 9, ahead=False)
    floors.claimed({}, {LANE: 1000, urgent: 2000}, [])
    floors.start(["q"], 0)
    floors.claimed(floors.start(["q"], LOOK_FROM_HEAD), {urgent: 2010}, [])

    assert floors.start(["q"], LOOK_FROM_HEAD) == {LANE: HEAD, urgent: 1910}


def test_a_look_that_finds_nothing_to_the_end_of_the_queue_is_done():
    floors = Floors()
    claimed(floors, 1000)
    floors.claimed(floors.start(["q"], LOOK_FROM_HEAD), {}, ["q"])

    assert begin(floors, LOOK_FROM_HEAD) == 900


def test_a_sequence_that_was_set_back_is_followed():
    floors = Floors()
    claimed(floors, 1_000_000)
    claimed(floors, 500, now=LOOK_FROM_HEAD)

    assert begin(floors, LOOK_FROM_HEAD) == 400


def test_once_a_tick_a_claim_begins_where_the_floor_was_some_ticks_ago():
    """Two for writers that are still open; three for those that have just ended."""
    floors = Floors(margin=0)
    for tick in range(1, 6):
        claimed(floors, 1000 * tick)
        floors.tick(tick, tick + 1, 0)

    assert begin(floors) == 2000
    claimed(floors, 5001)
    assert begin(floors) == 5001


def test_a_transaction_that_ended_is_looked_for_from_where_it_began():
    floors = Floors(margin=0)
    number = iter(range(1000, 10**6, 1000))
    for tick in range(1, 5):
        claimed(floors, next(number))
        floors.tick(tick, tick + 1, 0)
    began_at = 5
    for tick in range(5, 40):
        claimed(floors, next(number))
        floors.tick(began_at, tick + 1, 0)  # Transaction 5 stays open.
    assert begin(floors) == 37_000

    claimed(floors, next(number))
    floors.tick(41, 41, 0)
    assert begin(floors) <= 4000
    claimed(floors, next(number))
    assert begin(floors) > 40_000


def test_a_transaction_of_hours_costs_little_memory():
    floors = Floors()
    for tick in range(1, 10_000):
        claimed(floors, tick * 1000)
        floors.tick(1, tick + 1, 0)

    assert len(floors._open) <= MOST_TICKS + 1
    floors.tick(10_001, 10_001, 0)
    assert begin(floors) <= 1000


def test_a_queue_that_nobody_asks_for_is_forgotten():
    floors = Floors()
    for number in range(1000):
        claimed(floors, 1, now=float(number), lane=Lane(f"reply {number}", 0, ahead=False))
        floors.tick(number, number + 1, float(number))

    assert len(floors._floors) < 100
    assert len(floors._head_at) < 100


def test_only_one_of_those_who_ask_is_to_tick():
    floors = Floors()

    assert floors.wants_tick(0)
    floors.claimed({}, {LANE: 1000}, [])
    assert not floors.wants_tick(TICK / 2)
    assert floors.wants_tick(TICK)
    assert not floors.wants_tick(TICK)


def test_nobody_ticks_while_the_floors_rest():
    """Whoever begins to write then is placed after them; who was writing before is waited for."""
    floors = Floors()

    def ticks_until(last: int, *, oldest_open: int) -> int:
        """How often was ticked until then, a tick a second, while this transaction was the oldest open one."""
        ticks = 0
        for now in range(last - 19, last + 1):
            if floors.wants_tick(now):
                floors.tick(oldest_open, 20, now)
                ticks += 1
        return ticks

    assert ticks_until(20, oldest_open=20) == 1
    claimed(floors, 1000)
    assert ticks_until(40, oldest_open=20) < 5
    claimed(floors, 2000)
    assert ticks_until(60, oldest_open=5) == 20
    assert ticks_until(80, oldest_open=20) < 5
    assert ticks_until(100, oldest_open=20) == 0


@dataclass
class Line:
    """A queue whose writers draw positions and commit later, and who claims from it without looking at the clock."""

    floors: Floors = field(default_factory=lambda: Floors(margin=5))
    drawn: int = 0
    next_id: int = 1
    open: dict[int, list[int]] = field(default_factory=dict)
    ready: set[int] = field(default_factory=set)

    def write(self, count: int) -> int:
        self.open[self.next_id] = list(range(self.drawn + 1, self.drawn + 1 + count))
        self.drawn += count
        self.next_id += 1
        return self.next_id - 1

    def commit(self, which: int) -> None:
        if self.open:
            self.ready.update(self.open.pop(sorted(self.open)[which % len(self.open)]))

    def tick(self) -> None:
        self.floors.tick(min(self.open, default=self.next_id), self.next_id, 0)

    def claim(self, limit: int) -> None:
        start = self.floors.start(["q"], 0)
        found = sorted(position for position in self.ready if position >= start.get(LANE, HEAD))[:limit]
        self.ready.difference_update(found)
        self.floors.claimed(start, {LANE: found[-1]} if found else {}, ["q"] if len(found) < limit else [])


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 40)),
        st.tuples(st.just("commit"), st.integers(0, 5)),
        st.tuples(st.just("claim"), st.integers(1, 60)),
        st.tuples(st.just("tick"), st.just(0)),
    ),
    max_size=150,
)


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_every_message_is_found_though_nobody_looks_from_the_head(steps: list[tuple[str, int]]):
    """Writers commit in any order and any time later. Once all have ended, three ticks and small claims find everything."""
    line = Line()
    for _ in range(4):
        line.write(20)
        line.commit(0)
        line.claim(20)
        line.tick()
    for step, number in steps:
        match step:
            case "write":
                line.write(number)
            case "commit":
                line.commit(number)
            case "claim":
                line.claim(number)
            case "tick":
                line.tick()
    while line.open:
        line.commit(0)
    for _ in range(3):
        line.tick()
        line.claim(7)
    for _ in range(len(line.ready)):
        line.claim(7)

    assert line.ready == set()
