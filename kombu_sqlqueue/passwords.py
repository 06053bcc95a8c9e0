"""A password that changes: asked for anew at each connect, from what the option ``password`` names."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from importlib.util import find_spec

from .errors import ConfigurationError, StoreUnavailableError

__all__ = ["PasswordSource", "current_password", "password_source"]

#: What gives the password: a callable without arguments, or where to import one from, as "package.module:name".
PasswordSource = Callable[[], str] | str

_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def password_source(value: object) -> PasswordSource:
    """The option's value, if it can be one. Raises ValueError without the value: it may be a password."""
    if callable(value) or (isinstance(value, str) and _PATH.fullmatch(value)):
        return value
    raise ValueError


def current_password(source: PasswordSource) -> str:
    """The password as it is now.

    Raises ConfigurationError if there is nothing to call or it gives no text, StoreUnavailableError
    if it fails: what it asks may be away for a moment. Neither shows what was given.
    """
    give = _imported(source) if isinstance(source, str) else source
    try:
        password = give()
    except Exception as error:
        raise StoreUnavailableError(f"the callable of the option 'password' failed: {type(error).__name__}") from error
    if not isinstance(password, str):
        raise ConfigurationError(f"the callable of the option 'password' gave {type(password).__name__}, not str")
    return password


def _imported(path: str) -> Callable[[], str]:
    module, _, name = path.partition(":")
    if not _exists(module):
        # Somebody may have written the password itself.
        raise ConfigurationError("the option 'password' is 'module:callable', but there is no such module")
    found: object = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ConfigurationError("the option 'password' is 'module:callable', but what it names is no callable")
    return found


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
