"""Passes the messages of an outbox on to the app's broker: in order, each at least once.

Any number of relays may run; one has the turn, the others wait for it. What the broker has taken is deleted
afterwards, so a relay that dies in between leaves what the next one sends again.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter

from celery import Celery

from .errors import ConfigurationError, SchemaError, SQLQueueError
from .letters import Letter
from .messages import Reason
from .notifier import Subscription
from .options import Options
from .outbox_store import OUTBOX, Outgoing
from .passing_on import Broker, Parcel, Passed
from .process import process_for
from .topics import RELAY, queue_topic

__all__ = ["BATCH", "Relay"]

logger = logging.getLogger(__name__)

#: How many messages are read, sent and deleted at a time, unless told otherwise.
BATCH = 200
#: Seconds between two looks of a relay that waits for its turn.
LOOK_FOR_TURN = 0.5
#: The share of its lease that a relay must have left to begin a batch, and for which it then sends.
SPARE = 1 / 3
#: An idle relay that is told of each message looks by itself this many times more seldom.
SELDOM = 5
#: Seconds between two tries when something is away: from the first to the longest.
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 10.0
#: How often a message is tried that meets an error nobody knows.
MOST_TRIES = 5


class Relay:
    """One relay. `run` it in one thread; `stop` it from another."""

    def __init__(self, app: Celery, options: Options, *, batch: int = BATCH) -> None:
        self._process = process_for(options.database)
        self._keeper = self._process.keeper(options)
        self._broker = Broker(app)
        self._batch = batch
        self._spare = SPARE * options.lease_for
        self._look_every = options.polling_interval.total_seconds()
        self._stopping = threading.Event()
        self._subscription: Subscription | None = None
        self._lessee: int | None = None
        self._active = False
        self._taken: set[int] = set()
        self._buried: dict[int, Reason] = {}
        self._tries: Counter[int] = Counter()
        self._pause = FIRST_PAUSE

    def run(self, *, once: bool = False) -> bool:
        """Pass on until stopped, or with `once` until nothing is left; False if that could not be done.

        Raises SchemaError or ConfigurationError for tables or settings that do not fit.
        """
        try:
            while not self._stopping.is_set():
                try:
                    if self._round(once=once):
                        return True
                except (SchemaError, ConfigurationError):
                    raise
                except SQLQueueError as error:
                    if once:
                        raise
                    self._rest(f"the database is away: {error}")
                if once and self._pause > FIRST_PAUSE:
                    return False
            return True
        finally:
            self._close()

    def stop(self) -> None:
        """Let `run` finish its batch and return. Not for a signal handler: it takes locks."""
        self._stopping.set()
        if self._subscription is not None:
            self._subscription.poke()

    def _round(self, *, once: bool) -> bool:
        """Pass on a batch, or wait for one; whether a relay that runs `once` is done."""
        if self._subscription is None:
            self._process.prepare()
            self._subscription = self._process.notifier.subscribe([queue_topic(OUTBOX), RELAY])
        self._settle()
        self._lessee = self._keeper.enrol()
        begun_at = time.monotonic()
        messages = self._process.outbox.read(self._lessee, limit=self._batch, spare=self._spare)
        if messages:
            self._subscription.disarm()
            self._pass_on(messages, until=begun_at + self._spare.total_seconds())
            return False
        if messages is None and self._takes_turn(self._lessee):
            return False
        return self._idle(once=once)

    def _takes_turn(self, lessee: int) -> bool:
        """Whether it is our turn. If it was before, too, our lease was about to end: it is renewed at once."""
        was_active, self._active = self._active, self._process.outbox.take_turn(lessee)
        if self._active and was_active:
            self._process.messages.renew(lessee)
        elif self._active:
            logger.info("relaying to %s", self._broker.name)
        elif was_active:
            logger.warning("another relay has taken over")
        return self._active

    def _idle(self, *, once: bool) -> bool:
        if once:
            if not self._active:
                logger.info("another relay is at work")
            return True
        if not self._stopping.is_set() and self._subscription is not None:
            self._subscription.wait(self._idle_for(self._subscription))
        return False

    def _idle_for(self, subscription: Subscription) -> float:
        if not self._active:
            return LOOK_FOR_TURN
        return self._look_every * (SELDOM if subscription.announces else 1)

    def _pass_on(self, messages: list[Outgoing], *, until: float) -> None:
        parcels = [parcel for message in messages if (parcel := self._opened(message)) is not None]
        passed = self._broker.pass_on(parcels, until=until)
        self._taken |= passed.taken
        for id, error in passed.refused.items():
            self._give_up(next(message for message in messages if message.id == id), Reason.REFUSED, error)
        if passed.trouble is None:
            self._pause = FIRST_PAUSE
            self._tries.clear()
        else:
            self._blame(messages, passed)
            self._settle()
            self._rest(f"{self._broker.name} takes no messages: {passed.trouble}")

    def _opened(self, message: Outgoing) -> Parcel | None:
        try:
            return Parcel(message.id, Letter.open(message))
        except (ValueError, KeyError, TypeError) as error:
            self._give_up(message, Reason.UNDECODABLE, error)
            return None

    def _blame(self, messages: list[Outgoing], passed: Passed) -> None:
        """Nobody knows this error: it may be the broker's, but a message that meets it again and again is at fault."""
        for message in messages:
            if message.id == passed.suspect and passed.trouble is not None:
                self._tries[message.id] += 1
                if self._tries[message.id] >= MOST_TRIES:
                    self._give_up(message, Reason.REFUSED, passed.trouble)

    def _give_up(self, message: Outgoing, reason: Reason, error: Exception) -> None:
        what = f"task {message.task}[{message.task_id}]" if message.task else f"message {message.id}"
        logger.error("%s of the outbox is %s and kept as dead: %s: %s", what, reason, type(error).__name__, error)
        self._buried[message.id] = reason

    def _settle(self) -> None:
        """Write down what is decided. If that fails it is written before anything else is read."""
        self._process.outbox.forget(self._taken)
        self._taken.clear()
        for id, reason in list(self._buried.items()):
            self._process.outbox.bury(id, reason)
            del self._buried[id]

    def _rest(self, why: str) -> None:
        pause = self._pause * random.uniform(0.8, 1.2)
        logger.warning("%s; trying again in %.1f s", why, pause)
        self._stopping.wait(pause)
        self._pause = min(self._pause * 2, LONGEST_PAUSE)

    def _close(self) -> None:
        self._broker.close()
        try:
            self._settle()
            if self._lessee is not None:
                self._process.outbox.leave_turn(self._lessee)
        except SQLQueueError as error:
            logger.warning("could not sign off, the turn ends by itself: %s", error)
        if self._subscription is not None:
            self._subscription.close()
        self._process.close()
