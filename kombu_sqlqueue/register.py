"""Makes Kombu know our URLs, in every process that has a Celery app.

Kombu has no entry points for transports, but it loads those for serializers whenever a Celery app
is made. So this module poses as a harmless JSON serializer, and registers the transports when it
is imported. It must never raise, as that would break every Celery app of the environment, and it
must not import a transport, as Kombu is only half imported then.
"""

from __future__ import annotations

import json

from kombu.transport import TRANSPORT_ALIASES

__all__ = ["serializer"]

#: The whole URL reaches the transport as one text, but Kombu cannot switch to another such URL
#: by its first scheme alone: it looks the full scheme up then.
FULL_URLS = (
    "sqlqueue",
    "sqlqueue+postgresql",
    "sqlqueue+postgres",
    "sqlqueue+sqlite",
    "sqlqueue+mysql",
    "sqlqueue+mariadb",
)
#: Kombu takes these apart into host, port and so on, which lists of hosts for failover need.
PARTED_URLS = (
    "sqlqueue-postgresql",
    "sqlqueue-postgres",
    "sqlqueue-mysql",
    "sqlqueue-mariadb",
)

TRANSPORT_ALIASES.update(dict.fromkeys(FULL_URLS, "kombu_sqlqueue.transport:Transport"))
TRANSPORT_ALIASES.update(dict.fromkeys(PARTED_URLS, "kombu_sqlqueue.transport:PartsTransport"))

#: What Kombu registers as the serializer "sqlqueue". Nobody is meant to use it.
serializer = (json.dumps, json.loads, "application/x-sqlqueue+json", "utf-8")
