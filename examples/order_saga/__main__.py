"""Orders that wait for a person's decision: one is approved, one rejected, one forgotten.

    python examples/order_saga

leaves `demo-order_saga` behind, to look at.
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent))

from beside import begin, line, say, title, wait_until, worker


def main():
    home = begin("order_saga")
    from tasks import fulfil

    title("Two orders")
    good = fulfil.options(id="order-1", labels={"customer": "ann"}).start(order="tea", amount=12)
    bad = fulfil.options(id="order-2").start(order="gold", amount=9000)
    say("fulfil.options(id=...).start(...) writes rows; there is no worker yet.")

    with worker(HERE, home):
        wait_until(lambda: all(run.steps()["decision"].status == "awaiting" for run in (good, bad)))
        say("A worker came, reserved and charged. Now each waits for a signal, and holds no worker:")
        say(line(good))
        say(line(bad))

        title("order-1 is approved")
        good.signal("decision", {"approved": True, "by": "ann"})
        say(f"result: {good.result(timeout=60)}")

        title("order-2 is rejected: what was done is undone, the latest first")
        bad.signal("decision", {"approved": False, "by": "bob"})
        failed_and_undone(bad)

        title("order-3 is forgotten: nobody decides within 3 seconds")
        failed_and_undone(fulfil.options(id="order-3").start(order="ink", amount=3, patience=3))

    title("The graph of order-2, for mermaid.live")
    for each in bad.graph("mermaid").splitlines():
        say(each)


def failed_and_undone(run):
    wait_until(lambda: run.status == "failed")
    say(f"{run.id} has failed: {run.errors[0]['error'].message}")
    undone = [entry.name for entry in run.journal() if entry.state == "succeeded" and entry.name in ("refund", "release")]
    say(f"undone: {', then '.join(run.step_result(name) for name in undone)}")


if __name__ == "__main__":
    main()
