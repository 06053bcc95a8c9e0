"""An existing canvas, made durable by one call, that fans out as wide as the data of the night wants it.

    python examples/nightly_etl

leaves `demo-nightly_etl` behind, to look at.
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent))

from beside import begin, say, title, worker


def main():
    home = begin("nightly_etl")
    from tasks import app, nightly

    title("The canvas as a workflow")
    say("canvas = chain(extract.s(), load_all.s(), report.s())")
    say('nightly = durable(canvas, name="nightly")')

    title("Tonight's run")
    run = nightly.options(id="nightly-2026-11-30").start()
    again = nightly.options(id="nightly-2026-11-30").start()
    say(f"It was started twice, as by two schedulers. Is it the same run? {'yes' if again == run else 'no'}")
    with worker(HERE, home):
        say(f"result: {run.result(timeout=60)}")
        say(f"Celery's own AsyncResult({run.id!r}).get(): {app.AsyncResult(run.id).get(timeout=60)}")

    title("What happened")
    show(run)
    [fanned_out] = run.children()
    say("load_all replaced itself by a group, which became a run of its own:")
    show(fanned_out)
    for each in fanned_out.errors:
        say(f"tried again: {each['step']}: {each['error'].message}")


def show(run):
    for name, step in run.steps().items():
        say(f"  {name:<16} {step.status:<10} attempt {step.attempt}  {step.result}")


if __name__ == "__main__":
    main()
