"""What the examples share: a folder of their own, a worker beside them, and a few words to say what happens."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

__all__ = ["begin", "line", "say", "title", "wait_until", "worker"]

#: Seconds to wait for any one thing.
PATIENCE = 60


def begin(name):
    """An empty folder, and a database in it that the example's app will use."""
    home = pathlib.Path(f"demo-{name}")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    os.environ["EXAMPLE_HOME"] = str(home.resolve())
    os.environ["EXAMPLE_URL"] = f"sqlqueue+sqlite:///{home.resolve() / 'queue.db'}"
    print(f"Broker, results and workflows are one SQLite file: {home / 'queue.db'}")
    return home


@contextlib.contextmanager
def worker(folder, home, *, log="worker.log"):
    """A worker with the app of `folder`, in processes of its own; stopped as an operator would, if it still runs."""
    with (home / log).open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--concurrency", "2", "--loglevel", "INFO"],
            cwd=folder,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        except BaseException:
            print(f"\nSomething went wrong. The worker's log is {home / log}.", file=sys.stderr)
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)


def wait_until(condition):
    """Wait for a condition, and return what made it true."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError("it took too long")
        time.sleep(0.02)
    return answer


def line(run):
    """A run and its steps in one line."""
    return f"{run.id}: {run.status:<10} " + ", ".join(f"{name} {step.status}" for name, step in run.steps().items())


def title(text):
    print(f"\n== {text}")


def say(text):
    print(f"   {text}", flush=True)
