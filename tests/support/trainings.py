"""Shared training: with ``memory=trainings.MEMORY``, nets with equal rows and options are trained once per process.

Use it to test structures, subsets, priors and predictives, but not to test training or its reproducibility.
``test_searches.py`` checks that ``memory`` changes no result.
"""

from __future__ import annotations

import tempfile

FOLDER = tempfile.TemporaryDirectory(prefix="trainings", ignore_cleanup_errors=True)
MEMORY = FOLDER.name
