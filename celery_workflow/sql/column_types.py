"""The types of columns."""

from __future__ import annotations

from sqlalchemy import String

from kombu_sqlqueue.sql.schema import NUMBER, TEXT

__all__ = ["LONGEST_NAME", "NAME", "NUMBER", "STATE", "TEXT"]

#: The most characters of a name.
LONGEST_NAME = 255
NAME = String(LONGEST_NAME)
STATE = String(16)
