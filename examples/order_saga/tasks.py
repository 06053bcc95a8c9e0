"""Ordinary tasks, and the workflow that they are steps of."""

import os
from datetime import timedelta

from celery import Celery

from celery_workflow import Permanent, workflow

URL = os.environ.get("EXAMPLE_URL", "sqlqueue+sqlite:///order_saga.db")

app = Celery("order_saga", broker=URL, backend=URL)


@app.task
def reserve(order):
    return f"shelf of {order}"


@app.task
def release(order):
    return f"{order} is back on its shelf"


@app.task
def charge(order, amount):
    return {"order": order, "amount": amount}


@app.task
def refund(order):
    return f"{order} is refunded"


@app.task
def approve(decision):
    """No further attempt would change a person's mind."""
    if not decision["approved"]:
        raise Permanent(f"rejected by {decision['by']}")
    return decision["by"]


@app.task
def ship(order, by):
    return f"{order} is on its way, approved by {by}"


@workflow(app, name="orders.fulfil", version=1)
def fulfil(w, order, amount, patience=86_400):
    """What a step returns is what the next is given; `compensate` says how a step is undone if the run fails later."""
    reserved = w.step(reserve.s(order), name="reserve", compensate=release.s(order))
    paid = w.step(charge.s(order, amount), name="charge", after=reserved, compensate=refund.s(order))
    # No worker is held while it waits.
    decision = w.wait_for("decision", timeout=timedelta(seconds=patience), after=paid)
    by = w.step(approve.s(decision), name="approve")
    return w.step(ship.s(order, by), name="ship")
