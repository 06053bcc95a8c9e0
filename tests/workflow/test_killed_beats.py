"""Real beats, killed at any moment: each tick fires, and fires once."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from celery_workflow import Definition

from ..celery.workers import eventually
from .beats import Beats

PERIOD = 200_000  # microseconds


def many(count: int, **rules: Any) -> list[Definition]:
    """Schedules five times a second whose every tick must fire."""
    return [
        Definition(
            name=f"n{number}", task="mark", kind="interval", spec="0.2", misfire="fire_all", misfire_limit=1_000_000, **rules
        )
        for number in range(count)
    ]


def chaos(beats: Beats, *, seconds: float, seed: int) -> None:
    """Three beats, of which one is killed and another started all the time."""
    chance = random.Random(seed)
    nodes = [beats.start() for _ in range(3)]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(chance.uniform(0.2, 1.2))
        victim = chance.randrange(len(nodes))
        nodes[victim].kill()
        nodes[victim] = beats.start()


def each_tick_fired_once(beats: Beats, names: list[str]) -> int:
    """Ticks without a gap, each with one message and one only; how many they are."""
    sent = beats.task_ids()
    assert len(sent) == len(set(sent))
    total = 0
    assert beats.unfired() == []
    for name in names:
        fired = beats.fired(name)
        assert fired == list(range(fired[0], fired[-1] + 1, PERIOD)), name
        assert fired[-1] == beats.schedules.get(name).last_at
        total += len(fired)
    assert len(sent) == total == beats.ticks()
    return total


def test_three_beats_killed_all_the_time_fire_each_tick_once(beats: Beats):
    """Hundreds of ticks while beats die."""
    definitions = many(40)
    names = [each.name for each in definitions]
    beats.start()
    eventually(lambda: "beat: Starting" in beats.nodes[0].text)
    beats.schedules.create_many(definitions)
    chaos(beats, seconds=5, seed=1)
    enough = beats.home.store().now()
    eventually(lambda: all((beats.schedules.get(name).last_at or 0) > enough for name in names))
    for node in beats.nodes:
        node.kill()

    assert each_tick_fired_once(beats, names) > 500


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_beats_killed_for_minutes_fire_each_of_many_thousand_ticks_once(beats: Beats):
    definitions = many(40)
    names = [each.name for each in definitions]
    beats.schedules.create_many(definitions)
    chaos(beats, seconds=180, seed=2)
    enough = beats.home.store().now()
    eventually(lambda: all((beats.schedules.get(name).last_at or 0) > enough for name in names), 300)
    for node in beats.nodes:
        node.kill()

    assert each_tick_fired_once(beats, names) > 20_000
