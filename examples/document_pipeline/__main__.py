"""A worker is killed in the middle of a long step; the next goes on, and what was paid for is not paid for again.

    python examples/document_pipeline

leaves `demo-document_pipeline` behind, to look at.
"""

import os
import pathlib
import signal
import sys
from collections import Counter

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent))

from beside import begin, line, say, title, wait_until, worker


def main():
    home = begin("document_pipeline")
    notes = home / "notes"
    from tasks import pipeline

    def noted():
        return notes.read_text().splitlines() if notes.exists() else []

    title("A document of six pages, each to be summarised by an expensive call")
    say("summary = current().memo(page, lambda: ask_the_model(page))")
    run = pipeline.options(id="report").start(document="report")

    with worker(HERE, home, log="first-worker.log") as first:
        wait_until(lambda: "read report, page 3" in noted())
        title("kill -9, in the middle of the step")
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    paid = sum(each.startswith("paid") for each in noted())
    say(f"The worker and its children are gone. {paid} pages were paid for. The run:")
    say(line(run))

    title("Another worker, which waits until the lease of the first has ended: 3 seconds here")
    with worker(HERE, home, log="second-worker.log"):
        say(f"result: {run.result(timeout=60)}")
    say(line(run))

    title("What it cost")
    counts = Counter(noted())
    for number in range(1, 7):
        page = f"report, page {number}"
        say(f"{page}: read {counts[f'read {page}']} times, paid for {counts[f'paid for {page}']} times")


if __name__ == "__main__":
    main()
