"""Which remote commands revoke what, in whatever way they are written."""

from __future__ import annotations

import os
from typing import Any

import pytest
from kombu.serialization import dumps

from kombu_sqlqueue.pidbox import command_in
from kombu_sqlqueue.revoking import Revocation, revocations_in


def published(command: Any, serializer: str = "json", exchange: str = "celery.pidbox") -> Any:
    content_type, content_encoding, body = dumps(command, serializer)
    return command_in(exchange, {"body": body, "content-type": content_type, "content-encoding": content_encoding})


def command(method: str, **more: Any) -> dict[str, Any]:
    arguments = {name: more.pop(name) for name in ("task_id", "headers") if name in more}
    return {"method": method, "arguments": arguments, "destination": None, "pattern": None, "matcher": None, **more}


@pytest.mark.parametrize("serializer", ["json", "msgpack", "pickle"])
def test_a_command_is_read_in_every_serializer(serializer: str):
    sent = command("revoke", task_id=["a", "b"])

    assert published(sent, serializer) == sent


def test_what_is_no_command_is_none():
    assert published({"w1@host": {"ok": "pong"}}, exchange="reply.celery.pidbox") is None
    assert published(command("ping"), exchange="celery") is None
    assert published(["not", "a", "command"]) is None


class Evil:
    def __reduce__(self) -> Any:
        return os._exit, (7,)


def test_a_pickle_that_would_run_something_is_not_read():
    assert published(command("revoke", task_id=Evil()), "pickle") is None


@pytest.mark.parametrize(
    ("sent", "revoked"),
    [
        (command("revoke", task_id="a"), [Revocation("a")]),
        (command("revoke", task_id=["a", "b"]), [Revocation("a"), Revocation("b")]),
        (command("terminate", task_id=["a"]), [Revocation("a")]),
        (command("revoke_by_stamped_headers", headers={"tenant": "x"}), [Revocation('"x"', "tenant")]),
        (command("revoke_by_stamped_headers", headers={"n": (1, 2)}), [Revocation("1", "n"), Revocation("2", "n")]),
        (command("revoke_by_stamped_headers", headers=["tenant=x"]), [Revocation('"x"', "tenant")]),
        (command("revoke", task_id="a", destination=["w1@host"]), []),
        (command("revoke", task_id="a", pattern="w*", matcher="glob"), []),
        (command("revoke"), []),
        (command("revoke_by_stamped_headers", headers="nonsense"), []),
        (command("ping"), []),
    ],
)
def test_only_what_all_workers_are_told_to_revoke_is_remembered(sent: dict[str, Any], revoked: list[Revocation]):
    assert revocations_in(sent) == revoked
