"""Which tests run in one process when pytest-xdist has several."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

__all__ = ["BySharedFixtures"]

ROOT = Path(__file__).parents[1]
#: How a module says that its tests share what was made for the first of them.
SHARES = re.compile(r'scope="module"|\bshared_site\b')
DATABASE = re.compile(r"\b(sqlite|postgresql|mariadb)\b")


class BySharedFixtures(LoadScopeScheduling):  # type: ignore[misc]
    """Tests that share what their module has made, such as a site with its workers, stay together, for each database;
    any other test goes wherever there is time. (`--dist loadgroup` does that with marks, but not with pytest 9.)"""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if not _shares(file):
            return nodeid
        database = DATABASE.search(nodeid)
        return f"{file} {database[1] if database else ''}"


@functools.cache
def _shares(file: str) -> bool:
    return SHARES.search((ROOT / file).read_text()) is not None
