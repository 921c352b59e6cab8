"""Check that ``load`` refuses a file."""

from __future__ import annotations

import pytest

from sklearn_laplace import load
from sklearn_laplace.errors import StateError


def refused(content, path, match):
    """Write the content, and read it."""
    path.write_bytes(content)
    with pytest.raises(StateError, match=match):
        load(path)
