"""The types of columns."""

from __future__ import annotations

from sqlalchemy import BigInteger, Integer, String, Text
from sqlalchemy.dialects import mysql

__all__ = ["LONGEST_NAME", "NAME", "NUMBER", "STATE", "TEXT"]

#: The most characters of a name.
LONGEST_NAME = 255
NAME = String(LONGEST_NAME)
STATE = String(16)
#: SQLite numbers rows by itself only in a column it calls INTEGER.
NUMBER = BigInteger().with_variant(Integer(), "sqlite")
TEXT = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
