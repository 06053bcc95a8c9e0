"""A process may fork while its threads are busy with the database: its children work, and so does it."""

from __future__ import annotations

import os
import signal
import threading
import time

from kombu_sqlqueue.messages import NewMessage
from kombu_sqlqueue.options import DatabaseOptions
from kombu_sqlqueue.process import process_for

from ..databases import wipe

CHILDREN = 15


def publish(options: DatabaseOptions, queue: str) -> None:
    process_for(options).messages.publish([NewMessage(queue, b"", "{}")])


def child_exit_code(pid: int, *, within: float) -> int | None:
    """The exit code of the child, None if it did not end; it is killed then."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def test_children_of_a_busy_parent_can_use_the_database(database_options: DatabaseOptions):
    """Threads of the parent are inside the database library at any moment; no child inherits their locks."""
    stop = threading.Event()
    published = [0, 0, 0]

    def keep_publishing(number: int) -> None:
        while not stop.is_set():
            publish(database_options, "parent")
            published[number] += 1

    threads = [threading.Thread(target=keep_publishing, args=(number,)) for number in range(len(published))]
    for thread in threads:
        thread.start()
    codes = []
    try:
        for _ in range(CHILDREN):
            pid = os.fork()
            if pid == 0:
                try:
                    publish(database_options, "child")
                    os._exit(0)
                finally:
                    os._exit(1)
            codes.append(child_exit_code(pid, within=20))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    ready = {counts.queue: counts.ready for counts in process_for(database_options).messages.counts()}
    process_for(database_options).close()
    wipe(process_for(database_options).database)

    assert codes == [0] * CHILDREN
    assert ready == {"child": CHILDREN, "parent": sum(published)}
